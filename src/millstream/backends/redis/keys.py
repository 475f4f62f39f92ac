"""Every key that Millstream writes: name, type, content and lifetime. Scripts refer to keys by the words in these tables.

All keys of a queue share the hash tag ``{namespace:q:queue}``. So they are in one cluster slot, and every script is atomic.

| word            | key            | type   | holds                                              | lives                       |
|-----------------|----------------|--------|----------------------------------------------------|-----------------------------|
| stream          | ``…:s``        | stream | ready and running jobs: ``d`` body, ``x`` expiry;  | an entry until it is        |
|                 |                |        | with an ordering key also ``k`` key, ``i`` id,     | settled                     |
|                 |                |        | ``t`` task, ``o`` position                         |                             |
| held            | ``…:held``     | hash   | id → expiry, newline and body of scheduled and     | a field until it is ready   |
|                 |                |        | blocked jobs                                       |                             |
| due             | ``…:due``      | zset   | ids of ``held`` by due time, server ms             | as ``held``                 |
| index           | ``…:index``    | hash   | id → entry id, ``h`` (scheduled), ``p`` (blocked)  | a field while the job lives |
|                 |                |        | or ``d<dead entry>``                               | or is dead                  |
| keyed           | ``…:keyed``    | hash   | id → position, task and ordering key of jobs in    | as ``held``                 |
|                 |                |        | ``held``                                           |                             |
| turns           | ``…:turns``    | hash   | key → the message that has the turn, or a mark     | until the key is free       |
|                 |                |        | that the key is stopped                            |                             |
| blocked         | ``…:blocked``  | zset   | key, position and id of blocked messages           | until the message gets the  |
|                 |                |        |                                                    | turn                        |
| stopped         | ``…:stopped``  | hash   | key → when it was stopped, and by which message    | until the key is cleared    |
| stopped_letters | ``…:barred``   | zset   | key, position and id of a stopped key's dead       | until the key is cleared    |
|                 |                |        | letters                                            |                             |
| sweeps          | ``…:sweeps``   | list   | stopped keys that still have blocked messages      | until these are dead        |
| ahead           | ``…:ahead``    | set    | positions of messages that a group, after a seek   | until the group has caught  |
|                 |                |        | back, received before it reached them in the log   | up                          |
| leases          | ``…:leases``   | zset   | consumer → deadline, server ms; below 0: when the  | a member until it leaves or |
|                 |                |        | lease was first seen overdue, minus 1e15           | lapses                      |
| lapsed          | ``…:lapsed``   | set    | consumers whose pending entries are to be taken    | until they are taken over   |
|                 |                |        | over                                               |                             |
| wake            | ``…:wake``     | list   | at most one token: there is something to claim     | until an idle worker takes  |
|                 |                |        |                                                    | it                          |
| dead            | ``…:dead``     | stream | dead letters                                       | limited by age and count    |
| meta            | ``…:meta``     | hash   | paused, run id, calm, times of the last checks,    | with the queue              |
|                 |                |        | longest lease, joined, epoch, ordering rules,      |                             |
|                 |                |        | number of shards                                   |                             |
| stats           | ``…:stats``    | hash   | counters                                           | with the queue              |
| waiters         | ``…:waiters``  | hash   | id → channels of the clients that wait for its     | until the job ends          |
|                 |                |        | ending                                             |                             |
| ending          | ``…:r:<id>``   | string | how the job ended                                  | ``result_ttl``              |
| given           | ``…:u:<id>``   | string | the task of a caller-given id, and the request     | the job's life plus         |
|                 |                |        | that created it                                    | ``id_ttl``                  |
| sender          | ``…:p:<name>`` | string | high-water mark of generated ids, with its gaps    | ``id_ttl`` after the last   |
|                 |                |        |                                                    | call                        |
| answer          | ``…:a:<name>`` | string | the answer to a named request                      | a minute                    |
| tag             | ``…:tag``      |        | nothing: scripts declare it (see ``scripts.py``)   | never                       |
| sync            | ``…:sync``     | string | nothing: written to confirm earlier writes (see    | a minute                    |
|                 |                |        | ``replication.py``)                                |                             |

A topic is a log under the tag ``{namespace:t:topic}``. Each of its groups is a queue with the keys above, under
``{namespace:t:topic}:g:<group>``. The group reads new events from the log; its own stream holds events that are retried or
replayed.

| word      | key            | type   | holds                                              | lives                             |
|-----------|----------------|--------|----------------------------------------------------|-----------------------------------|
| log       | ``…:s``        | stream | events: ``d`` body, ``x`` expiry; with an ordering | an entry until every group has    |
|           |                |        | key also ``k`` key and ``i`` id. Has one consumer  | settled it and retention is over  |
|           |                |        | group per group                                    |                                   |
| log_held  | ``…:held``     | hash   | id → expiry, newline and body of delayed events    | a field until it is published     |
| log_due   | ``…:due``      | zset   | ids of ``log_held`` by due time, server ms         | as ``log_held``                   |
| log_keyed | ``…:keyed``    | hash   | id → ordering key of delayed events                | as ``log_held``                   |
| log_bell  | ``…:bell``     | stream | one entry, renewed when an event is delayed to an  | with the topic                    |
|           |                |        | earlier time than all others; wakes followers      |                                   |
| log_meta  | ``…:meta``     | hash   | life, retention, time of the last trim, whether    | with the topic                    |
|           |                |        | (and since when) the topic is followed             |                                   |
| log_stats | ``…:stats``    | hash   | counters                                           | with the topic                    |
| groups    | ``…:groups``   | set    | names of the groups                                | until a group is removed          |
| topic     | ``…``          |        | the tag itself, from which the keys of groups are  |                                   |
|           |                |        | made                                               |                                   |

The dead letters of a group are a queue too, for code that handles them. Its stream is the group's ``dead``, read by a consumer
group of its own. It shares ``index`` and ``meta`` with the group. Its ``leases``, ``lapsed``, ``wake`` and ``stats`` are its
own, under ``…:g:<group>:dead``, and live until the group is removed. A letter whose handler failed stays in the stream, and two
more keys describe it:

| word      | key              | type | holds                                                 | lives                          |
|-----------|------------------|------|-------------------------------------------------------|--------------------------------|
| handling  | ``…:handling``   | hash | dead entry → ``t`` and the message of the next        | a field while its letter is in |
|           |                  |      | attempt, or ``u`` and why the letter stays unhandled  | the list                       |
| due       | ``…:due``        | zset | dead entries by the time of their next attempt,       | until it is due                |
|           |                  |      | server ms                                             |                                |

``given`` and ``sender`` of a topic are like those of a queue, but live for ``id_ttl`` from the publish. The ``meta`` of a group
has two more fields. ``cursor`` is the entry up to which the group had settled the log at the last trim; the group continues
there if its position is lost. ``rewound`` is the last entry that the group had received before a seek back; it is removed when
the group has caught up.

Keys of the namespace, under ``{namespace}``:

| word     | key            | type   | holds                                              | lives                              |
|----------|----------------|--------|----------------------------------------------------|------------------------------------|
| queues   | ``…:queues``   | set    | names of all queues                                | forever                            |
| topics   | ``…:opened``   | zset   | names of all topics, in the order in which they    | forever                            |
|          |                |        | were opened                                        |                                    |
| prefixes | ``…:prefixes`` | set    | ``group>prefix``: topics with this prefix get the  | until the prefix is removed        |
|          |                |        | group                                              |                                    |
| workers  | ``…:workers``  | set    | ids of registered workers                          | until unregistered or found        |
|          |                |        |                                                    | missing                            |
| worker   | ``…:w:<id>``   | string | the registration of a worker                       | two beats after the last one       |
| control  | ``…:m:<name>`` | list   | messages to a supervisor, or its answers           | until received, a few seconds at   |
|          |                |        |                                                    | most                               |
| answer   | ``…:a:<name>`` | string | the answer to a named request                      | a minute                           |
| tag      | ``…:tag``      |        | nothing: scripts declare it (see ``scripts.py``)   | never                              |

Names are never removed from ``topics``. A topic has no end: its ``log_meta`` stays when its last group and its last event are
gone. On a cluster, its keys and ``topics`` are in different slots, so no script can check that a topic is empty and remove its
name in one step. If a client opened the topic between the two steps, the topic would be unlisted, and groups by prefix would
miss it.
"""

from __future__ import annotations

import re

from millstream.model.address import Address

GROUP = "g"
"""The one consumer group of a queue's stream."""

RELEASED = "!released"
SUSPECTS = "!suspects"
"""Pseudo-consumers. Their pending lists hold released messages, and suspects that wait to run alone."""

_QUEUE_SUFFIX = {
    "tag": ":tag",
    "sync": ":sync",
    "stream": ":s",
    "held": ":held",
    "due": ":due",
    "index": ":index",
    "leases": ":leases",
    "lapsed": ":lapsed",
    "keyed": ":keyed",
    "turns": ":turns",
    "blocked": ":blocked",
    "stopped": ":stopped",
    "stopped_letters": ":barred",
    "sweeps": ":sweeps",
    "ahead": ":ahead",
    "wake": ":wake",
    "dead": ":dead",
    "meta": ":meta",
    "stats": ":stats",
    "waiters": ":waiters",
    "ending": ":r:",
    "given": ":u:",
    "sender": ":p:",
    "answer": ":a:",
}

_OF_LETTERS = {word: f":dead{suffix}" for word, suffix in _QUEUE_SUFFIX.items()} | {
    "stream": ":dead",
    "dead": ":dead",
    "index": ":index",
    "meta": ":meta",
    "stopped_letters": ":barred",
    "handling": ":dead:handling",
}
"""The suffixes for a group's dead letters as a queue. This queue stores no endings, and nobody waits for them."""

_TOPIC_SUFFIX = {
    "tag": ":tag",
    "sync": ":sync",
    "topic": "",
    "log": ":s",
    "log_held": ":held",
    "log_due": ":due",
    "log_keyed": ":keyed",
    "log_bell": ":bell",
    "log_meta": ":meta",
    "meta": ":meta",
    "log_stats": ":stats",
    "groups": ":groups",
    "given": ":u:",
    "sender": ":p:",
}

_NAMESPACE_SUFFIX = {
    "tag": ":tag",
    "queues": ":queues",
    "topics": ":opened",
    "prefixes": ":prefixes",
    "workers": ":workers",
    "worker": ":w:",
    "control": ":m:",
    "answer": ":a:",
}


def queue_keys(namespace: str, address: Address) -> dict[str, str]:
    """Return the keys of an address, by their word in the tables above. ``ending``, ``given``, ``sender`` and ``answer`` are
    prefixes. A group also has the keys of its topic."""
    if address.is_queue:
        tag = f"{{{namespace}:q:{address}}}"
        return {word: tag + suffix for word, suffix in _QUEUE_SUFFIX.items()}
    keys = topic_keys(namespace, address.log)
    if not address.group:
        return keys
    suffixes = _OF_LETTERS if address.is_dead else _QUEUE_SUFFIX
    return keys | {word: f"{keys['topic']}:g:{address.group}{suffix}" for word, suffix in suffixes.items()}


def topic_keys(namespace: str, topic: str) -> dict[str, str]:
    """Return the keys of a topic, by their word. ``given`` and ``sender`` are prefixes."""
    tag = f"{{{namespace}:t:{topic}}}"
    return {word: tag + suffix for word, suffix in _TOPIC_SUFFIX.items()}


_WAITERS = re.compile(r"\{.*?:[qt]:(.*)\}(?::g:(.*))?:waiters", re.DOTALL)


def address_of_waiters(key: str) -> Address:
    """Return the address that a ``waiters`` key belongs to. Raises ValueError for any other key."""
    found = _WAITERS.fullmatch(key)
    if found is None:
        raise ValueError(key)
    name, group = found.groups()
    return Address(name) if group is None else Address.of_group(name, group)


def namespace_keys(namespace: str) -> dict[str, str]:
    """Return the keys of a namespace, by their word. ``worker``, ``control`` and ``answer`` are prefixes."""
    return {word: f"{{{namespace}}}" + suffix for word, suffix in _NAMESPACE_SUFFIX.items()}


def patterns(namespace: str) -> tuple[str, str, str]:
    """Return the SCAN patterns that match every key of a namespace and no other key."""
    name = re.sub(r"[*?\[\]^\\-]", r"\\\g<0>", namespace)
    return f"{{{name}}}:*", f"{{{name}:q:*", f"{{{name}:t:*"


def channel(namespace: str, client: str) -> str:
    """Return the channel on which a client receives the endings that it waits for."""
    return f"{{{namespace}}}:c:{client}"
