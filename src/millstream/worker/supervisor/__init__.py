"""The supervisor of a worker: starts and replaces its processes, keeps their leases, and stops them."""
