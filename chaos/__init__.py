"""The chaos suite: real workers and servers under every known fault, and an account of every job.

    make chaos                                 everything, in 20 minutes; writes REPORT.md
    make chaos ARGS="kill_child half_open"     only these cases; prints the report
    make chaos ARGS="--engine redis --seed 7"  on one kind of server, with another random seed

``ledger`` records, outside the server, the answers that producers received and what handlers did. ``checker`` judges that
record. ``faults/`` disturbs processes, servers, networks, clocks and disks. ``report`` writes the results.
"""
