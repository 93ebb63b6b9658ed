"""The version, in a place that every other module may import."""

__version__ = "0.1.0"
