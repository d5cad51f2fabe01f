"""URIs of resources: ``kgserve://stores`` is the list, ``kgserve://NAME`` a store, ``kgserve://NAME/ID`` an entity.

``kgserve://NAME/memory`` is what a store remembers, in a page. Name and id are percent-encoded, so a question mark
begins a query, which says from where on to read what is long. A store that is called ``stores`` is
``kgserve://%73tores``, and an entity ``memory`` is ``kgserve://NAME/%6Demory``: what is compared is the URI as sent.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from kgserve.errors import InvalidInput, NotFound

SCHEME = "kgserve://"
STORES = f"{SCHEME}stores"
STORE_TEMPLATE = f"{SCHEME}{{store}}"
MEMORY_TEMPLATE = f"{SCHEME}{{store}}/memory"
ENTITY_TEMPLATE = f"{SCHEME}{{store}}/{{id}}"

_MEMORY = "/memory"
_PARTS = ("after", "content_offset", "attributes_offset", "outgoing_offset", "incoming_offset")
_NUMBER = re.compile(r"[0-9]{1,12}")


class Place(NamedTuple):
    """What a URI names: without a store all of them, without a node the store, or what it remembers."""

    store: str | None = None
    node: str | None = None
    remembered: bool = False

    @property
    def uri(self) -> str:
        """The URI of it."""
        if self.store is None:
            return STORES
        store = "%73tores" if self.store == "stores" else quote(self.store, safe="")
        if self.node is None:
            return f"{SCHEME}{store}{_MEMORY if self.remembered else ''}"
        return f"{SCHEME}{store}/{'%6Demory' if self.node == 'memory' else quote(self.node, safe='')}"


class Part(NamedTuple):
    """Of a resource that is long, the part behind a place: one of its lists, or its content."""

    name: str
    value: str

    @property
    def offset(self) -> int:
        """The place as a number. Raises InvalidInput."""
        if not _NUMBER.fullmatch(self.value):
            raise InvalidInput(f"{self.name}: expected a number from 0, such as {self.name}=1000")
        return int(self.value)


def place_of(uri: str) -> tuple[Place, Part | None]:
    """What a URI names, and which part of it. Raises NotFound for a URI of others, InvalidInput for an unknown part."""
    if not uri.startswith(SCHEME):
        raise NotFound(f"{uri[:200]!r} is not a resource of this server; its URIs start with {SCHEME}")
    address, _, query = uri.partition("?")
    part = _part_of(query) if query else None
    if address == STORES:
        return Place(), part
    if address.endswith(_MEMORY) and address.count("/") == SCHEME.count("/") + 1:
        return Place(unquote(address.removeprefix(SCHEME).removesuffix(_MEMORY)), remembered=True), part
    name, slash, node = address.removeprefix(SCHEME).partition("/")
    return Place(unquote(name), unquote(node) if slash else None), part


def _part_of(query: str) -> Part:
    name, _, value = query.partition("=")
    if name not in _PARTS or "&" in value:
        raise InvalidInput(f"?{query[:80]}: a resource is read on with one of {', '.join(_PARTS)}")
    return Part(name, unquote(value))
