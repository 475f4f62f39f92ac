"""The outbox: few requests, in order, one in flight, and a separate answer for every waiter."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import pytest

from millstream.aio import backoff
from millstream.broker import Post, Receipt
from millstream.client import outbox as outbox_module
from millstream.client.outbox import MAX_BYTES, MAX_POSTS, Answer, Outbox
from millstream.errors import BrokerRefused, BrokerUnavailable
from millstream.model.address import Address
from tests.stage import looped

Reply = Callable[[list[Post]], list[Receipt]]


def accept(posts: list[Post]) -> list[Receipt]:
    return [Receipt.CREATED for _ in posts]


def away(posts: list[Post]) -> list[Receipt]:
    raise BrokerUnavailable("the server is away")


class Server:
    """Answers publish requests as scripted."""

    def __init__(self, *replies: Reply, hold: bool = False) -> None:
        self.calls: list[list[str]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.replies = list(replies)
        self.open = asyncio.Event()
        self.called = asyncio.Event()
        if not hold:
            self.open.set()

    async def publish(self, posts: list[Post], sender: str) -> list[Receipt]:
        assert sender == "me"
        self.calls.append([post.id for post in posts])
        self.called.set()
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self.open.wait()
            reply = self.replies.pop(0) if self.replies else accept
            return reply(posts)
        finally:
            self.in_flight -= 1


class Sender:
    """An outbox with short helper methods."""

    def __init__(self, server: Server) -> None:
        self.outbox = Outbox(Address("mail"), "me", server.publish)

    def put(self, count: int = 1, size: int = 10) -> asyncio.Future[Answer]:
        posts: list[Post] = []
        for _ in range(count):
            self.outbox.serial += 1
            posts.append(Post(f"me-{self.outbox.serial}", b"x" * size, "task", self.outbox.serial))
        return self.outbox.put(posts, count * size)

    async def send(self) -> Answer:
        self.outbox.serial += 1
        return await self.outbox.send(Post(f"me-{self.outbox.serial}", b"x" * 10, "task", self.outbox.serial))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the patience run out almost immediately."""
    monkeypatch.setattr(outbox_module, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.001)


@looped
async def test_jobs_of_one_loop_iteration_are_sent_in_one_request() -> None:
    server = Server()
    sender = Sender(server)
    answers = await asyncio.gather(*[sender.put() for _ in range(5)])
    assert server.calls == [["me-1", "me-2", "me-3", "me-4", "me-5"]]
    assert answers == [[Receipt.CREATED]] * 5


@looped
async def test_jobs_added_while_a_request_is_in_flight_are_sent_in_the_next_request() -> None:
    server = Server(hold=True)
    sender = Sender(server)
    first = sender.put()
    await server.called.wait()
    rest = [sender.put() for _ in range(3)]
    server.open.set()
    await asyncio.gather(first, *rest)
    assert server.calls == [["me-1"], ["me-2", "me-3", "me-4"]]
    assert server.most_in_flight == 1


@looped
async def test_the_number_of_messages_per_request_is_limited() -> None:
    server = Server()
    sender = Sender(server)
    await asyncio.gather(*[sender.put() for _ in range(2 * MAX_POSTS + 1)])
    assert [len(call) for call in server.calls] == [MAX_POSTS, MAX_POSTS, 1]
    assert server.most_in_flight == 1


@looped
async def test_the_bytes_per_request_are_limited_and_a_larger_message_is_sent_alone() -> None:
    server = Server()
    sender = Sender(server)
    await asyncio.gather(*[sender.put(size=size) for size in (MAX_BYTES // 2, MAX_BYTES // 2, 1, 3 * MAX_BYTES, 1)])
    assert server.calls == [["me-1", "me-2"], ["me-3"], ["me-4"], ["me-5"]]


@looped
async def test_each_waiter_receives_its_own_answer() -> None:
    server = Server(lambda posts: [Receipt.CREATED, Receipt.FULL, Receipt.EXISTS, Receipt.CONFLICT])
    sender = Sender(server)
    answers = await asyncio.gather(*[sender.put(count=count) for count in (1, 2, 1)])
    assert answers == [[Receipt.CREATED], [Receipt.FULL, Receipt.EXISTS], [Receipt.CONFLICT]]


@looped
async def test_cancelling_one_waiter_does_not_affect_the_request_or_other_waiters() -> None:
    server = Server(hold=True)
    sender = Sender(server)
    before, gone, after = sender.put(), sender.put(), sender.put()
    await server.called.wait()
    gone.cancel()
    server.open.set()
    assert [await before, await after] == [[Receipt.CREATED]] * 2
    assert server.calls == [["me-1", "me-2", "me-3"]]
    assert await sender.put() == [Receipt.CREATED]


@looped
async def test_a_request_that_did_not_reach_the_server_is_repeated_unchanged() -> None:
    server = Server(away, away)
    sender = Sender(server)
    answers = await asyncio.gather(*[sender.put(), sender.put()])
    assert answers == [[Receipt.CREATED]] * 2
    assert server.calls == [["me-1", "me-2"]] * 3


@looped
async def test_when_patience_runs_out_each_waiter_receives_its_own_ids(hasty: None) -> None:
    server = Server(*[away] * 1000)
    sender = Sender(server)
    answers = await asyncio.gather(sender.put(), sender.put(count=2))
    assert all(isinstance(answer, BrokerUnavailable) for answer in answers)
    assert [answer.job_ids for answer in answers if isinstance(answer, BrokerUnavailable)] == [("me-1",), ("me-2", "me-3")]
    server.replies.clear()
    assert await sender.put() == [Receipt.CREATED], "the next job is not held up"
    assert server.calls[-1] == ["me-4"]


@looped
async def test_a_server_that_never_answers_raises_after_the_patience(hasty: None) -> None:
    server = Server(hold=True)
    sender = Sender(server)
    answer = await sender.put()
    assert isinstance(answer, BrokerUnavailable)
    assert "did not answer" in str(answer)


@looped
async def test_patience_starts_at_the_first_failed_request_even_if_the_next_one_hangs(hasty: None) -> None:
    server = Server(away)
    sender = Sender(server)
    answer = sender.put()
    await server.called.wait()
    server.open.clear()
    server.called.clear()
    told = await answer
    assert isinstance(told, BrokerUnavailable)
    assert "the server is away" in str(told), "the error contains the cause, not only the missing reply"
    server.open.set()


@looped
async def test_time_in_the_queue_of_a_healthy_server_does_not_use_up_patience(hasty: None) -> None:
    server = Server(hold=True)
    sender = Sender(server)
    first = sender.put()
    await server.called.wait()
    queued = sender.put()
    # The job has waited longer than the patience, while the server was healthy and busy with earlier requests.
    sender.outbox._waiting[0].since -= 1000.0
    server.open.set()
    assert [await first, await queued] == [[Receipt.CREATED]] * 2


@looped
async def test_a_job_added_during_an_outage_has_its_own_patience(hasty: None) -> None:
    server = Server(*[away] * 1000)
    sender = Sender(server)
    first = sender.put()
    await server.called.wait()
    second = sender.put()
    sender.outbox._waiting[0].since += 1000.0  # simulate a job that was added long after the first
    assert isinstance(await first, BrokerUnavailable)
    assert not second.done(), "the later job is tried for the full patience"
    server.replies.clear()
    assert await second == [Receipt.CREATED]


@looped
async def test_a_refusal_is_raised_immediately() -> None:
    def refuse(posts: list[Post]) -> list[Receipt]:
        raise BrokerRefused("wrong password")

    server = Server(refuse)
    sender = Sender(server)
    answers = await asyncio.gather(sender.put(), sender.put())
    assert [type(answer) for answer in answers] == [BrokerRefused, BrokerRefused]
    assert len(server.calls) == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks need Python 3.12")
@looped
async def test_the_outbox_works_with_eager_tasks() -> None:
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]
    server = Server()
    sender = Sender(server)
    for _ in range(3):
        assert await sender.put() == [Receipt.CREATED]
    assert server.calls == [["me-1"], ["me-2"], ["me-3"]]


@looped
async def test_flush_waits_for_everything_that_was_added() -> None:
    server = Server()
    sender = Sender(server)
    answer = sender.put()
    await sender.outbox.flush()
    assert answer.done()
    await sender.outbox.flush()


def test_every_waiter_gets_an_error_when_the_event_loop_shuts_down() -> None:
    answers: list[asyncio.Future[Answer]] = []

    async def main() -> None:
        server = Server(hold=True)
        sender = Sender(server)
        answers.append(sender.put())
        await server.called.wait()
        answers.append(sender.put())

    asyncio.run(main())
    for answer in answers:
        result = answer.result()
        assert isinstance(result, BrokerUnavailable)
        assert "shut down" in str(result)


# -- one caller at a time, sent directly without the pump --------------------------------------------------------------------


async def alone(server: Server) -> Sender:
    """Return a sender whose next request is sent directly."""
    sender = Sender(server)
    assert await sender.send() == [Receipt.CREATED]
    return sender


@looped
async def test_a_single_caller_is_answered_request_by_request() -> None:
    server = Server()
    sender = await alone(server)
    for _ in range(3):
        assert await sender.send() == [Receipt.CREATED]
    assert server.calls == [["me-1"], ["me-2"], ["me-3"], ["me-4"]]


@looped
async def test_jobs_added_during_a_direct_request_are_sent_after_it_in_one_request() -> None:
    server = Server()
    sender = await alone(server)
    server.open.clear()
    server.called.clear()
    first = asyncio.create_task(sender.send())
    await server.called.wait()
    others = [asyncio.create_task(sender.send()) for _ in range(3)]
    await asyncio.sleep(0)
    server.open.set()
    assert await asyncio.gather(first, *others) == [[Receipt.CREATED]] * 4
    assert server.calls == [["me-1"], ["me-2"], ["me-3", "me-4", "me-5"]]
    assert server.most_in_flight == 1


@looped
async def test_cancelling_a_direct_caller_does_not_affect_other_waiters() -> None:
    server = Server()
    sender = await alone(server)
    server.open.clear()
    server.called.clear()
    first = asyncio.create_task(sender.send())
    await server.called.wait()
    second = asyncio.create_task(sender.send())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    server.open.set()
    assert await second == [Receipt.CREATED]
    assert server.calls == [["me-1"], ["me-2"], ["me-3"]]


@looped
async def test_a_direct_request_that_did_not_reach_the_server_is_repeated_before_later_jobs() -> None:
    server = Server()
    sender = await alone(server)
    server.replies = [away]
    server.open.clear()
    server.called.clear()
    first = asyncio.create_task(sender.send())
    await server.called.wait()
    second = asyncio.create_task(sender.send())
    await asyncio.sleep(0)
    server.open.set()
    assert list(await asyncio.gather(first, second)) == [[Receipt.CREATED]] * 2
    assert server.calls == [["me-1"], ["me-2"], ["me-2", "me-3"]]


@looped
async def test_a_direct_caller_receives_its_id_when_the_server_never_answers(hasty: None) -> None:
    server = Server()
    sender = await alone(server)
    server.open.clear()
    answer = await sender.send()
    assert isinstance(answer, BrokerUnavailable)
    assert answer.job_ids == ("me-2",)
    current = asyncio.current_task()
    assert current is not None
    assert not current.cancelling()
    server.open.set()
    assert await sender.send() == [Receipt.CREATED]


@looped
async def test_flush_waits_for_a_direct_request() -> None:
    server = Server()
    sender = await alone(server)
    server.open.clear()
    server.called.clear()
    sending = asyncio.create_task(sender.send())
    await server.called.wait()
    flushing = asyncio.create_task(sender.outbox.flush())
    await asyncio.sleep(0)
    assert not flushing.done()
    server.open.set()
    await flushing
    assert await sending == [Receipt.CREATED]
