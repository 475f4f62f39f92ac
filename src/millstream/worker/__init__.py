"""The worker, which serves queues in one process (``worker``), and the supervisor, which runs several such processes."""
