"""The command line on ordered and sharded topics and queues: show, clear, reshard and send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from millstream import Millstream, Reject, RetryPolicy
from millstream.cli.main import run
from millstream.model.ordering import shard_of_key
from tests.stage import PATIENCE, new_app, place

Scenario = Callable[[Millstream], Awaitable[Any]]


class Console:
    """The command line in one namespace of the server, with an app that has an ordered topic and an ordered queue."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(place, "url", url)
        monkeypatch.delenv("MILLSTREAM_APP", raising=False)
        self.app = app = new_app(retry=RetryPolicy(0))
        self._where = ["--url", url, "--namespace", app.settings.namespace]
        self._capsys = capsys
        self.spoilt = True
        self.got: list[str] = []
        app.queue("mail", shards=2)
        self.orders = app.topic("orders", str, order_by=lambda order: order.partition(" ")[0], shards=2, on_failure="stop")

        @app.task(queue="mail", order_by=lambda to, **_: to, on_failure="stop")
        async def send(to: str, number: int) -> int:
            self._handle(f"{to} {number}")
            return number

        @self.orders.subscribe("billing")
        async def bill(order: str) -> None:
            self._handle(order)

        self.send = send

    def _handle(self, what: str) -> None:
        if self.spoilt and what.endswith("0"):
            raise Reject("spoilt")
        self.got.append(what)

    def __call__(self, *words: str, code: int = 0, err: str = "") -> str:
        """Run a command, check its exit code and error line, and return its output."""
        self._capsys.readouterr()
        answer = run([*words, *self._where])
        printed, error = self._capsys.readouterr()
        assert (answer, err in error) == (code, True), (answer, error)
        return printed

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))

    def do(self, scenario: Scenario) -> Any:
        async def connected() -> Any:
            async with asyncio.timeout(PATIENCE), self.app:
                return await scenario(self.app)

        return asyncio.run(connected())

    def work(self, until: Scenario) -> None:
        """Run a worker until a condition is true."""

        async def scenario(app: Millstream) -> None:
            async with app.worker():
                while not await until(app):
                    await asyncio.sleep(0.01)

        self.do(scenario)

    def stop_ann(self) -> None:
        """Stop the key "ann" in the topic and in the queue: all its messages are dead, and the others are done."""

        async def publish(app: Millstream) -> None:
            await self.orders.publish_many(["ann 0", "ann 1", "ann 2", "bob 1"])
            await app.enqueue_many([self.send.bind("ann", 0), self.send.bind("ann", 1), self.send.bind("bob", 1)])

        async def ended(app: Millstream) -> bool:
            states = [await app.inspector.queue("orders/billing"), await app.inspector.queue("mail")]
            return [state.dead for state in states] == [3, 2] and len(self.got) == 2

        self.do(publish)
        self.work(ended)


@pytest.fixture
def console(embedded_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Console:
    return Console(embedded_url, capsys, monkeypatch)


def columns(text: str, line: int = 0) -> list[str]:
    return text.splitlines()[line].split()


# -- showing ---------------------------------------------------------------------------------------------------------------


def test_lists_show_shards_and_stopped_keys_under_the_base_name(console: Console) -> None:
    console.stop_ann()
    assert columns(console("queues"))[3:] == ["SCHEDULED", "SHARDS", "STOPPED", "DEAD", "PAUSED", "WORKERS"]
    (queue,) = console.json("queues")
    assert (queue["queue"], queue["shards"], queue["blocked"], queue["stopped"], queue["dead"]) == ("mail", 2, 0, 1, 2)
    assert columns(console("groups"))[-5:] == ["SCHEDULED", "STOPPED", "DEAD", "PAUSED", "CONSUMERS"]
    (group,) = console.json("groups")
    assert (group["topic"], group["group"], group["stopped"], group["blocked"]) == ("orders", "billing", 1, 0)
    assert columns(console("topics")) == ["TOPIC", "SHARDS", "LENGTH", "DELAYED", "PUBLISHED", "GROUPS"]
    (topic,) = console.json("topics")
    assert (topic["topic"], topic["shards"], topic["published"]) == ("orders", 2, 4)


def test_a_topic_shows_its_shards_and_its_stopped_keys(console: Console) -> None:
    console.stop_ann()
    shown = console("topics", "show", "orders")
    assert "\nshards     2\n" in shown
    assert "orders:0" in shown
    assert "stopped keys" in shown
    assert columns(shown, -2) == ["QUEUE", "KEY", "SINCE", "WAITING", "BY"]
    assert columns(shown, -1)[:2] == ["orders/billing", "ann"]
    fields = console.json("topics", "show", "orders")
    (stopped,) = fields["stopped_keys"]
    assert (stopped["queue"], stopped["key"], stopped["waiting"]) == ("orders/billing", "ann", 3)
    assert [each["shard"] for each in fields["per_shard"]] == ["orders:0", "orders:1"]
    assert sum(each["published"] for each in fields["per_shard"]) == 4


def test_a_queue_shows_its_stopped_keys(console: Console) -> None:
    console.stop_ann()
    shown = console("queues", "show", "mail")
    assert columns(shown, -1)[:2] == ["mail", "ann"]
    (stopped,) = console.json("queues", "show", "mail")["stopped_keys"]
    assert (stopped["key"], stopped["waiting"]) == ("ann", 2)


def test_dead_letters_show_their_key_and_are_purged_from_all_shards(console: Console) -> None:
    console.stop_ann()
    assert "KEY" in columns(console("dead"))
    rows = console.json("dead")
    assert {(row["queue"], row["key"]) for row in rows} == {("orders/billing", "ann"), ("mail", "ann")}
    shown = console.json("dead", "show", rows[0]["id"])
    assert (shown["key"], shown["queue"]) == ("ann", rows[0]["queue"])
    assert shown["shard"] == shard_of_key(b"ann", 2)
    assert console("dead", "replay", "--queue", "mail") == "0 dead letters replayed\n"  # the key is stopped
    assert console("dead", "purge", "--queue", "mail", "--yes") == "2 dead letters deleted\n"
    one = next(row["id"] for row in rows if row["queue"] != "mail")
    assert console("dead", "purge", one, "--yes") == "1 dead letter deleted\n"


def test_blocked_jobs_are_listed_and_cancelled(console: Console) -> None:
    app = console.app

    @app.task(queue="mail", order_by=lambda to, **_: to, on_failure="stop", retry=RetryPolicy(3, delay=600.0, jitter=False))
    async def later(to: str, number: int) -> None:
        raise ValueError("not now")

    async def scenario(app: Millstream) -> list[str]:
        jobs = await app.enqueue_many([later.bind("ann", n) for n in range(3)])
        async with app.worker():
            while (await app.inspector.queue("mail")).blocked < 2:
                await asyncio.sleep(0.01)
        return [job.id for job in jobs]

    first, second, third = console.do(scenario)
    rows = console.json("jobs", "--state", "blocked")
    assert [(row["id"], row["status"], row["queue"]) for row in rows] == [
        (second, "blocked", "mail"),
        (third, "blocked", "mail"),
    ]
    assert console.json("jobs", "show", second)["status"] == "blocked"
    assert "BLOCKED" in columns(console("queues"))
    console("jobs", "cancel", second, "--yes")
    assert [row["id"] for row in console.json("jobs", "--state", "blocked")] == [third]
    assert console("queues", "purge", "mail", "--yes") == "2 jobs of queue mail cancelled\n"
    assert console.json("jobs") == []
    assert console.do(lambda app: app.job(first, queue="mail").status()) == "cancelled"


def test_pausing_a_queue_pauses_all_its_shards(console: Console) -> None:
    console.do(lambda app: console.send.enqueue("ann", 1))
    console("queues", "pause", "mail")
    assert console.json("queues")[0]["paused"] is True
    assert console.do(lambda app: app.inspector.queue("mail:0")).paused
    assert console.do(lambda app: app.inspector.queue("mail:1")).paused
    console("queues", "resume", "mail")
    assert console.json("queues")[0]["paused"] is False


# -- clearing --------------------------------------------------------------------------------------------------------------


def test_clearing_a_stopped_key_replays_its_dead_letters(console: Console) -> None:
    console.stop_ann()
    console.spoilt = False
    assert console("topics", "clear", "orders", "ann") == "key ann of topic orders is resumed; 3 dead letters replayed\n"
    assert (
        console("queues", "clear", "mail", "ann", "--replay") == "key ann of queue mail is resumed; 2 dead letters replayed\n"
    )

    async def ended(app: Millstream) -> bool:
        return len(console.got) == 7

    console.work(ended)
    anns = [what for what in console.got if what.startswith("ann")]
    assert sorted(anns) == ["ann 0", "ann 0", "ann 1", "ann 1", "ann 2"]
    assert console.json("dead") == []
    assert console.json("topics", "show", "orders")["stopped_keys"] == []


def test_a_key_is_cleared_without_replay_in_one_group(console: Console) -> None:
    console.stop_ann()
    said = console("topics", "clear", "orders", "ann", "--group", "billing", "--no-replay")
    assert said == "key ann of topic orders is resumed; its dead letters were kept\n"
    assert len(console.json("dead", "--queue", "orders/billing")) == 3


def test_a_key_that_is_not_stopped_and_an_unknown_group_are_named_in_the_error(console: Console) -> None:
    console.stop_ann()
    console("topics", "clear", "orders", "bob", code=1, err="key 'bob' of topic orders is not stopped; stopped keys: ann")
    console("topics", "clear", "orders", "ann", "--group", "no", code=1, err="has no group 'no'; its groups are: billing")
    console("topics", "clear", "nothing", "ann", code=1, err="there is no topic 'nothing'")
    console("queues", "clear", "mail", "bob", code=1, err="key 'bob' of queue mail is not stopped")
    console("queues", "clear", "nothing", "ann", code=1, err="there is no queue 'nothing'")


# -- resharding ------------------------------------------------------------------------------------------------------------


def test_topics_and_queues_can_be_resharded_only_when_they_are_idle(console: Console) -> None:
    console.do(lambda app: console.orders.publish("bob 1"))
    console.do(lambda app: console.send.enqueue("bob", 1))
    console("topics", "reshard", "orders", "4", "--yes", code=1, err="1 ready")
    console("queues", "reshard", "mail", "4", "--yes", code=1, err="1 ready")

    async def ended(app: Millstream) -> bool:
        return len(console.got) == 2

    console.work(ended)
    assert console("topics", "reshard", "orders", "4", "--yes") == "topic orders has 4 shards\n"
    assert console("queues", "reshard", "mail", "3", "--yes") == "queue mail has 3 shards\n"
    assert console.json("topics")[0]["shards"] == 4
    assert console.json("queues")[0]["shards"] == 3
    assert [group["group"] for group in console.json("groups")] == ["billing"]
    console("topics", "reshard", "orders", "4", "--yes", code=1, err="topic orders already has 4 shards")
    console("topics", "reshard", "orders", "8", code=2, err="confirm with --yes")
    console("topics", "reshard", "orders", "-1", "--yes", code=2)


# -- sending ---------------------------------------------------------------------------------------------------------------


def test_publishing_to_an_ordered_topic_without_an_app_requires_a_key(console: Console) -> None:
    console.do(lambda app: app.inspector.topics())
    console(
        "publish",
        "orders",
        '"ann 1"',
        code=2,
        err="is ordered: give the app that computes the keys with --app, or a key with --key",
    )
    console("publish", "orders", '"ann 1"', "--key", "ann")
    shard = shard_of_key(b"ann", 2)
    assert console.do(lambda app: app.inspector.topic(f"orders:{shard}")).length == 1
    console("publish", "plain", '"x"', "--key", "ann", code=2, err="is not sharded")
    console("publish", "plain", '"x"')


def test_enqueueing_without_an_app_sends_the_job_to_the_shard_of_the_given_key(console: Console) -> None:
    console.do(lambda app: app.queue("mail", shards=2).resume())
    console("enqueue", "send", '["ann", 1]', "--queue", "mail", "--key", "ann")
    shard = shard_of_key(b"ann", 2)
    assert console.do(lambda app: app.inspector.queue(f"mail:{shard}")).ready == 1
    console("enqueue", "send", '["bob", 2]', "--queue", "mail")

    async def ended(app: Millstream) -> bool:
        return len(console.got) == 2

    console.work(ended)
    assert sorted(console.got) == ["ann 1", "bob 2"]
