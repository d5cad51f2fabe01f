"""The library face: a data folder opened within one process, with the methods of the client and no server."""

from __future__ import annotations

from kgserve.library.face import Library, Store

__all__ = ["Library", "Store"]
