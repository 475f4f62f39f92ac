"""Longer experiments with their own figures. ``trial`` has the common form of those that check a list of expectations."""
