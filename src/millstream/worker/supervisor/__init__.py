"""The supervisor of a worker: starts, replaces and stops its child processes, and renews their leases."""
