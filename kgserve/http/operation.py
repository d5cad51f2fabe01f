"""What the API description says about one operation; each handler carries its own in ``opt``."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from kgserve.access.caller import Role

JSON = "application/json"
NDJSON = "application/x-ndjson"
CSV = "text/csv"
XML = "application/xml"
ZIP = "application/zip"

KEY = "operation"

# The second row is the transport's: every request may meet it.
ALWAYS = (
    *("invalid", "unauthenticated", "forbidden", "misdirected", "internal", "unavailable"),
    *("limited", "url_too_long", "head_too_large"),
)
READ = (*ALWAYS, "not_found", "timeout")
WRITE = (*ALWAYS, "timeout", "conflict", "too_large", "unsupported", "storage_full")


class Body(NamedTuple):
    """A request or answer body: its Struct, or None for text that no schema describes, and one example.

    ``many``: a bare array of it. ``optional``: a request may come without.
    """

    struct: type[msgspec.Struct] | None
    example: Any
    media: str = JSON
    many: bool = False
    optional: bool = False


class Operation(NamedTuple):
    """One method of one path. The handler's docstring is its description; ``errors`` are codes of `problem.KINDS`.

    ``others`` are answers of other media types, for those who accept them. ``role`` is what a key needs for it.
    """

    id: str
    tag: str
    summary: str
    answer: Body
    errors: tuple[str, ...] = ALWAYS
    request: Body | None = None
    query: type[msgspec.Struct] | None = None
    statuses: tuple[int, ...] = (200,)
    headers: tuple[tuple[str, str], ...] = ()
    others: tuple[Body, ...] = ()
    role: Role = "admin"


def described(operation: Operation) -> dict[str, Any]:
    """The ``opt`` of the handler that is ``operation``."""
    return {KEY: operation}
