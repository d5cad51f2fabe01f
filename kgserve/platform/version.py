"""The version, for whoever may not import the package: that begins with this module."""

from __future__ import annotations

__version__ = "0.1.0"
