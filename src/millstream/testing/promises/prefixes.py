"""Promises about groups that subscribe to every topic with a name prefix."""

from __future__ import annotations

from millstream.broker import Post
from millstream.broker.values import BEGINNING, END
from millstream.model.address import Address
from millstream.testing.backend import BackendUnderTest, Promises, ids, promise


async def emit(backend: BackendUnderTest, topic: str, *event_ids: str) -> None:
    """Open the topic and publish events, in the order a client uses."""
    await backend.broker.open_topic(topic, {})
    await backend.broker.emit(topic, [Post(i, i.encode()) for i in event_ids])


async def take(backend: BackendUnderTest, topic: str) -> list[str]:
    address = Address.of_group(topic, "audit")
    await backend.join(f"c-{topic}", queue=address)
    return ids(await backend.take(f"c-{topic}", 100, queue=address))


async def groups(backend: BackendUnderTest, topic: str) -> list[str]:
    return [group.name for group in (await backend.broker.inspector.topic(topic)).groups]


class PrefixPromises(Promises):
    """``open_prefix`` and ``remove_prefix``."""

    @promise()
    async def test_only_topics_with_the_prefix_get_the_group(self, backend: BackendUnderTest) -> None:
        await emit(backend, "orders.eu", "1")
        await emit(backend, "other.orders.", "2")
        assert await backend.broker.open_prefix("orders.", "audit", BEGINNING) == ["orders.eu"]
        assert await groups(backend, "orders.eu") == ["audit"]
        assert await groups(backend, "other.orders.") == []
        assert await take(backend, "orders.eu") == ["1"]

    @promise()
    async def test_a_topic_opened_later_gets_the_prefix_group_before_its_first_event(self, backend: BackendUnderTest) -> None:
        await backend.broker.open_prefix("orders.", "audit", END)
        await emit(backend, "orders.us", "1", "2")
        assert await groups(backend, "orders.us") == ["audit"]
        assert await take(backend, "orders.us") == ["1", "2"]

    @promise()
    async def test_in_existing_topics_a_prefix_group_starts_at_the_given_position(self, backend: BackendUnderTest) -> None:
        await emit(backend, "orders.eu", "1")
        await backend.broker.open_prefix("orders.", "audit", END)
        await emit(backend, "orders.eu", "2")
        assert await take(backend, "orders.eu") == ["2"]

    @promise()
    async def test_a_prefix_group_removed_from_one_topic_is_created_again_at_the_beginning(
        self, backend: BackendUnderTest
    ) -> None:
        await backend.broker.open_prefix("orders.", "audit", END)
        await emit(backend, "orders.eu", "1")
        await backend.broker.remove_group(Address.of_group("orders.eu", "audit"))
        await backend.broker.open_prefix("orders.", "audit", END)
        assert await take(backend, "orders.eu") == ["1"]

    @promise()
    async def test_opening_a_prefix_again_returns_unknown_topics_and_moves_no_group(self, backend: BackendUnderTest) -> None:
        await emit(backend, "orders.eu", "1")
        await backend.broker.open_prefix("orders.", "audit", BEGINNING)
        await emit(backend, "orders.us", "2")
        assert await backend.broker.open_prefix("orders.", "audit", END, ["orders.eu"]) == ["orders.us"]
        assert await backend.broker.open_prefix("orders.", "audit", END) == ["orders.eu", "orders.us"]
        assert await take(backend, "orders.eu") == ["1"]
        assert await take(backend, "orders.us") == ["2"]

    @promise()
    async def test_removing_a_prefix_removes_its_group_from_present_and_future_topics(self, backend: BackendUnderTest) -> None:
        await emit(backend, "orders.eu", "1")
        await backend.broker.open_prefix("orders.", "audit", BEGINNING)
        await backend.broker.open_prefix("orders", "other", BEGINNING)
        assert await backend.broker.remove_prefix("orders.", "audit")
        await emit(backend, "orders.us", "2")
        assert await groups(backend, "orders.eu") == ["other"]
        assert await groups(backend, "orders.us") == ["other"]
        assert not await backend.broker.remove_prefix("orders.", "audit")

    @promise()
    async def test_removing_an_unknown_prefix_removes_nothing(self, backend: BackendUnderTest) -> None:
        await backend.broker.open_topic("orders.eu", {"audit": BEGINNING})
        await backend.broker.open_prefix("orders.e", "audit", BEGINNING)
        await backend.broker.open_prefix("orders.", "other", BEGINNING)
        await emit(backend, "orders.eu", "1")
        assert not await backend.broker.remove_prefix("orders.", "audit")
        assert await groups(backend, "orders.eu") == ["audit", "other"]
        assert await take(backend, "orders.eu") == ["1"]

    @promise()
    async def test_opening_a_topic_returns_only_the_requested_groups(self, backend: BackendUnderTest) -> None:
        await backend.broker.open_prefix("orders.", "audit", BEGINNING)
        assert await backend.broker.open_topic("orders.eu", {"billing": BEGINNING}) == ["billing"]
        assert await groups(backend, "orders.eu") == ["audit", "billing"]
