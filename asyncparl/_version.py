"""The version of this package. Processes of one cluster must agree on it."""

__version__ = "0.1.0"
