"""Many small knowledge graphs, served from one process."""

__version__ = "0.1.0"
