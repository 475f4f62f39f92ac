"""Values without I/O: messages, outcomes, settings, policies, addresses."""
