"""Longer pieces with figures of their own. ``trial`` is the form of those that are a list of expectations."""
