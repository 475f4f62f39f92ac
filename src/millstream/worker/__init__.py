"""The worker: serves queues in one process (``worker``), and the supervisor that keeps several such processes."""
