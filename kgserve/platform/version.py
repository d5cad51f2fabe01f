"""The version, for code that must not import the whole package."""

from __future__ import annotations

__version__ = "0.1.0"
