"""The namespace of a benchmark: erasing it deletes its own keys and no others."""

from __future__ import annotations

import pytest
from redis import Redis

from millstream import Millstream
from millstream.backends.redis.sandbox import Sandbox
from millstream.errors import BrokerUnavailable


@pytest.mark.parametrize("namespace", ["bench-1", "b*", "b?[a-z]", "back\\slash^"])
def test_erasing_a_namespace_deletes_only_its_keys(valkey_server: str, namespace: str) -> None:
    app = Millstream(valkey_server, namespace=namespace)

    @app.task
    async def greet(name: str) -> None: ...

    others = {"{bench-1x}:queues", "{bxx}:queues", "{bxx:q:default}:s", "{bxa:q:default}:s", "{back\\slash}:queues", "plain"}
    sandbox = Sandbox(valkey_server, namespace)
    with Redis.from_url(valkey_server) as client:
        for key in others:
            client.set(key, "somebody's")
        before = set(client.keys())
        app.enqueue_many_sync(greet.bind(str(n)) for n in range(3))
        written = set(client.keys()) - before
        assert len(written) >= 3
        assert sandbox.erase() == len(written)
        assert set(client.keys()) == before
        assert sandbox.erase() == 0
        assert sandbox.used_memory() > 0
        client.delete(*others)


def test_an_unreachable_server_raises_broker_unavailable() -> None:
    sandbox = Sandbox("unix:///nowhere/at/all", "bench")
    with pytest.raises(BrokerUnavailable, match=r"^unix:///nowhere/at/all cannot be reached: "):
        sandbox.used_memory()
