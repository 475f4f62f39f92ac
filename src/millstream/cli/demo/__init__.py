"""``millstream demo``: a small shop, a worker one of whose processes is killed, and the account of every job."""

from millstream.cli.demo.play import run_demo

__all__ = ["run_demo"]
