"""Messages of Bolt: requests of the client and responses of the server."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import msgspec

from kgserve.errors import InvalidInput
from kgserve.server.bolt.packstream import (
    PackStreamDecoder,
    ProtocolViolation,
    StructureBuilder,
    wrap_raw_packstream_structure,
)

RECORD_TAG, SUCCESS_TAG, IGNORED_TAG, FAILURE_TAG = 0x71, 0x70, 0x7E, 0x7F

_FIELDS_MASK = 0x0F


class BoltRequestType(IntEnum):
    """Type of a Bolt request message, by its tag."""

    HELLO = 0x01
    GOODBYE = 0x02
    RESET = 0x0F
    RUN = 0x10
    BEGIN = 0x11
    COMMIT = 0x12
    ROLLBACK = 0x13
    DISCARD = 0x2F
    PULL = 0x3F
    TELEMETRY = 0x54
    ROUTE = 0x66
    LOGON = 0x6A
    LOGOFF = 0x6B


_FIELD_TYPES: dict[BoltRequestType, tuple[type, ...]] = {
    BoltRequestType.HELLO: (dict,),
    BoltRequestType.GOODBYE: (),
    BoltRequestType.RESET: (),
    BoltRequestType.RUN: (str, dict, dict),
    BoltRequestType.BEGIN: (dict,),
    BoltRequestType.COMMIT: (),
    BoltRequestType.ROLLBACK: (),
    BoltRequestType.DISCARD: (dict,),
    BoltRequestType.PULL: (dict,),
    BoltRequestType.TELEMETRY: (int,),
    BoltRequestType.ROUTE: (dict, list, dict),
    BoltRequestType.LOGON: (dict,),
    BoltRequestType.LOGOFF: (),
}


class ClientMessage(msgspec.Struct, frozen=True):
    """Request with its fields, whose number and types are those of the specification.

    ``fault`` is set if a value was refused; the fields are empty then.
    """

    type: BoltRequestType
    fields: tuple[Any, ...]
    fault: InvalidInput | None = None


def peek_bolt_request_type(data: bytes) -> BoltRequestType | None:
    """Return the type of an encoded request without decoding it; None if it has none."""
    try:
        return BoltRequestType(data[1])
    except (IndexError, ValueError):
        return None


def decode_bolt_request(
    data: bytes, build_structure: StructureBuilder = wrap_raw_packstream_structure
) -> ClientMessage:
    """Return a request. Raises ProtocolViolation."""
    type_ = peek_bolt_request_type(data)
    if type_ is None:
        raise ProtocolViolation("the message is of no known type")
    expected = _FIELD_TYPES[type_]
    if data[0] & _FIELDS_MASK != len(expected):
        raise ProtocolViolation(f"{type_.name} must have {len(expected)} fields")
    try:
        fields = PackStreamDecoder(data, build_structure).read_message().fields
    except InvalidInput as fault:
        return ClientMessage(type_, (), fault)
    for number, (field, kind) in enumerate(zip(fields, expected, strict=True), 1):
        if type(field) is not kind:
            raise ProtocolViolation(f"field {number} of {type_.name} must be a {_KIND_NAMES[kind]}")
    return ClientMessage(type_, fields)


_KIND_NAMES = {dict: "map", list: "list", str: "string", int: "number"}


class BoltMessageOptions:
    """Options in a map of a message; each method raises InvalidInput for a value of the wrong type."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options

    def has(self, name: str) -> bool:
        """Return whether an option is given and not null."""
        return self._options.get(name) is not None

    def text(self, name: str) -> str:
        """Return a string; an absent or null one is empty."""
        value = self._options.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidInput(f"`{name}` must be a string")
        return value or ""

    def integer(self, name: str) -> int | None:
        """Return an integer, or None if absent."""
        value = self._options.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise InvalidInput(f"`{name}` must be an integer")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings; an absent or null one is empty."""
        value = self._options.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise InvalidInput(f"`{name}` must be a list of strings")
        return tuple(value)

    def map(self, name: str) -> dict[str, Any]:
        """Return a map; an absent or null one is empty."""
        value = self._options.get(name)
        if value is not None and not isinstance(value, dict):
            raise InvalidInput(f"`{name}` must be a map")
        return value or {}
