-- Reading entries of messages with a key: see `keyed`.

local function has_key(fields) return fields[3] == 'k' and fields[1] == 'd' and fields[5] == 'i' end

-- Returns the fields of an entry by name. Ignores a malformed position, which only another program can have written.
local function said(fields)
  local words = {}
  for i = 1, #fields, 2 do words[fields[i]] = fields[i + 1] end
  if words.o and (#words.o ~= 40 or string.find(words.o, '%D')) then words.o = nil end
  return words
end

-- Returns the ref of an entry with a key.
local function keyed_ref(entry, words) return entry .. '/' .. (words.o or '') .. '/' .. words.k end

-- Returns the fields that a claim returns.
local function as_claimed(words)
  if words.x then return { 'd', words.d, 'x', words.x } end
  return { 'd', words.d }
end
