"""Observes a worker that scales: the jobs it ran, its chart, and whether every job was done once.

tasks.py    the app that the worker runs
watch.py    samples of the backlog and the processes
chart.py    a chart of the samples
"""
