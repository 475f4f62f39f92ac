"""A worker process under a supervisor, and how it speaks with it."""
