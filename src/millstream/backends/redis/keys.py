"""Every key Millstream writes: its name, type, content, writers and lifetime. Scripts name keys by the words in this table.

All keys of a queue share the hash tag ``{namespace:q:queue}``: one cluster slot, so every transition is atomic.

| word     | key            | type   | holds                                              | lives                              |
|----------|----------------|--------|----------------------------------------------------|------------------------------------|
| stream   | ``…:s``        | stream | ready and running jobs: ``d`` body, ``x`` expiry;  | an entry until it is settled       |
|          |                |        | with a key: ``k``, ``i`` id, ``t`` task, ``o``     |                                    |
|          |                |        | place in the order                                 |                                    |
| held     | ``…:held``     | hash   | id → expiry, newline and body of jobs that are     | a field until it is ready          |
|          |                |        | scheduled or blocked                               |                                    |
| due      | ``…:due``      | zset   | ids of ``held`` by due time, server ms             | as ``held``                        |
| index    | ``…:index``    | hash   | id → entry id, ``h`` (scheduled), ``p`` (blocked)  | a field while the job lives        |
|          |                |        | or ``d<dead entry>``                               |                                    |
| keyed    | ``…:keyed``    | hash   | id → place, task and key of what is held           | as ``held``                        |
| turns    | ``…:turns``    | hash   | key → whose turn it is, or that it is stopped      | until the key is free              |
| blocked  | ``…:blocked``  | zset   | key, place and id of what waits for its turn       | until its turn comes               |
| stopped  | ``…:stopped``  | hash   | key → since when, and by whose death               | until it is cleared                |
| stopped_letters | ``…:barred`` | zset | key, place and id of a stopped key's dead letters  | until it is cleared |
| sweeps   | ``…:sweeps``   | list   | stopped keys of which some are blocked still       | until they are dead                |
| ahead    | ``…:ahead``    | set    | places of what a group that was moved back was     | until it has caught up             |
|          |                |        | given before the log was read up to them           |                                    |
| leases   | ``…:leases``   | zset   | consumer → deadline, server ms; below 0: when the  | a member until it leaves or lapses |
|          |                |        | lease was first seen overdue, less 1e15            |                                    |
| lapsed   | ``…:lapsed``   | set    | names whose pending entries are to be taken over   | until they are                     |
| wake     | ``…:wake``     | list   | at most one token: there is something to claim     | until an idle worker takes it      |
| dead     | ``…:dead``     | stream | dead letters                                       | by age and count                   |
| meta     | ``…:meta``     | hash   | paused, run id, calm, last looks, longest, joined, | with the queue                     |
|          |                |        | epoch, what holds for keys, number of shards       |                                    |
| stats    | ``…:stats``    | hash   | counters                                           | with the queue                     |
| waiters  | ``…:waiters``  | hash   | id → channels of who waits for its ending          | until the job ends                 |
| ending   | ``…:r:<id>``   | string | how the job ended                                  | ``result_ttl``                     |
| given    | ``…:u:<id>``   | string | the task of a caller-given id, and the request     | the job's life and ``id_ttl`` more |
|          |                |        | that created it                                    |                                    |
| sender   | ``…:p:<name>`` | string | high-water mark of generated ids, with its gaps    | ``id_ttl`` after the last call     |
| answer   | ``…:a:<name>`` | string | what a named request was answered                  | a minute                           |

A topic is a log under the tag ``{namespace:t:topic}``. Each of its groups is a queue, with the keys of one, under
``{namespace:t:topic}:g:<group>``, for what is tried again or replayed, and reads on in the log:

| word      | key            | type   | holds                                             | lives                              |
|-----------|----------------|--------|---------------------------------------------------|------------------------------------|
| log       | ``…:s``        | stream | events: ``d`` body, ``x`` expiry, with a key      | an entry until every group has     |
|           |                |        | ``k`` and ``i`` id; per group a consumer group    | settled it, and retention is over  |
| log_held  | ``…:held``     | hash   | id → expiry, newline and body of delayed events   | a field until it is published      |
| log_due   | ``…:due``      | zset   | ids of ``log_held`` by due time, server ms        | as ``log_held``                    |
| log_keyed | ``…:keyed``    | hash   | id → key of delayed events                        | as ``log_held``                    |
| log_bell  | ``…:bell``     | stream | one entry: something was delayed to an earlier    | with the topic                     |
|           |                |        | moment, for those who follow                      |                                    |
| log_meta  | ``…:meta``     | hash   | its life, retention, when it was trimmed, whether | with the topic                     |
|           |                |        | (and since when) it is followed                   |                                    |
| log_stats | ``…:stats``    | hash   | counters                                          | with the topic                     |
| groups    | ``…:groups``   | set    | names of its groups                               | until they are removed             |
| topic     | ``…``          |        | the tag itself, from which groups' keys are made  |                                    |

The dead letters of a group, where code handles them, are a queue too: its stream is the group's ``dead``, read by a consumer
group, ``index`` and ``meta`` are the group's, and ``…:g:<group>:dead:leases``, ``lapsed``, ``wake`` and ``stats`` are its
own, as above, until the group is removed. A letter whose handler failed stays where it is, and two more keys tell of it:

| word      | key              | type | holds                                                 | lives                          |
|-----------|------------------|------|-------------------------------------------------------|--------------------------------|
| handling  | ``…:handling``   | hash | dead entry → ``t`` and the message of the next        | a field while its letter is in |
|           |                  |      | attempt, or ``u`` and why it stays unhandled          | the list                       |
| due       | ``…:due``        | zset | dead entries by the time of their next attempt,       | until it is due                |
|           |                  |      | server ms                                             |                                |

``given`` and ``sender`` are as a queue's, but live ``id_ttl`` from the publish on; in a group's ``meta`` is also
``cursor``: up to which entry it had settled the log when that was last trimmed, to go on from if its place is lost; and
``rewound``, while it has not caught up after a move back: the last entry it had been given before.

Of the namespace, under ``{namespace}``:

| word     | key            | type   | holds                                              | lives                              |
|----------|----------------|--------|----------------------------------------------------|------------------------------------|
| queues   | ``…:queues``   | set    | names of all queues                                | for ever                           |
| topics   | ``…:opened``   | zset   | names of all topics, in the order in which they    | for ever                           |
|          |                |        | were opened                                        |                                    |
| prefixes | ``…:prefixes`` | set    | ``group>prefix``: which topics get a group         | until it is removed                |
| workers  | ``…:workers``  | set    | ids of registered workers                          | until unregistered or found gone   |
| worker   | ``…:w:<id>``   | string | what a worker says of itself                       | two beats after the last one       |
| control  | ``…:m:<name>`` | list   | messages to a supervisor, or its answers           | until taken, some seconds at most  |
| answer   | ``…:a:<name>`` | string | what a named request was answered                  | a minute                           |

Nothing removes a name from ``topics``. A topic has no end: its ``log_meta`` stays when its last group and its last event are
gone. On a cluster its keys and ``topics`` are in different slots, so no script can check one and change the other. If a client
opened the topic between these two steps, the topic would be unlisted, and groups by prefix would miss it.
"""

from __future__ import annotations

import re

from millstream.model.address import Address

GROUP = "g"
"""The one consumer group of a queue's stream."""

RELEASED = "!released"
SUSPECTS = "!suspects"
"""Pseudo-consumers: whose pending list holds what was handed back, and what is set aside to run alone."""

_QUEUE_SUFFIX = {
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
"""Of a group's dead letters as a queue; nothing is ever kept or waited for there."""

_TOPIC_SUFFIX = {
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
    "queues": ":queues",
    "topics": ":opened",
    "prefixes": ":prefixes",
    "workers": ":workers",
    "worker": ":w:",
    "control": ":m:",
    "answer": ":a:",
}


def queue_keys(namespace: str, address: Address) -> dict[str, str]:
    """The keys at an address, by word; ``ending``, ``given``, ``sender`` and ``answer`` are prefixes. A group has its topic's
    too."""
    if address.is_queue:
        tag = f"{{{namespace}:q:{address}}}"
        return {word: tag + suffix for word, suffix in _QUEUE_SUFFIX.items()}
    keys = topic_keys(namespace, address.log)
    if not address.group:
        return keys
    suffixes = _OF_LETTERS if address.is_dead else _QUEUE_SUFFIX
    return keys | {word: f"{keys['topic']}:g:{address.group}{suffix}" for word, suffix in suffixes.items()}


def topic_keys(namespace: str, topic: str) -> dict[str, str]:
    """The keys of one topic, by word; ``given`` and ``sender`` are prefixes."""
    tag = f"{{{namespace}:t:{topic}}}"
    return {word: tag + suffix for word, suffix in _TOPIC_SUFFIX.items()}


_WAITERS = re.compile(r"\{.*?:[qt]:(.*)\}(?::g:(.*))?:waiters", re.DOTALL)


def address_of_waiters(key: str) -> Address:
    """Whose key of waiters this is. ValueError: it is no such key."""
    found = _WAITERS.fullmatch(key)
    if found is None:
        raise ValueError(key)
    name, group = found.groups()
    return Address(name) if group is None else Address.of_group(name, group)


def namespace_keys(namespace: str) -> dict[str, str]:
    """The keys of a namespace, by word; ``worker``, ``control`` and ``answer`` are prefixes."""
    return {word: f"{{{namespace}}}" + suffix for word, suffix in _NAMESPACE_SUFFIX.items()}


def patterns(namespace: str) -> tuple[str, str, str]:
    """What SCAN finds every key of a namespace by, and no other."""
    name = re.sub(r"[*?\[\]^\\-]", r"\\\g<0>", namespace)
    return f"{{{name}}}:*", f"{{{name}:q:*", f"{{{name}:t:*"


def channel(namespace: str, client: str) -> str:
    """The channel on which one client hears of endings it waits for."""
    return f"{{{namespace}}}:c:{client}"
