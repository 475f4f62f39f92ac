"""Jobs: tasks and their calls, jobs, queues and dead letters."""
