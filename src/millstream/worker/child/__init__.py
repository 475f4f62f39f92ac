"""A worker process under a supervisor, and its communication with the supervisor."""
