"""The version of dsnb, which packages, run folders and doctors name."""

__version__ = "0.2.0"
