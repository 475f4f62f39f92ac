"""How long a script call occupies the server."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from alone.limit import Figures, Limit, Measurement
from alone.stage import Stage
from contest.server import Server, on_core, throwaway_server
from millstream.backends.redis.scripts import Script
from millstream.bench.figures import percentile

JOBS = 200_000
SERVER_CORE, OUR_CORE = 0, 1
NAMES = {
    Script(name).sha.encode(): name
    for name in (
        file.name.removesuffix(".lua") for file in resources.files("millstream.backends.redis").joinpath("lua").iterdir()
    )
    if (resources.files("millstream.backends.redis") / "lua" / f"{name}.lua").is_file()
}


def measure() -> Figures:
    worst = 0.0
    options = ("--slowlog-log-slower-than", "0", "--slowlog-max-len", "1000000")
    figures: dict[str, float] = {}
    with throwaway_server(*options, core=SERVER_CORE) as server, on_core(OUR_CORE):
        for task in ("noop", "echo"):
            with Stage(server, JOBS) as stage:
                server.call("SLOWLOG", "RESET")
                stage.send(task, range(JOBS))
                with stage.workers("-c", "100") as workers:
                    stage.until_handled(workers)
            for name, took in _times(server).items():
                if len(took) >= JOBS / 1_000:
                    figures[f"{name}_{task}"] = percentile(took, 99)
                    worst = max(worst, percentile(took, 99))
                    figures[f"{name}_{task}_p50"] = percentile(took, 50)
                    figures[f"{name}_{task}_jobs"] = JOBS / len(took)
            server.empty()
    return {"p99": worst, **figures}


def _times(server: Server) -> dict[str, Sequence[float]]:
    """Return the milliseconds that each call took inside the server, by script, sorted."""
    found: dict[str, list[float]] = {}
    for _, _, micros, words, *_ in server.call("SLOWLOG", "GET", "-1"):
        if words[0].upper() == b"EVALSHA" and words[1] in NAMES:
            found.setdefault(NAMES[words[1]], []).append(micros / 1_000)
    return {name: sorted(took) for name, took in found.items()}


SCRIPTS = Measurement(
    name="scripts",
    measure=measure,
    limits=(Limit("Server time per script call at the default batch of 200, p99", "p99", "ms", 2),),
    cores=2,
    how="The server has its own core (with real-time priority where allowed, so that nothing preempts it). One worker "
    "(concurrency 100) and the client share another. 200,000 no-op jobs are enqueued and drained, once without results and "
    "once with. The server's slow log (`slowlog-log-slower-than 0`) records every call and measures inside the server. The "
    "figure is the worst p99 of these scripts. "
    "p99 (p50) without results: publish {publish_next_noop} ({publish_next_noop_p50}), claim {claim_noop} "
    "({claim_noop_p50}) with {claim_noop_jobs} jobs per call, settle {settle_noop} ({settle_noop_p50}) with "
    "{settle_noop_jobs}; with results: claim {claim_echo} ({claim_echo_p50}), settle {settle_echo} ({settle_echo_p50}) "
    "with {settle_echo_jobs}.",
)
