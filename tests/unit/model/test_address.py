"""Addresses: the parts of their text."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream.model.address import Address, read_address, write_address

QUEUE, TOPIC, GROUP = Address("mail"), Address.of_topic("orders"), Address.of_group("orders", "billing")


@pytest.mark.parametrize(
    ("address", "text", "name", "log", "group", "shard", "base"),
    [
        (QUEUE, "mail", "mail", "mail", "", None, "mail"),
        (QUEUE.at_shard(2), "mail:2", "mail", "mail:2", "", 2, "mail"),
        (TOPIC, "orders/", "orders", "orders", "", None, "orders/"),
        (TOPIC.at_shard(2), "orders:2/", "orders", "orders:2", "", 2, "orders/"),
        (GROUP, "orders/billing", "orders", "orders", "billing", None, "orders/billing"),
        (GROUP.at_shard(2), "orders:2/billing", "orders", "orders:2", "billing", 2, "orders/billing"),
        (GROUP.dead, "orders/billing/dead", "orders", "orders", "billing", None, "orders/billing/dead"),
        (GROUP.at_shard(2).dead, "orders:2/billing/dead", "orders", "orders:2", "billing", 2, "orders/billing/dead"),
        (
            Address.of_prefix("orders.", "billing"),
            "orders.*/billing",
            "orders.*",
            "orders.*",
            "billing",
            None,
            "orders.*/billing",
        ),
    ],
)
def test_an_address_has_the_parts_of_its_text(
    address: Address, text: str, name: str, log: str, group: str, shard: int | None, base: str
) -> None:
    assert (address, address.name, address.log, address.group, address.shard, address.base) == (
        *(text, name, log, group, shard),
        base,
    )
    assert {type(part) for part in (address.name, address.log, address.group)} == {str}


@pytest.mark.parametrize(
    ("address", "queue", "group", "dead"),
    [(QUEUE, 1, 0, 0), (TOPIC, 0, 0, 0), (GROUP, 0, 1, 0), (GROUP.dead, 0, 0, 1), (GROUP.at_shard(0), 0, 1, 0)],
)
def test_an_address_knows_whether_it_is_a_queue_a_group_or_dead_letters(
    address: Address, queue: int, group: int, dead: int
) -> None:
    assert (address.is_queue, address.is_group, address.is_dead) == (queue, group, dead)


def test_shards_returns_one_address_per_shard_or_the_address_itself_without_shards() -> None:
    assert GROUP.shards(2) == ["orders:0/billing", "orders:1/billing"]
    assert GROUP.shards(0) == [GROUP]


def test_a_group_is_sharded_like_its_topic_and_owns_its_dead_letters() -> None:
    assert (GROUP.sharded, GROUP.dead.sharded, QUEUE.sharded) == (TOPIC, TOPIC, QUEUE)
    assert (GROUP.dead.owner, GROUP.owner) == (GROUP, GROUP)


def test_dead_letters_are_described_by_their_group() -> None:
    assert (QUEUE.spoken, GROUP.spoken) == ("'mail'", "'orders/billing'")
    assert GROUP.dead.spoken == "the dead letters of 'orders/billing'"


@pytest.mark.parametrize("address", [QUEUE, TOPIC, GROUP.dead])
def test_an_address_that_is_not_a_group_is_refused_by_name(address: Address) -> None:
    with pytest.raises(ValueError, match=f"'{address}' is not the address of a group"):
        address.check_group()


def test_an_address_is_encoded_as_text_and_other_types_are_refused() -> None:
    sent = msgspec.json.encode([GROUP], enc_hook=write_address)
    assert msgspec.json.decode(sent, type=list[Address], dec_hook=read_address) == [GROUP]
    with pytest.raises(NotImplementedError, match="object cannot be encoded"):
        msgspec.json.encode(object(), enc_hook=write_address)
    unknown: Any = complex
    with pytest.raises(NotImplementedError, match="complex cannot be decoded"):
        msgspec.json.decode(b'"1"', type=unknown, dec_hook=read_address)
