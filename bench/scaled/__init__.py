"""A worker that scales, watched: what it ran, its chart, and whether every job was done once.

tasks.py    the app that the worker runs
watch.py    samples of backlog and processes while it does
chart.py    these as a picture
"""
