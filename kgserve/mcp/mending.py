"""Arguments that do not fit a Struct: what can mean one thing only is put right, of the rest every fault is named.

The values are walked beside the type that they should have. Nothing here decides what is taken: what comes of it is
converted like any other arguments, so limits that have no words here hold, too.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, inspect

from kgserve.decoding import decode_json, kind_of
from kgserve.errors import FieldError
from kgserve.mcp.likely import EXAMPLES, meant, nearest, shown
from kgserve.model.fields import EDGE, NODE, TIME
from kgserve.model.times import parse_time

MOMENTS = frozenset(
    {"as_of", "valid_at", *(field.wire for row in (NODE, EDGE) for field in row.extras if field.type is TIME)}
)
"""The fields that are times, wherever they are."""

_MOST_FAULTS = 20
_MOST_SEEN = 200
_MOST_NOTES = 10
_OWN_FIELDS = ("attributes", "metadata")
_WORDS = {"as_of": re.compile(r"\d+"), "valid_at": re.compile(r"now|any")}
_BRACKETS = re.compile(r"[\[\]{}]")
_TIME = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)(?:[Tt ](?P<hour>\d\d:\d\d)(?P<second>:\d\d(?:\.\d{1,9})?)?"
    r" ?(?P<zone>[Zz]|UTC|[+-]\d\d:?\d\d)?)?"
)


class _Enough(Exception):
    """So many faults that one more says nothing."""


class _Seen:
    """Faults or notes: of those that differ in the place of an item alone, the first, with the number of others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: dict[tuple[str, str], tuple[str, int]] = {}
        self._count = 0

    def add(self, path: str, message: str) -> None:
        key = re.sub(r"\[\d+\]", "[]", path), message
        first, count = self._found.get(key, (path, 0))
        self._found[key] = first, count + 1
        self._count += 1

    @property
    def is_full(self) -> bool:
        return self._count >= _MOST_SEEN

    def places(self) -> list[FieldError]:
        return [
            FieldError(path, message + (f" (and {count - 1:,} more like it)" if count > 1 else ""))
            for (_, message), (path, count) in self._found.items()
        ][: self._most]


class Mending:
    """One walk over the arguments of a call. ``now`` is what examples of times say, in seconds since 1970."""

    def __init__(self, now: float) -> None:
        self._now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        self._faults = _Seen(_MOST_FAULTS)
        self._notes = _Seen(_MOST_NOTES)
        self._mends: dict[type, Callable[[Any, Any, str], Any]] = {
            inspect.StructType: self._struct,
            inspect.ListType: self._list,
            inspect.DictType: self._dict,
            inspect.StrType: self._text,
            inspect.IntType: self._number,
            inspect.FloatType: self._number,
            inspect.BoolType: self._truth,
            inspect.LiteralType: self._choice,
        }

    @property
    def faults(self) -> tuple[FieldError, ...]:
        """What is wrong with the arguments."""
        return tuple(self._faults.places())

    @property
    def notes(self) -> list[str]:
        """What was taken otherwise than it was sent."""
        return [f"{place.path}: {place.message}" for place in self._notes.places()]

    def mended(self, given: Mapping[str, Any], struct: type[msgspec.Struct]) -> Mapping[str, Any]:
        """The arguments as ``struct`` takes them, as far as they can be put right."""
        try:
            return self._struct(dict(given), kind_of(inspect.type_info(struct)), "")
        except _Enough:
            return given

    def _fault(self, path: str, message: str) -> None:
        self._faults.add(path, message)
        if self._faults.is_full:
            raise _Enough

    def _wrong(self, value: object, wanted: str, path: str, example: object) -> None:
        """Note that a value is not of the kind that is wanted."""
        self._fault(path, f"expected {wanted}, got {_named(value)}; for example {json.dumps(example)}")

    def _value(self, value: Any, kind: inspect.Type, path: str) -> Any:
        kind = kind_of(kind)
        mend = self._mends.get(type(kind))
        return value if mend is None else mend(value, kind, path)

    def _struct(self, value: Any, kind: inspect.StructType, path: str) -> Any:
        fields = {field.encode_name: field for field in kind.fields}
        required = {name for name, field in fields.items() if field.required}
        given = self._from_text(value, dict, path)
        if isinstance(given, str) and required == {"query"}:
            self._notes.add(path, "a text was taken as the query")
            given = {"query": given}
        if not isinstance(given, dict):
            self._wrong(value, "an object", path, self._example("", kind))
            return value
        known = self._renamed(given, fields, required, path)
        if required - known.keys() == {"id"} and isinstance(known.get("name"), str):
            # A node may have a name beside its id; who gives that alone means both.
            self._notes.add(_at(path, "name"), "taken as `id`")
            known["id"] = known.pop("name")
        for name in sorted(required - known.keys()):
            example = self._example(name, fields[name].type)
            self._fault(_at(path, name), f"is required; for example {json.dumps(example)}")
        values = {
            name: self._value(each, fields[name].type, _at(path, name))
            for name, each in known.items()
            if name in required or not self._is_left_out(each, fields[name].type, _at(path, name))
        }
        nulls = dict.fromkeys(name for name, each in known.items() if each is None and _knows_null(fields[name]))
        return {name: each for name, each in values.items() if each is not UNSET} | nulls

    def _is_left_out(self, value: Any, kind: inspect.Type, path: str) -> bool:
        """Whether a value that need not be given says nothing: callers that must fill in every field send such."""
        found = kind_of(kind)
        is_choice = isinstance(found, inspect.LiteralType) and "" not in found.values
        if value == "" and (is_choice or getattr(found, "min_length", None)):
            self._notes.add(path, "left out, for it is empty")
            return True
        return value is None

    def _renamed(
        self, given: dict[str, Any], fields: Mapping[str, inspect.Field], required: set[str], path: str
    ) -> dict[str, Any]:
        """What is given under names that the Struct has."""
        known = {name: value for name, value in given.items() if name in fields}
        for name in [name for name in given if name not in fields]:
            right = meant(name, fields, required)
            if right is None:
                self._fault(_at(path, name), _unknown(name, given[name], fields, required - given.keys()))
            elif right not in known:
                self._notes.add(_at(path, name), f"taken as `{right}`")
                known[right] = given[name]
            elif known[right] != given[name]:
                self._fault(_at(path, name), f"is another word for `{right}`, which says something else; leave it out")
        return known

    def _list(self, value: Any, kind: inspect.ListType, path: str) -> Any:
        given = self._from_text(value, list, path)
        item = kind_of(kind.item_type)
        if not isinstance(given, list):
            given = self._alone(given, item, path)
        if given is None:
            several = isinstance(value, str) and not _BRACKETS.search(value)
            example = [each.strip() for each in value.split(",")] if several else self._example(path, kind)
            self._wrong(value, "a list", path, example)
            return value
        self._check_length(len(given), kind, path, "items")
        return [self._value(each, item, f"{path}[{number}]") for number, each in enumerate(given)]

    def _alone(self, value: Any, item: inspect.Type, path: str) -> list[Any] | None:
        """The list of one value that stands where a list should, if it surely is one item of it."""
        match item:
            case inspect.StrType():
                fits = isinstance(value, str) and "," not in value and not _BRACKETS.search(value)
            case inspect.StructType():
                fits = isinstance(value, dict) or (isinstance(value, str) and value.lstrip().startswith("{"))
            case _:
                fits = False
        if not fits:
            return None
        self._notes.add(path, "taken as a list of one")
        return [value]

    def _dict(self, value: Any, kind: inspect.DictType, path: str) -> Any:
        given = self._from_text(value, dict, path)
        if not isinstance(given, dict):
            self._wrong(value, "an object", path, self._example(path, kind))
        return given

    def _from_text(self, value: Any, kind: type, path: str) -> Any:
        """The list or object of which the value is the JSON text; the value itself if it is none."""
        if not isinstance(value, str) or not value.lstrip().startswith("[" if kind is list else "{"):
            return value
        try:
            found = decode_json(value)
        except (msgspec.DecodeError, RecursionError):
            return value
        if not isinstance(found, kind):
            return value
        self._notes.add(path, f"read from JSON text; send {'a list' if kind is list else 'an object'} itself")
        return found

    def _text(self, value: Any, kind: inspect.StrType, path: str) -> Any:
        if type(value) is int and _name_of(path) not in MOMENTS:
            self._notes.add(path, f"the number was taken as the text {shown(str(value))}")
            return str(value)
        if not isinstance(value, str):
            first = value[0] if isinstance(value, list) and len(value) == 1 else None
            self._wrong(value, "text", path, first if isinstance(first, str) else self._example(path, kind))
            return value
        if _name_of(path) in MOMENTS:
            return self._moment(value, path)
        self._check_length(len(value), kind, path, "characters")
        return value

    def _moment(self, text: str, path: str) -> Any:
        if is_moment(_name_of(path), text):
            return text
        if _name_of(path) == "as_of" and text.strip().lower() in {"now", "latest"}:
            self._notes.add(path, "left out, which is now")
            return UNSET
        if whole := _whole_time(text.strip()):
            midnight = ", midnight in UTC" if len(text.strip()) == len("2025-07-15") else ""
            self._notes.add(path, f"{shown(text)} was taken as {whole}{midnight}")
            return whole
        self._fault(path, f"{shown(text)} is no RFC 3339 time; for example {json.dumps(self._now)}, which is now")
        return text

    def _number(self, value: Any, kind: inspect.IntType | inspect.FloatType, path: str) -> Any:
        found = _number_of(value, whole=isinstance(kind, inspect.IntType))
        if found is None:
            wanted = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
            self._wrong(value, wanted, path, self._example(path, kind))
            return value
        if type(value) is not type(found):
            self._notes.add(path, f"{shown(value)} was taken as the number {found}")
        self._check_range(found, kind, path)
        return found

    def _check_range(self, value: float, kind: inspect.IntType | inspect.FloatType, path: str) -> None:
        if kind.ge is not None and value < kind.ge:
            self._fault(path, f"must be at least {kind.ge}")
        if kind.le is not None and value > kind.le:
            self._fault(path, f"must be at most {kind.le}")

    def _check_length(self, length: int, kind: inspect.StrType | inspect.ListType, path: str, what: str) -> None:
        if kind.min_length is not None and length < kind.min_length:
            self._fault(path, f"must not be empty, for example {json.dumps(self._example(path, kind))}")
        if kind.max_length is not None and length > kind.max_length:
            self._fault(path, f"has {length:,} {what}; at most {kind.max_length:,}")

    def _truth(self, value: Any, _kind: inspect.BoolType, path: str) -> Any:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in {"true", "false"}:
            self._notes.add(path, f"{shown(value)} was taken as {value.lower()}")
            return value.lower() == "true"
        self._wrong(value, "true or false", path, example=True)
        return value

    def _choice(self, value: Any, kind: inspect.LiteralType, path: str) -> Any:
        if value in kind.values:
            return value
        choices = [each for each in kind.values if isinstance(each, str)]
        if isinstance(value, str) and value.strip().lower() in choices:
            self._notes.add(path, f"{shown(value)} was taken as {shown(value.strip().lower())}")
            return value.strip().lower()
        near = nearest(value, choices) if isinstance(value, str) else None
        hint = f"; did you mean {shown(near)}?" if near else ""
        self._fault(path, f"{shown(value)} is none of {', '.join(map(shown, kind.values))}{hint}")
        return value

    def _example(self, path: str, kind: inspect.Type) -> object:
        """A value of a kind, as a field of that name has it."""
        kind, name = kind_of(kind), _name_of(path)
        match kind:
            case inspect.StructType():
                chosen = [field for field in kind.fields if field.required or field.encode_name in {"type", "kind"}]
                made: object = {field.encode_name: self._example(field.encode_name, field.type) for field in chosen}
            case inspect.ListType():
                made = EXAMPLES.get(name) or [self._example(name.removesuffix("s"), kind.item_type)]
            case inspect.LiteralType():
                made = kind.values[0]
            case inspect.IntType() | inspect.FloatType():
                made = max(1, kind.ge or 1)
            case inspect.DictType():
                made = EXAMPLES.get(name, {})
            case _:
                made = self._now if name in MOMENTS else EXAMPLES.get(name, "text")
        return made


def is_moment(name: str, text: str) -> bool:
    """Whether a text is a moment as a field of times takes it; empty is none."""
    if not text or (name in _WORDS and _WORDS[name].fullmatch(text)):
        return True
    try:
        parse_time(text)
    except ValueError:
        return False
    return True


def _whole_time(text: str) -> str | None:
    """A day, or a time without seconds or zone, whole and in UTC where it says nothing else."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    zone = (found["zone"] or "Z").upper().replace("UTC", "Z")
    zone = zone if zone == "Z" or ":" in zone else f"{zone[:3]}:{zone[3:]}"
    whole = f"{found['day']}T{found['hour'] or '00:00'}{found['second'] or ':00'}{zone}"
    try:
        datetime.fromisoformat(whole)
    except ValueError:
        return None
    return whole if is_moment("", whole) else None


def _unknown(name: str, value: object, fields: Mapping[str, object], missing: set[str]) -> str:
    """What to say of a name that is none of a Struct's, of which some are ``missing``."""
    own = next((each for each in _OWN_FIELDS if each in fields), None)
    only = next(iter(missing)) if len(missing) == 1 and own is None else None
    if near := nearest(name, fields) or only:
        hint = f" (did you mean `{near}`?)"
    else:
        hint = f" (what is your own goes into `{own}`: {shown({name: value})})" if own else ""
    return f"unknown field{hint}; there are {', '.join(fields)}"


def _number_of(value: object, *, whole: bool) -> int | float | None:
    """A finite number, or the one of which the value is the text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and not re.fullmatch(r"\s*[+-]?\d{1,20}(\.\d{1,20})?\s*", value):
        return None
    if isinstance(value, int):
        return value
    found = float(value)
    if not math.isfinite(found):
        return None
    if not whole:
        return found
    return int(found) if found.is_integer() and abs(found) < 1 << 53 else None


def _named(value: object) -> str:
    """What a value is, in a word or two, with the value where it is short."""
    match value:
        case None:
            return "null"
        case bool() | int() | float() | str():
            return shown(value)
        case list():
            return "a list"
        case _:
            return "an object"


def _knows_null(field: inspect.Field) -> bool:
    """Whether null says something else than leaving it out does."""
    kind = field.type
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    has_default = field.default is not msgspec.NODEFAULT or field.default_factory is not msgspec.NODEFAULT
    is_nullable = isinstance(kind, inspect.UnionType) and any(isinstance(each, inspect.NoneType) for each in kind.types)
    return is_nullable and not (has_default or field.required)


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _name_of(path: str) -> str:
    """The name of the field at a path."""
    return re.sub(r"\[\d+\]$", "", path).rpartition(".")[2]
