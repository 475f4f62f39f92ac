"""Longer pieces with figures of their own: the kill test, a minute without a server, servers that will never serve."""
