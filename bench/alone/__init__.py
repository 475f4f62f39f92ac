"""Measurements of Millstream alone, beside bars of its own: ``make bench-limits``. One file per measurement, or kind of it."""
