"""The least rights of a Redis user that Millstream needs, as an ACL rule."""

from __future__ import annotations

import re
from importlib import resources

from millstream.backends.redis.keys import channel, patterns
from millstream.url import Url

COMMANDS = (
    "blpop",
    "client|id",
    "client|unblock",
    "evalsha",
    "hget",
    "hmget",
    "info",
    "ping",
    "publish",
    "script|load",
    "set",
    "smembers",
    "subscribe",
    "time",
    "wait",
    "xgroup|setid",
    "xrange",
    "xread",
    "zrange",
)
"""Commands that Millstream sends itself, or that its scripts call by a variable. The others are read from the scripts."""

OF_A_CLUSTER = ("asking", "cluster|info", "cluster|nodes", "cluster|slots")

_CALLED = re.compile(r"redis\.p?call\('([A-Z]+)'(?:, '([A-Z]+)')?")
_CONTAINERS = ("XGROUP", "XINFO")
"""Commands whose rights are granted per subcommand."""


def acl(url: Url, namespace: str, user: str) -> str:
    """Return the command that creates a user with the least rights for a namespace. Replace ``PASSWORD`` in it."""
    commands = {*COMMANDS, *_of_scripts(), *(OF_A_CLUSTER if url.is_cluster else ()), *_of_options(url)}
    keys = [f"~{pattern}" for pattern in patterns(namespace)]
    channels = f"&{patterns(namespace)[0].removesuffix('*')}{channel('', '').rpartition('}:')[2]}*"
    rights = [f"+{command}" for command in sorted(commands)]
    return " ".join(["ACL SETUSER", user, "on", ">PASSWORD", "resetkeys", *keys, "resetchannels", channels, "-@all", *rights])


def _of_options(url: Url) -> set[str]:
    return {*(("select",) if url.db else ()), *(("client|setname",) if "client_name" in url.options else ())}


def _of_scripts() -> set[str]:
    """Return the commands that the scripts call."""
    folder = resources.files("millstream.backends.redis").joinpath("lua")
    files = [*folder.iterdir(), *folder.joinpath("lib").iterdir()]
    called = {
        found.groups()
        for file in files
        if file.name.endswith(".lua")
        for found in _CALLED.finditer(file.read_text(encoding="utf-8"))
    }
    return {f"{name}|{sub}".lower() if name in _CONTAINERS else str(name).lower() for name, sub in called}
