"""The parts of `make soak`: the tasks, the mix, the gauge and the report."""

KEYS = 100
"""Number of ordering keys."""

RESULT_TTL = 5.0
"""Seconds for which results and other endings are kept, short so that the server holds only those of the last seconds."""
