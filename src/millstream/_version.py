"""The version, in the one place it is written; ``importlib.metadata`` would cost every worker the import."""

__version__ = "0.1.0"
