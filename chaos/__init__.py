"""The chaos suite: real workers and servers under every fault we know, and an account of every job.

    make chaos                                    everything, under 18 minutes; writes REPORT.md
    make chaos ARGS="kill_child half_open"     these only, printed
    make chaos ARGS="--engine redis --seed 7"     on another server, with other luck

``ledger`` writes down what producers were told and what handlers did, outside of the server; ``checker`` judges it; ``faults/``
is what is done to processes, servers, networks, clocks and disks; ``report`` says what came of it.
"""
