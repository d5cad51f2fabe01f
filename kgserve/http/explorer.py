"""The explorer: a page at ``/`` for people who look at what is known. Its files are read once, and need no key.

What they show is asked of the API like any client's questions, with the key of whoever sits in front of them.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from litestar import Response, get
from litestar.params import FromPath

from kgserve.errors import NotFound
from kgserve.http.coding import etag_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

_FOLDER = files("kgserve.http") / "static" / "explorer"
_PAGE = "index.html"
_MEDIA = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "json": "application/json",
    "txt": "text/plain",
}
_HASHED = re.compile(r"\.[0-9a-f]{10}\.js")
_POLICY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; worker-src 'self'; "
    "connect-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}
_FOR_EVER = "public, max-age=31536000, immutable"
_ASK_AGAIN = "no-cache"


class File(NamedTuple):
    """A file of the page, with the headers that it is answered with."""

    body: bytes
    media: str
    headers: dict[str, str]

    @classmethod
    def read(cls, source: Traversable) -> File:
        """A browser keeps a file whose name has its hash, and asks whether another one has changed."""
        body = source.read_bytes()
        cache = _FOR_EVER if _HASHED.search(source.name) else _ASK_AGAIN
        headers = {**_POLICY, "etag": etag_of(body), "cache-control": cache}
        return cls(body, _MEDIA[source.name.rpartition(".")[2]], headers)

    def answer(self) -> Response[bytes]:
        """The file; that a browser has it already, the edge tells it by the tag."""
        return Response(self.body, headers=self.headers, media_type=self.media)


def _below(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, File]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _below(entry, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", File.read(entry)


FILES = dict(_below(_FOLDER))
"""By path below ``/explorer/``."""


@get("/")
async def page() -> Response[bytes]:
    """The page."""
    return FILES[_PAGE].answer()


@get("/explorer/{name:path}")
async def part(name: FromPath[str]) -> Response[bytes]:
    """A script or style sheet of the page. Raises NotFound."""
    found = FILES.get(name.removeprefix("/"))
    if found is None:
        raise NotFound("the explorer has no such file")
    return found.answer()
