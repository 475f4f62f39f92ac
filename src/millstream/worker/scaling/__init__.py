"""Scaling: decides how many worker processes there should be.

    metrics.py       the input of a strategy: loads, and the current number of processes
    strategies.py    from metrics to a number of processes: pure functions, pluggable
    spec.py          parses a strategy that is written on a command line
    stabilizer.py    hysteresis and cooldown for any strategy
    gauge.py         reads backlogs and measures rates
    scaler.py        the supervisor's service that applies a strategy or a manual request
    requests.py      manual requests to a supervisor, from another process
    wanted.py        the same figures for external scalers, without a supervisor
    http.py          these figures over HTTP

Nothing here imports user code.
"""

from millstream.worker.scaling.metrics import Load, Metrics
from millstream.worker.scaling.strategies import Backlog, Strategy, Threshold

__all__ = ["Backlog", "Load", "Metrics", "Strategy", "Threshold"]
