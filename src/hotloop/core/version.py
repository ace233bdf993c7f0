"""The version: of the package, of every answer that tells it, and of the wheel."""

__version__ = "0.1.0"
