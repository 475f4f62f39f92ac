"""What `make soak` runs: the tasks, the mix, the gauge and the report."""

KEYS = 100
"""Ordering keys."""

RESULT_TTL = 5.0
"""Seconds for which results and other endings are kept: what the server holds is soon that of the last seconds alone."""
