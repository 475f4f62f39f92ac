"""The child processes of a supervisor: starting, keeping running, replacing, and cleaning up."""
