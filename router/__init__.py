"""The front door: bytes in, bytes out."""

__version__ = "0.1.0"
