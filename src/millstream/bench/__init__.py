"""The benchmark of an installed Millstream: ``millstream bench``.

    run.py         runs several rows in several rounds
    rows.py        the rows: what is measured, and in which unit
    judge.py       measures one row in its own namespace, and checks that every job was handled exactly once
    tasks.py       the app whose jobs are measured; its handlers mark the jobs they handle
    callers.py     enqueues and publishes
    tally.py       the marks of the handlers, in memory shared by the processes
    workers.py     real worker processes and their memory
    drain.py       the clock of a row that empties a queue
    sizes.py       the number of jobs of a row
    figures.py     the result of a measurement
    machine.py     the machine it was measured on

The comparison with other libraries, ``make bench`` in the repository, uses the same rows, tally, workers and clock.
"""
