"""Measures Millstream, wherever it is installed: ``millstream bench``.

    run.py         some rows, some rounds of them, and what was found
    rows.py        what is measured, in which unit
    judge.py       one row at a time, in a namespace of its own, and whether every job was handled exactly once
    tasks.py       the app whose jobs are measured: its handlers mark what they handle
    callers.py     who enqueues
    tally.py       what the handlers marked, in memory that the processes share
    workers.py     real worker processes, and what they weigh
    drain.py       the clock of a row that empties a queue
    sizes.py       how many jobs a row takes
    figures.py     what a measurement found
    machine.py     on what it was measured

The contest with other libraries, ``make bench`` in the repository, stands on the same rows, tally, workers and clock.
"""
