"""What callers are told of the process itself, and of errors."""

from __future__ import annotations

from typing import Literal

import msgspec

from kgserve.model.answers import Node


class Health(msgspec.Struct, kw_only=True):
    """The process answers."""

    status: Literal["ok"] = "ok"
    version: str


class Ready(msgspec.Struct, kw_only=True):
    """Stores can be opened and written."""

    ready: Literal[True] = True
    open_stores: int
    free_bytes: int


class Problem(msgspec.Struct, kw_only=True):
    """An error, RFC 9457. ``instance`` is the request's id; ``errors`` names every place of an invalid input.

    ``oldest``, with `gone`, is the first sequence that can still be read; ``node``, with `conflict_manual`, is what was
    written.
    """

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[dict[str, str]] | msgspec.UnsetType = msgspec.UNSET
    oldest: int | msgspec.UnsetType = msgspec.UNSET
    node: Node | msgspec.UnsetType = msgspec.UNSET
