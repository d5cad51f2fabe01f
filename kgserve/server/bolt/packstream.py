"""PackStream: the binary encoding of values in Bolt messages.

Decoding never allocates more than a small multiple of the message: declared sizes are compared with the bytes that
are left, and nesting and the number of values are limited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from struct import Struct, error
from typing import Any

import msgspec

from kgserve.errors import InvalidInput, KgserveError

MAX_DEPTH = 100
"""Containers around a value."""
MAX_CONTAINERS = 500_000
"""Lists, maps and structures of one message."""
MAX_VALUES = 4_000_000
"""Values of one message."""

MIN_INTEGER, MAX_INTEGER = -(1 << 63), (1 << 63) - 1
MAX_STRUCTURE_FIELDS = 15

_FLOAT = Struct(">d")
_INT8, _INT16, _INT32, _INT64 = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")
_UINT8, _UINT16, _UINT32 = Struct(">B"), Struct(">H"), Struct(">I")
_NUMBERS = {0xC1: _FLOAT, 0xC8: _INT8, 0xC9: _INT16, 0xCA: _INT32, 0xCB: _INT64}
_CONSTANTS: dict[int, bool | None] = {0xC0: None, 0xC2: False, 0xC3: True}
_SIZES = (_UINT8, _UINT16, _UINT32)


class ProtocolViolation(KgserveError):
    """The peer sent bytes that are not a message of the protocol, or exceed a limit of it."""

    code = "invalid"


class PackStreamStructure(msgspec.Struct, frozen=True):
    """Structure on the wire: a tag and at most 15 fields."""

    tag: int
    fields: tuple[Any, ...]


StructureBuilder = Callable[[int, list[Any]], Any]
"""Returns the value of a structure with a tag and fields. Raises InvalidInput or ProtocolViolation."""


def wrap_raw_packstream_structure(tag: int, fields: list[Any]) -> PackStreamStructure:
    """Return a structure as it is."""
    return PackStreamStructure(tag, tuple(fields))


class PackStreamDecoder:
    """Decoder of one message."""

    def __init__(self, data: bytes, build_structure: StructureBuilder = wrap_raw_packstream_structure) -> None:
        self._data = data
        self._size = len(data)
        self._at = 0
        self._build_structure = build_structure
        self._containers = MAX_CONTAINERS
        self._values = MAX_VALUES

    def read_message(self) -> PackStreamStructure:
        """Return the structure that the whole message is; its fields are values. Raises ProtocolViolation.

        The error of a ``build_structure`` that refuses a value passes through.
        """
        marker = self._take(1)[0]
        if not 0xB0 <= marker <= 0xBF:  # noqa: PLR2004
            raise ProtocolViolation(f"a message must be a structure, not a value with marker {marker:#04x}")
        tag = self._take(1)[0]
        message = PackStreamStructure(tag, tuple(self._read(1) for _ in range(marker & 0x0F)))
        self._check_end()
        return message

    def read_value(self) -> Any:
        """Return the only value of the data. Raises ProtocolViolation."""
        value = self._read(0)
        self._check_end()
        return value

    def _check_end(self) -> None:
        if self._at != self._size:
            raise ProtocolViolation(f"the message continues for {self._size - self._at} bytes after its end")

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > self._size:
            raise ProtocolViolation(f"the message ends {end - self._size} bytes early")
        data = self._data[self._at : end]
        self._at = end
        return data

    def _read(self, depth: int) -> Any:
        marker = self._take(1)[0]
        if marker < 0x80:  # noqa: PLR2004
            return marker
        if marker >= 0xF0:  # noqa: PLR2004
            return marker - 0x100
        if marker < 0xC0:  # noqa: PLR2004
            return self._read_sized(marker & 0xF0, marker & 0x0F, depth)
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        number = _NUMBERS.get(marker)
        if number is not None:
            return number.unpack(self._take(number.size))[0]
        return self._read_long(marker, depth)

    def _read_long(self, marker: int, depth: int) -> Any:
        """Read a value with a size after its marker."""
        group, width = marker & 0xFC, marker & 0x03
        if width >= len(_SIZES) or group not in _LONG_GROUPS or marker == _BAD_STRUCTURE:
            raise ProtocolViolation(f"no value begins with the byte {marker:#04x}")
        size = _SIZES[width]
        return self._read_sized(_LONG_GROUPS[group], size.unpack(self._take(size.size))[0], depth)

    def _read_sized(self, group: int, size: int, depth: int) -> Any:
        if group == _BYTES:
            return self._take(size)
        if group == _STRING:
            return self._read_string(size)
        if depth >= MAX_DEPTH:
            raise ProtocolViolation(f"values are nested more than {MAX_DEPTH} levels deep")
        self._count(size if group != _MAP else 2 * size)
        if group == _LIST:
            return [self._read(depth + 1) for _ in range(size)]
        if group == _MAP:
            return self._read_map(size, depth + 1)
        if size > MAX_STRUCTURE_FIELDS:
            raise ProtocolViolation(f"a structure has {size} fields; at most {MAX_STRUCTURE_FIELDS} are allowed")
        tag = self._take(1)[0]
        return self._build_structure(tag, [self._read(depth + 1) for _ in range(size)])

    def _count(self, size: int) -> None:
        """Count a container and its values, each of which takes a byte or more."""
        if size > self._size - self._at:
            raise ProtocolViolation(f"the message declares {size} values and has {self._size - self._at} bytes left")
        self._containers -= 1
        self._values -= size
        if self._containers < 0 or self._values < 0:
            raise ProtocolViolation(f"the message has more than {MAX_CONTAINERS} containers or {MAX_VALUES} values")

    def _read_string(self, size: int) -> str:
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise ProtocolViolation("a string is not valid UTF-8") from None

    def _read_map(self, size: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(size):
            key = self._read(depth)
            if not isinstance(key, str):
                raise ProtocolViolation("a key of a map is not a string")
            if key in found:
                raise ProtocolViolation(f"a map has the key {key[:100]!r} twice")
            found[key] = self._read(depth)
        return found


_STRING, _LIST, _MAP, _STRUCTURE, _BYTES = 0x80, 0x90, 0xA0, 0xB0, 0x00
_LONG_GROUPS = {0xCC: _BYTES, 0xD0: _STRING, 0xD4: _LIST, 0xD8: _MAP, 0xDC: _STRUCTURE}
_BAD_STRUCTURE = 0xDE


ValueWriter = Callable[[bytearray, Any], None]
StructureWriters = Mapping[type, Callable[[Any], PackStreamStructure]]
"""Functions that turn values of a class into structures."""


class PackStreamEncoder:
    """Encoder of values, and of the classes that have structures."""

    def __init__(self, structures: StructureWriters) -> None:
        self._structures = structures
        self._writers: dict[type, ValueWriter] = {
            type(None): _write_null,
            bool: _write_boolean,
            int: _write_integer,
            float: _write_float,
            str: _write_string,
            bytes: _write_bytes,
            list: self._write_list,
            tuple: self._write_list,
            dict: self._write_map,
            PackStreamStructure: self._write_structure,
        }

    def encode(self, value: Any) -> bytes:
        """Return a value as bytes. Raises InvalidInput for one that the protocol cannot carry."""
        buffer = bytearray()
        self.write(buffer, value)
        return bytes(buffer)

    def write(self, buffer: bytearray, value: Any) -> None:
        """Append a value. Raises InvalidInput for one that the protocol cannot carry."""
        try:
            self._write(buffer, value)
        except RecursionError:
            raise InvalidInput("the result has a value that is nested too deeply to be sent") from None
        except UnicodeEncodeError:
            raise InvalidInput("the result has a string that is not valid Unicode and cannot be sent") from None
        except error:
            raise InvalidInput("the result has a value that is too large to be sent") from None

    def _write(self, buffer: bytearray, value: Any) -> None:
        writer = self._writers.get(type(value))
        if writer is None:
            writer = self._writers[type(value)] = self._find_writer(type(value))
        writer(buffer, value)

    def _find_writer(self, kind: type) -> ValueWriter:
        for base in kind.__mro__:
            if base in self._structures:
                return partial(self._write_as_structure, self._structures[base])
            if base in self._writers:
                return self._writers[base]
        raise InvalidInput(f"the result has a value of type {kind.__name__}, which cannot be sent")

    def _write_as_structure(
        self, to_structure: Callable[[Any], PackStreamStructure], buffer: bytearray, value: Any
    ) -> None:
        self._write_structure(buffer, to_structure(value))

    def _write_list(self, buffer: bytearray, value: list[Any] | tuple[Any, ...]) -> None:
        _write_header(buffer, len(value), _LIST, 0xD4)
        for item in value:
            self._write(buffer, item)

    def _write_map(self, buffer: bytearray, value: dict[Any, Any]) -> None:
        _write_header(buffer, len(value), _MAP, 0xD8)
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidInput("the result has a map with a key that is not a string")
            _write_string(buffer, key)
            self._write(buffer, item)

    def _write_structure(self, buffer: bytearray, value: PackStreamStructure) -> None:
        buffer.append(_STRUCTURE + len(value.fields))
        buffer.append(value.tag)
        for field in value.fields:
            self._write(buffer, field)


def _write_null(buffer: bytearray, _value: None) -> None:
    buffer.append(0xC0)


def _write_boolean(buffer: bytearray, value: bool) -> None:
    buffer.append(0xC3 if value else 0xC2)


def _write_integer(buffer: bytearray, value: int) -> None:
    if -0x10 <= value < 0x80:  # noqa: PLR2004
        buffer.append(value & 0xFF)
    elif -0x80 <= value < 0x80:  # noqa: PLR2004
        buffer.append(0xC8)
        buffer.append(value & 0xFF)
    elif -0x8000 <= value < 0x8000:  # noqa: PLR2004
        buffer.append(0xC9)
        buffer += _INT16.pack(value)
    elif -0x8000_0000 <= value < 0x8000_0000:  # noqa: PLR2004
        buffer.append(0xCA)
        buffer += _INT32.pack(value)
    elif MIN_INTEGER <= value <= MAX_INTEGER:
        buffer.append(0xCB)
        buffer += _INT64.pack(value)
    else:
        raise InvalidInput("the result has an integer that does not fit into 64 bits")


def _write_float(buffer: bytearray, value: float) -> None:
    buffer.append(0xC1)
    buffer += _FLOAT.pack(value)


def _write_string(buffer: bytearray, value: str) -> None:
    data = value.encode()
    _write_header(buffer, len(data), _STRING, 0xD0)
    buffer += data


def _write_bytes(buffer: bytearray, value: bytes) -> None:
    width = 0 if len(value) < 0x100 else 1 if len(value) < 0x1_0000 else 2  # noqa: PLR2004
    buffer.append(0xCC + width)
    buffer += _SIZES[width].pack(len(value))
    buffer += value


def _write_header(buffer: bytearray, size: int, tiny: int, marker: int) -> None:
    if size < 0x10:  # noqa: PLR2004
        buffer.append(tiny + size)
        return
    width = 0 if size < 0x100 else 1 if size < 0x1_0000 else 2  # noqa: PLR2004
    buffer.append(marker + width)
    buffer += _SIZES[width].pack(size)
