"""The headers that every answer carries, so that no browser can be made to do with it what it is not meant for."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Header = tuple[bytes, bytes]

ALWAYS: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
UNLESS_GIVEN: tuple[Header, ...] = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
_SECURE: Header = (b"strict-transport-security", b"max-age=31536000")


def stamped(headers: Sequence[Header], *, secure: bool) -> list[Header]:
    """``headers`` with those that every answer carries; ``secure``: over TLS."""
    names = {name for name, _ in headers}
    missing = [header for header in UNLESS_GIVEN if header[0] not in names]
    return [*headers, *ALWAYS, *missing, _SECURE] if secure else [*headers, *ALWAYS, *missing]


def ready(length: int, extra: Iterable[Header], request_id: str, *, secure: bool) -> bytes:
    """The head of an answer of so many bytes of JSON, all that `stamped` would add included, from behind its date."""
    named = b"".join([b"%b: %b\r\n" % header for header in extra])
    return b"content-type: application/json\r\ncontent-length: %d\r\n%bx-request-id: %b\r\n%b" % (
        length,
        named,
        request_id.encode(),
        _STAMPS[secure],
    )


_STAMPS = {
    secure: b"".join(b"%b: %b\r\n" % header for header in stamped((), secure=secure)) for secure in (False, True)
}


def header(headers: Iterable[Header], wanted: bytes) -> str:
    """The value of the first header of this name; nothing when there is none."""
    for name, value in headers:
        if name == wanted:
            return value.decode("latin-1")
    return ""


def raw_headers(status: int, headers: Mapping[str, str], *, secure: bool) -> bytes:
    """The head of an answer as it is sent."""
    given = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    lines = [b"HTTP/1.1 %d %s" % (status, HTTPStatus(status).phrase.encode())]
    lines += [name + b": " + value for name, value in stamped(given, secure=secure)]
    return b"\r\n".join(lines) + b"\r\n\r\n"
