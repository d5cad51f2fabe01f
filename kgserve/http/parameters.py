"""What a URL carries: store names and ids from the undecoded path, and the query as a Struct."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from litestar import Request

from kgserve.decoding import convert, place_of
from kgserve.errors import FieldError, InvalidInput
from kgserve.model.requests import check_store_name
from kgserve.model.versioned_names import FIELD_NAMES, VERSIONED
from kgserve.operations.operation import STORE_HEADER, STORE_PARAMETER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from litestar.types import HTTPScope

T = TypeVar("T", bound=msgspec.Struct)


def path_text(request: Request[Any, Any, Any], name: str) -> str:
    """The path parameter ``name``, percent-decoded once. Routing saw it still encoded, so it may hold slashes."""
    return decoded(request.path_params[name], name)


def decoded(segment: str, name: str) -> str:
    """A segment of a path, percent-decoded once."""
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        fault = FieldError(name, "percent-encoded bytes that are not UTF-8")
        raise InvalidInput(f"the {name} in the path is not UTF-8", (fault,)) from None


class AskedStore(NamedTuple):
    """The store that a request is about; whether it was ``named``, or is the default."""

    name: str
    named: bool


def asked_store(scope: HTTPScope, default: str) -> AskedStore:
    """The store of a request whose path names none: that of the query, else that of the header, else the default.

    Raises InvalidInput for a header that no store can be called, also where the query counts.
    """
    header = STORE_HEADER.lower().encode()
    sent = next((value.decode("latin-1") for name, value in scope["headers"] if name == header), None)
    if sent is not None:
        _check_header(sent)
    if b"store" in scope["query_string"]:
        given = [value for name, value in _pairs(scope["query_string"]) if name == STORE_PARAMETER]
        _once([STORE_PARAMETER] * len(given))
        if given:
            return AskedStore(given[0], named=True)
    return AskedStore(default, named=False) if sent is None else AskedStore(sent, named=True)


def _check_header(name: str) -> None:
    try:
        check_store_name(name)
    except InvalidInput as error:
        raise InvalidInput(f"{STORE_HEADER}: {error}", (FieldError(STORE_HEADER, str(error)),)) from None


def asks_versioned_names(query: bytes) -> bool:
    """Whether an answer shall have the fields' names of versioned writes. Raises InvalidInput for any others."""
    given = [value for name, value in _pairs(query) if name == FIELD_NAMES] if NAMES_ASKED in query else []
    _once([FIELD_NAMES] * len(given))
    if given and given != [VERSIONED]:
        message = f"is {VERSIONED}, or left out"
        raise InvalidInput(f"query: {FIELD_NAMES}: {message}", (FieldError(FIELD_NAMES, message),))
    return bool(given)


NONE: frozenset[str] = frozenset()
OF_DEFAULT = frozenset({STORE_PARAMETER})
"""What `asked_store` reads."""
NAMES = frozenset({FIELD_NAMES})
"""What `asks_versioned_names` reads."""
NAMES_ASKED = FIELD_NAMES.encode()
"""Stands in each query in which it may find any."""


def query(
    request: Request[Any, Any, Any],
    into: type[T],
    lists: frozenset[str] = NONE,
    repeated: frozenset[str] = NONE,
    passed: frozenset[str] = NONE,
) -> T:
    """As `query_of`."""
    return query_of(request.scope["query_string"], into, lists, repeated, passed)


def query_of(
    text: bytes,
    into: type[T],
    lists: frozenset[str] = NONE,
    repeated: frozenset[str] = NONE,
    passed: frozenset[str] = NONE,
) -> T:
    """The query as ``into``; a parameter that is unknown, repeated or out of bounds is refused by name.

    Those in ``lists`` may be repeated: their values are joined with commas. Those in ``repeated`` are lists, of one
    value each time. Those in ``passed`` are for somebody else.
    """
    pairs = [(name, value) for name, value in _pairs(text) if name not in passed]
    _once(name for name, _ in pairs if name not in lists | repeated)
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    given = {name: found if name in repeated else ",".join(found) for name, found in values.items()}
    try:
        return convert(given, into, strict=False)
    except msgspec.ValidationError as error:
        fault = place_of(error, into)
        raise InvalidInput(f"query: {fault.path}: {fault.message}", (fault,)) from None


def _pairs(text: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text.decode("ascii"), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput("the query is not percent-encoded UTF-8") from None
    except ValueError:
        raise InvalidInput("the query has too many fields") from None


def _once(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidInput(f"query: {name} is given twice", (FieldError(name, "given twice"),))
        seen.add(name)
