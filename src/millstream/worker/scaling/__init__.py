"""How many worker processes there should be.

    metrics.py       what a strategy is told: loads, and the processes there are
    strategies.py    from metrics to a number of processes: pure, and pluggable
    spec.py          a strategy as it is written on a command line
    stabilizer.py    hysteresis and cooldown around any strategy
    gauge.py         reads backlogs, and measures how fast they are worked off
    scaler.py        the service of a supervisor that does what they say, and what is asked by hand
    requests.py      asking a supervisor by hand, from another process
    wanted.py        the same figures for scalers outside, without a supervisor
    http.py          these over HTTP

Nothing here imports user code.
"""

from millstream.worker.scaling.metrics import Load, Metrics
from millstream.worker.scaling.strategies import Backlog, Strategy, Threshold

__all__ = ["Backlog", "Load", "Metrics", "Strategy", "Threshold"]
