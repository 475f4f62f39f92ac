"""Exit codes of a worker, which scripts and orchestrators rely on."""

OK = 0
"""All that ran finished; what had not started was handed back."""
FAILED = 1
"""The keeper or the lifespan failed."""
USAGE = 2
"""The app could not be imported, or has nothing to serve."""
SERVER = 3
"""The server could not be reached for 30 s, or will never serve us."""
INTERRUPTED = 4
"""A running handler was cancelled or killed at the deadline or by a second signal."""
CRASHING = 5
"""Worker processes died as soon as they were started, again and again. Never because of a job that kills its process."""
