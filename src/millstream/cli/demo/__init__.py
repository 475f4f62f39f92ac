"""``millstream demo``: a small shop runs jobs, one worker process is killed, and every job is accounted for."""

from millstream.cli.demo.play import run_demo

__all__ = ["run_demo"]
