"""The command line: ``millstream …``."""

from millstream.cli.main import main

__all__ = ["main"]
