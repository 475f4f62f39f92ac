-- Entries of messages that have a key, as they are read: see `keyed`.

-- Whether an entry has a key; what its fields say by their names. A position that others wrote is none.
local function has_key(fields) return fields[3] == 'k' and fields[1] == 'd' and fields[5] == 'i' end

local function said(fields)
  local words = {}
  for i = 1, #fields, 2 do words[fields[i]] = fields[i + 1] end
  if words.o and (#words.o ~= 40 or string.find(words.o, '%D')) then words.o = nil end
  return words
end

-- The ref of an entry that has a key, without the mark of its stream; and what a claim brings of it.
local function keyed_ref(entry, words) return entry .. '/' .. (words.o or '') .. '/' .. words.k end

local function as_claimed(words)
  if words.x then return { 'd', words.d, 'x', words.x } end
  return { 'd', words.d }
end
