"""Faults. A fault is a coroutine that strikes once and records what it did and which consequences are allowed.

The report quotes the docstring of each fault.
"""
