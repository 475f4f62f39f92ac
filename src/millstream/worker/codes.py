"""Exit codes of a worker. Scripts and orchestrators rely on them."""

OK = 0
"""All running jobs finished. Jobs that had not started were released."""
FAILED = 1
"""The keeper or the lifespan failed."""
USAGE = 2
"""The app could not be imported, or has nothing to serve."""
SERVER = 3
"""The server was unreachable for 30 s, or permanently refuses this client."""
INTERRUPTED = 4
"""A running handler was cancelled or killed, at the end of the grace period or by a second signal."""
CRASHING = 5
"""Worker processes repeatedly died right after their start. A job that kills its process never causes this code."""
