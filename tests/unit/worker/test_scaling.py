"""Scaling without real processes: strategies, hysteresis and cooldown, the circuit breaker, and the measurements."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from millstream import DeadEvent, Millstream
from millstream.backends.memory import MemoryBroker
from millstream.broker import Post
from millstream.errors import UsageError
from millstream.model.address import Address
from millstream.model.message import ErrorNote, decode_message
from millstream.model.outcome import DONE, Outcome
from millstream.worker import codes, verdict
from millstream.worker.scaling import Backlog, Load, Metrics, Threshold
from millstream.worker.scaling.gauge import Gauge
from millstream.worker.scaling.scaler import Scaler
from millstream.worker.scaling.spec import parse_processes, parse_spec
from millstream.worker.scaling.stabilizer import Stabilizer
from millstream.worker.scaling.wanted import as_prometheus, wanted
from millstream.worker.summary import Summary
from millstream.worker.supervisor.children.circuit import FRUITLESS, PROBE_SECONDS, RESTART_SECONDS, Circuit
from tests.stage import looped, new_app


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def metrics(processes: int, *loads: Load, minimum: int = 1, maximum: int = 10) -> Metrics:
    return Metrics(processes, minimum, maximum, 32, loads)


def load(ready: int = 0, running: int = 0, rate: float | None = None, processes: int = 1, **more: Any) -> Load:
    return Load(Address("q"), ready=ready, running=running, rate=rate, consumers=processes, ours=processes, **more)


# -- the backlog strategy --------------------------------------------------------------------------------------------------


def test_backlog_wants_enough_processes_to_finish_within_the_target_time() -> None:
    assert Backlog(target=5.0)(metrics(1, load(ready=2000, rate=100.0))) == 4
    assert Backlog(target=5.0)(metrics(1, load(ready=500, rate=100.0))) == 1, "5 s is not over the target"
    assert Backlog(target=5.0)(metrics(1, load(ready=501, rate=100.0))) == 2
    assert Backlog(target=1.0)(metrics(4, load(ready=2000, rate=100.0, processes=4))) == 20


def test_backlog_uses_the_rate_and_not_only_the_depth() -> None:
    deep = 10_000
    assert Backlog()(metrics(1, load(ready=deep, rate=5_000.0))) == 1
    assert Backlog()(metrics(1, load(ready=deep, rate=1.0))) > 10


def test_without_a_known_rate_one_job_per_slot_and_second_is_assumed() -> None:
    assert Backlog(target=5.0)(metrics(1, load(ready=5 * 32, rate=None))) == 1
    assert Backlog(target=5.0)(metrics(1, load(ready=3 * 5 * 32, rate=None))) == 3
    assert Backlog(target=5.0)(metrics(1, load(ready=3 * 5 * 4, rate=None, slots=4))) == 3


def test_backlog_counts_due_and_running_jobs_but_nothing_of_a_paused_address() -> None:
    assert Backlog(target=5.0)(metrics(1, load(due=2000, rate=100.0))) == 4
    assert Backlog(target=5.0)(metrics(1, load(ready=1000, running=1000, rate=100.0))) == 4
    assert Backlog(target=5.0)(metrics(1, load(ready=2000, rate=100.0, paused=True))) == 0


def test_backlog_starts_no_process_that_would_find_nothing_to_claim() -> None:
    assert Backlog()(metrics(1, load(running=32, rate=0.01))) == 1, "all jobs are running already"
    assert Backlog()(metrics(1, load(ready=1, running=32, rate=0.01))) == 2
    assert Backlog()(metrics(1, load(ready=65, running=32, rate=0.01))) == 4


def test_backlog_scales_down_only_when_fewer_processes_are_well_within_the_target() -> None:
    assert Backlog(target=5.0)(metrics(4, load(ready=900, rate=100.0, processes=4))) == 4, "two take 4.5 s: not well within 5 s"
    assert Backlog(target=5.0)(metrics(4, load(ready=400, rate=100.0, processes=4))) == 2
    assert Backlog(target=5.0)(metrics(4, load(processes=4))) == 0


def test_backlog_keeps_the_processes_needed_for_the_incoming_rate_and_the_running_jobs() -> None:
    steady = load(running=3, rate=100.0, throughput=250.0, processes=4)
    assert Backlog()(metrics(4, steady)) == 4
    assert Backlog()(metrics(4, load(running=3, rate=100.0, throughput=70.0, processes=4))) == 1
    assert Backlog()(metrics(4, load(running=65, processes=4))) == 3


def test_backlog_adds_up_addresses_and_respects_their_maximum() -> None:
    two = [
        Load(Address("a"), ready=1000, rate=100.0, consumers=1, ours=1),
        Load(Address("b"), ready=1000, rate=100.0, consumers=1, ours=1),
    ]
    assert Backlog(target=5.0)(metrics(1, *two)) == 4
    assert Backlog(target=5.0)(metrics(1, load(ready=100_000, rate=100.0, most=3))) == 3


def test_workers_that_share_an_address_each_take_their_share_of_it() -> None:
    """Two workers with one and three processes want the same total as one worker would."""
    small = Backlog(target=5.0)(metrics(1, Load(Address("q"), ready=4000, rate=100.0, consumers=4, ours=1)))
    large = Backlog(target=5.0)(metrics(3, Load(Address("q"), ready=4000, rate=100.0, consumers=4, ours=3)))
    assert (small, large) == (2, 6)


def test_the_wanted_number_is_kept_within_its_bounds() -> None:
    assert [metrics(2, minimum=2, maximum=4).within(wanted) for wanted in (-1, 0, 3, 9)] == [2, 2, 3, 4]
    at_least_three = Load(Address("q"), consumers=1, ours=1, least=3)
    assert metrics(1, at_least_three).within(0) == 3
    elsewhere_too = Load(Address("q"), consumers=3, ours=1, least=3)
    assert metrics(1, elsewhere_too).within(0) == 1


# -- the threshold strategy of shove -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ready", "wanted"), [(0, 1), (31, 1), (32, 2), (128, 2), (129, 3), (100_000, 3)], ids=str)
def test_threshold_scales_one_step_above_twice_and_below_half_of_the_capacity(ready: int, wanted: int) -> None:
    assert Threshold()(metrics(2, load(ready=ready))) == wanted


def test_threshold_refuses_crossing_bounds() -> None:
    with pytest.raises(UsageError, match="down must be less than up"):
        Threshold(up=1.0, down=1.0)


# -- hysteresis and cooldown -------------------------------------------------------------------------------------------------


def test_a_scaling_decision_must_persist_before_it_is_carried_out() -> None:
    clock = Clock()
    stabilizer = Stabilizer(10.0, 30.0, clock)
    assert not stabilizer.passes(1, 2)
    clock.now += 9
    assert not stabilizer.passes(1, 3)
    clock.now += 1
    assert stabilizer.passes(1, 2)


@pytest.mark.parametrize("other", [2, 1], ids=["hold", "opposite"])
def test_an_interrupted_scaling_decision_starts_over(other: int) -> None:
    clock = Clock()
    stabilizer = Stabilizer(10.0, 30.0, clock)
    stabilizer.passes(2, 3)
    clock.now += 9
    stabilizer.passes(2, other)
    clock.now += 1
    assert not stabilizer.passes(2, 3)
    clock.now += 10
    assert stabilizer.passes(2, 3)


def test_no_scaling_happens_during_the_cooldown() -> None:
    clock = Clock()
    stabilizer = Stabilizer(1.0, 30.0, clock)
    stabilizer.acted()
    for _ in range(29):
        clock.now += 1
        assert not stabilizer.passes(1, 2)
    clock.now += 1
    assert stabilizer.passes(1, 2)


def test_a_scaling_decision_interrupted_during_the_cooldown_starts_over() -> None:
    clock = Clock()
    stabilizer = Stabilizer(10.0, 30.0, clock)
    stabilizer.acted()
    stabilizer.passes(1, 2)
    clock.now += 15
    stabilizer.passes(1, 1)
    clock.now += 15
    assert not stabilizer.passes(1, 2)


# -- the scaler --------------------------------------------------------------------------------------------------------------


class Team:
    """Processes that start and stop immediately, if they are allowed to."""

    def __init__(self, processes: int = 1, idle: int = 100) -> None:
        self.processes, self.minimum, self.maximum = processes, 1, 4
        self.idle = idle
        self.closed = self.refuses = ""

    def grow(self, count: int) -> str:
        self.processes += 0 if self.refuses else count
        return self.refuses

    async def shrink(self, count: int) -> int:
        gone = min(count, self.idle)
        self.processes -= gone
        return gone


def scaler(team: Team, wants: Callable[[], int], clock: Clock, cooldown: float = 30.0) -> Scaler:
    async def measure() -> Metrics:
        return Metrics(team.processes, team.minimum, team.maximum, 32)

    async def strategy(metrics: Metrics) -> int:
        return wants()

    async def changed() -> None: ...

    return Scaler(team, measure, strategy, Stabilizer(0.0, cooldown, clock), 1.0, changed)


@looped
async def test_decisions_are_counted_and_a_refusal_starts_no_cooldown() -> None:
    team, clock = Team(), Clock()
    scale = scaler(team, lambda: 3, clock)
    team.refuses = "they die"
    await scale.once()
    await scale.once()
    assert (team.processes, scale.decisions) == (1, {"up": 0, "down": 0, "hold": 0, "refused": 2})
    assert "from 1 to 3 processes is refused: they die" in scale.last
    team.refuses = ""
    await scale.once()
    assert (team.processes, scale.decisions["up"]) == (3, 1), "the refusals did not start a cooldown"
    await scale.once()
    assert scale.decisions["hold"] == 1


@looped
async def test_only_idle_processes_are_stopped_and_the_others_later() -> None:
    team, clock = Team(processes=4, idle=1), Clock()
    scale = scaler(team, lambda: 1, clock, cooldown=0.0)
    await scale.once()
    assert team.processes == 3
    team.idle = 0
    await scale.once()
    assert (team.processes, scale.decisions["refused"]) == (3, 1)
    team.idle = 2
    await scale.once()
    assert (team.processes, scale.decisions["down"]) == (1, 2)


@looped
async def test_a_manual_process_count_overrides_the_strategy_until_its_hold_ends() -> None:
    team, clock = Team(), Clock()
    scale = scaler(team, lambda: 1, clock, cooldown=0.0)
    answer = await scale.by_hand(4, hold=3600.0)
    assert (answer.done, answer.processes, answer.text) == (True, 4, "number of processes: 4 (before: 1)")
    await scale.once()
    assert team.processes == 4
    assert scale.by_hand_until > 0
    assert (await scale.by_hand(2, hold=0.0)).text == "number of processes: 2 (before: 4)"
    await scale.once()
    assert team.processes == 1, "without a hold the strategy decides again"


@looped
async def test_after_manual_scaling_busy_processes_stop_once_they_are_idle() -> None:
    team, clock = Team(processes=3, idle=0), Clock()
    scale = scaler(team, lambda: 3, clock)
    answer = await scale.by_hand(1, hold=3600.0)
    assert answer.text == "number of processes: 3; 2 more will end when idle"
    team.idle = 2
    await scale.once()
    assert team.processes == 1


@looped
async def test_a_refused_manual_scaling_says_why() -> None:
    team = Team()
    scale = scaler(team, lambda: 1, Clock())
    assert (await scale.by_hand(5, 1.0)).text == "5 is outside the bounds 1..4 of --processes"
    team.maximum = 1
    assert "was started with --processes 1; to scale it, start it with a range" in (await scale.by_hand(2, 1.0)).text
    team.closed = "the worker is stopping"
    assert (await scale.by_hand(1, 1.0)).text == "the worker is stopping"
    assert (team.processes, scale.decisions["refused"]) == (1, 3)


@looped
async def test_an_impossible_process_count_or_hold_is_refused_by_the_client_and_the_supervisor() -> None:
    team = Team()
    scale = scaler(team, lambda: 1, Clock())
    for processes, hold in ((10**30, 1.0), (2, 1e18), (2, float("inf")), (2, float("nan")), (2, -1.0)):
        answer = await scale.by_hand(processes, hold)
        assert not answer.done and "must be a" in answer.text
    assert (team.processes, scale.by_hand_until) == (1, 0.0)
    app = new_app()
    with pytest.raises(UsageError, match="processes must be a whole number from 0 to 10,000"):
        await app.scale(10**30)
    with pytest.raises(UsageError, match=r"hold must be a number of seconds from 0 to 31,622,400 \(one year\), not 1e"):
        await app.scale(2, hold=1e18)


# -- on a command line -------------------------------------------------------------------------------------------------------


def test_strategies_are_written_with_their_parameters() -> None:
    spec = parse_spec("backlog,target=2.5,cooldown=1")
    assert (spec.strategy(), spec.poll, spec.hysteresis, spec.cooldown) == (Backlog(2.5), 1.0, 2.0, 1.0)
    spec = parse_spec("threshold, up=3, down=1")
    assert (spec.strategy(), spec.poll, spec.hysteresis, spec.cooldown) == (Threshold(3, 1), 5.0, 10.0, 30.0)
    assert parse_spec("shop.scaling:Mine,poll=2").own == "shop.scaling:Mine"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fastest", "unknown strategy 'fastest'"),
        ("backlog,up=2", "has no setting 'up'"),
        ("backlog,target=soon", "must be a number, not 'soon'"),
        ("backlog,target=0", "target must be"),
        ("backlog,poll=0", "0.1 or more"),
        ("threshold,up=1,down=2", "down must be less than up"),
        ("shop:Mine,target=2", "has no setting 'target'"),
    ],
)
def test_an_invalid_strategy_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_spec(text)


def test_processes_are_a_number_or_a_range() -> None:
    assert [parse_processes(text) for text in ("1", "4", "1..4", "2 .. 2")] == [(1, 1), (4, 4), (1, 4), (2, 2)]
    for wrong in ("0", "0..2", "3..2", "-1", "1..", "many", "1-4", ""):
        with pytest.raises(UsageError, match="processes must be"):
            parse_processes(wrong)


# -- the circuit breaker -----------------------------------------------------------------------------------------------------


def test_a_process_that_dies_at_start_is_restarted_ever_later_and_then_not_at_all() -> None:
    circuit, pauses = Circuit(), list[float]()
    for _ in range(FRUITLESS - 1):
        assert not circuit.died(0.1, blameless=False)
        pauses.append(circuit.pause)
    assert pauses == list(RESTART_SECONDS[1:FRUITLESS])
    assert circuit.died(0.1, blameless=False)
    assert (circuit.is_open, circuit.pause) == (True, PROBE_SECONDS)


def test_a_process_that_lived_for_a_while_resets_the_count_of_failed_starts() -> None:
    circuit = Circuit()
    for _ in range(3 * FRUITLESS):
        for _ in range(FRUITLESS - 1):
            assert not circuit.died(0.1, blameless=False)
        assert not circuit.died(60.0, blameless=False)
        assert circuit.pause == 0.0


def test_jobs_that_kill_their_process_slow_down_restarts_but_never_open_the_circuit() -> None:
    circuit = Circuit()
    for _ in range(10 * FRUITLESS):
        assert not circuit.died(0.1, blameless=True)
    assert circuit.pause == RESTART_SECONDS[-1]


def test_a_probe_that_dies_reopens_the_circuit_and_one_that_serves_closes_it() -> None:
    circuit = Circuit()
    while not circuit.died(0.1, blameless=False):
        pass
    assert circuit.died(0.1, blameless=False)
    circuit.serves()
    assert (circuit.is_open, circuit.pause) == (False, 0.0)


# -- measurements ------------------------------------------------------------------------------------------------------------


class Floor:
    """A memory backend with one consumer, and a clock for the gauge."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker, self.clock, self._serial = broker, Clock(), 0
        self.gauge = Gauge(broker.inspector, self.clock)

    async def publish(self, count: int, **fields: Any) -> None:
        for _ in range(count):
            self._serial += 1
            await self.broker.publish(Address("q"), [Post(f"j{self._serial}", b"", **fields)])

    async def settle(self, count: int, seconds: float, consumer: str = "c") -> Load:
        entries = (await self.broker.claim(Address("q"), consumer, count)).entries
        await self.broker.settle(Address("q"), consumer, [Outcome(DONE, entry.ref, "") for entry in entries])
        self.clock.now += seconds
        return (await self.gauge.read([Address("q")]))[0]


def floored(test: Callable[[Floor], Awaitable[None]]) -> Callable[[], None]:
    @looped
    async def run() -> None:
        broker = MemoryBroker()
        await broker.open()
        await broker.join(Address("q"), "c", 600.0)
        await test(Floor(broker))

    return run


@floored
async def test_a_rate_is_measured_while_jobs_wait(floor: Floor) -> None:
    await floor.publish(100)
    assert (await floor.gauge.read([Address("q")]))[0].rate is None
    assert (await floor.settle(10, 1.0)).rate is None, "one second is too short"
    found = await floor.settle(10, 1.0)
    assert (found.rate, found.throughput, found.ready, found.consumers) == (10.0, 10.0, 80, 1)


@floored
async def test_without_waiting_jobs_no_rate_is_measured_but_a_known_rate_can_rise(floor: Floor) -> None:
    await floor.publish(1)
    await floor.gauge.read([Address("q")])
    for _ in range(5):
        await floor.publish(1)
        assert (await floor.settle(2, 1.0)).rate is None
    await floor.publish(100)
    await floor.gauge.read([Address("q")])
    for _ in range(4):
        await floor.settle(10, 1.0)
    assert (await floor.settle(60, 1.0)).rate == 60.0
    await floor.publish(5)
    assert (await floor.settle(5, 10.0)).rate == 60.0


@floored
async def test_without_finished_jobs_the_rate_is_at_most_one_job_in_that_time(floor: Floor) -> None:
    await floor.publish(100)
    await floor.broker.claim(Address("q"), "c", 32)
    await floor.gauge.read([Address("q")])
    assert (await floor.settle(0, 4.0)).rate == 0.25
    assert (await floor.settle(0, 4.0)).rate == 0.125


@floored
async def test_the_measured_rate_is_divided_among_the_processes(floor: Floor) -> None:
    await floor.broker.join(Address("q"), "d", 600.0)
    await floor.publish(100)
    await floor.gauge.read([Address("q")])
    assert (await floor.settle(40, 2.0)).rate == 10.0


@floored
async def test_due_jobs_count_although_nothing_was_claimed_since_they_became_due(floor: Floor) -> None:
    floor.broker.set_clock(1_800_000_000.0)
    await floor.publish(3, delay=10.0)
    await floor.publish(2, delay=100.0)
    assert (await floor.gauge.read([Address("q")]))[0].due == 0
    floor.broker.set_clock(1_800_000_020.0)
    (found,) = await floor.gauge.read([Address("q")])
    assert (found.due, found.waiting) == (3, 3)


@floored
async def test_suspects_want_one_process_and_no_more(floor: Floor) -> None:
    await floor.publish(3)
    for life in ("x", "y", "z"):
        await floor.broker.join(Address("q"), life, 600.0)
        await floor.broker.claim(Address("q"), life, 3)
        await floor.broker.leave(Address("q"), life)
    assert (await floor.broker.claim(Address("q"), "c", 3)).suspects
    (found,) = await floor.gauge.read([Address("q")])
    assert (found.ready, found.waiting, found.suspects) == (0, 0, 3)
    found = await floor.settle(0, 10.0)
    assert found.rate is None, "suspects say nothing about the speed of a process"
    (one,) = await wanted(floor.broker.inspector, Backlog(target=5.0), window=0.0)
    assert (one.wanted, one.ready) == (1, 0)
    await floor.broker.pause(Address("q"))
    (none,) = await wanted(floor.broker.inspector, Backlog(target=5.0), window=0.0)
    assert none.wanted == 0


@floored
async def test_the_shards_of_an_address_are_summed_and_limit_its_processes(floor: Floor) -> None:
    await floor.broker.note_shards(Address("many"), 3)
    for shard in range(3):
        posts = [Post(f"{shard}-{number}", b"") for number in range(shard + 1)]
        await floor.broker.publish(Address(f"many:{shard}"), posts, shards=3)
    await floor.publish(1)
    many, q = await floor.gauge.read([Address("many"), Address("q")])
    assert (many.address, many.ready, many.most) == ("many", 6, 3)
    assert (q.ready, q.most) == (1, None)


@floored
async def test_external_scalers_get_the_same_figures_without_a_supervisor(floor: Floor) -> None:
    await floor.broker.declare(Address("idle"))
    await floor.publish(1000)
    found = {str(each.address): each for each in await wanted(floor.broker.inspector, Backlog(target=5.0), window=0.0)}
    assert (found["q"].wanted, found["q"].processes, found["q"].ready, found["idle"].wanted) == (7, 1, 1000, 0)
    text = as_prometheus(found.values())
    assert 'millstream_processes_wanted{address="q"} 7\n' in text
    assert "# TYPE millstream_processes_wanted gauge" in text


@looped
async def test_dead_letters_want_a_process_if_code_handles_them() -> None:
    app = new_app(retry=0)
    orders = app.topic("orders", int)

    @orders.subscribe("handled")
    async def handled(number: int) -> None:
        raise ValueError(number)

    @orders.subscribe("kept")
    async def kept(number: int) -> None:
        raise ValueError(number)

    @orders.on_dead("handled")
    async def handle(letter: DeadEvent[int]) -> None: ...

    async def found(app: Millstream) -> dict[str, int]:
        return {each.address: each.wanted for each in await wanted(app.inspector, Backlog(), window=0.0)}

    async with app:
        async with app.worker():
            assert await found(app) == {"orders/handled": 0, "orders/handled/dead": 0, "orders/kept": 0}
        await orders.publish(1)
        assert await found(app) == {"orders/handled": 1, "orders/kept": 1}
        broker = await app.broker()
        for address in (Address("orders/handled"), Address("orders/kept")):
            await broker.join(address, "c", 600.0)
            (entry,) = (await broker.claim(address, "c", 1)).entries
            message = decode_message(entry.body or b"")
            outcome = verdict.dead(entry.ref, message, "rejected", ErrorNote("Reject", "as always"), 0, 0.0)
            await broker.settle(address, "c", [outcome])
        assert await found(app) == {"orders/handled": 0, "orders/handled/dead": 1, "orders/kept": 0}


# -- summaries ---------------------------------------------------------------------------------------------------------------


def test_the_exit_code_gives_the_reason_or_says_that_jobs_were_interrupted() -> None:
    assert Summary().exit_code == codes.OK
    assert Summary({"dead": 3}).exit_code == codes.OK
    assert Summary(interrupted=1).exit_code == Summary(killed=1, cut_off=1).exit_code == codes.INTERRUPTED
    assert Summary(killed=1).exit_code == codes.OK, "the killed process held no jobs, or was killed long ago"
    assert Summary(interrupted=1, reason=codes.FAILED).exit_code == codes.FAILED
    said = str(Summary({"done": 1200, "retried": 0, "dead": 1}, 2, error=ValueError("no"), crashed=1, killed=2))
    assert said == (
        "1,200 done, 0 retried, 1 dead, 2 interrupted; 1 process crashed; 2 processes killed; first error: ValueError: no"
    )
