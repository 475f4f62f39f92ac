"""The version of the package. Reading it from ``importlib.metadata`` would add an import to every worker."""

__version__ = "0.1.0"
