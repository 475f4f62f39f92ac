"""Measurements of Millstream alone, each with its own limit: ``make bench-limits``. One file per measurement or kind of it."""
