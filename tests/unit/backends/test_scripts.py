"""Every script can run on a cluster while its slot moves."""

from __future__ import annotations

from importlib import resources

import pytest

from millstream.backends.redis.keys import namespace_keys, queue_keys
from millstream.backends.redis.scripts import NEVER_EXIST, Script
from millstream.model.address import Address

NAMES = sorted(
    file.name.removesuffix(".lua")
    for file in resources.files("millstream.backends.redis").joinpath("lua").iterdir()
    if file.name.endswith(".lua")
)


@pytest.mark.parametrize("of_group", [False, True], ids=["queue", "group"])
@pytest.mark.parametrize("name", NAMES)
def test_a_script_that_writes_to_several_keys_declares_one_that_never_exists(name: str, of_group: bool) -> None:
    script = Script(name, of_group=of_group)
    writes = "no-writes" not in script.text.partition("\n")[0]
    assert not writes or len(script.words) == 1 or not NEVER_EXIST.isdisjoint(script.words)


@pytest.mark.parametrize("address", ["mail", "mail:3", "orders/", "orders/billing", "orders/billing/dead", "orders:1/billing"])
def test_all_keys_of_an_address_share_one_hash_tag(address: str) -> None:
    keys = queue_keys("shop", Address(address))
    assert len({key[: key.index("}") + 1] for key in keys.values()}) == 1


def test_all_keys_of_a_namespace_share_one_hash_tag() -> None:
    assert {key[: key.index("}") + 1] for key in namespace_keys("shop").values()} == {"{shop}"}
