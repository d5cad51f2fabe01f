"""Decoding of tool arguments, with correction of likely mistakes and suggestions for the others."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType, inspect

from kgserve.errors import FieldError, InvalidInput, KgserveError, NoStore
from kgserve.graph.compat.versioned_nodes_api import UndecodableSubgraphItem
from kgserve.platform.codecs import (
    convert_plain_value_to_type,
    decode_json,
    locate_validation_error,
    unwrap_optional_type,
)
from kgserve.platform.timestamps import complete_time_to_rfc3339, has_time_zone, is_rfc3339, parse_rfc3339_timestamp
from kgserve.storage.model.node_edge_fields import EDGE, NODE, TIMESTAMP_TYPE

_MAX_COMPARED_NAME_CHARS = 64
_MAX_SUGGESTED_NAMES = 10

_SYNONYM_GROUPS: tuple[tuple[str, ...], ...] = (
    ("index", "store", "store_name", "graph_id"),
    ("id", "lineage_id", "name", "node_id", "entity_id", "entity_name"),
    ("type", "kind", "entity_type", "node_type"),
    ("types", "kinds", "memory_types"),
    ("after", "after_date"),
    ("before", "before_date"),
    ("relation_types", "edge_kinds"),
    ("from", "source", "from_id", "source_id"),
    ("to", "target", "to_id", "target_id"),
    ("relation_type", "relation", "relationship", "relationship_type", "edge_type"),
    ("attributes", "metadata", "properties"),
    ("nodes", "entities"),
    ("edges", "relations", "relationships"),
    ("limit", "top_k", "k", "max_results", "num_results"),
    ("depth", "max_depth", "hops"),
    ("budget", "max_tokens", "token_budget"),
    ("query", "q", "question", "search_query", "cypher", "statement"),
    ("params", "parameters"),
    ("conflict_policy", "policy"),
    ("kind_whitelist", "allowed_kinds", "whitelist"),
)
_FALLBACK_NAMES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("type", "kind", "label"), ("relation_type",)),
    **dict.fromkeys(("relation_type", "relation", "relationship", "relationship_type", "edge_type"), ("kind",)),
    **dict.fromkeys(
        ("id", "name", "node_id", "lineage_id", "from_lineage", "start", "start_node", "from"),
        ("start_id",),
    ),
    "entity_id": ("start_id", "entity", "entity_name"),
    "limit": ("max_nodes", "max_rows"),
    "entity": ("entity_name",),
    "entity_name": ("entity",),
}
"""Names to try for an unknown argument when the tool has none of its synonym group."""
_REQUIRED_ONLY_NAMES = {"relation_type", "start_id"}
"""Fallback names that apply only where the argument is required."""
_AMBIGUOUS_STORE_NAMES = {"name", "graph", "database", "project", "memory"}
"""Names that may mean a store, but are too ambiguous to be replaced; they get a suggestion only."""
_SYNONYMS = {name: [each for each in group if each != name] for group in _SYNONYM_GROUPS for name in group}

ARGUMENT_EXAMPLES: dict[str, object] = {
    "index": "memory",
    "id": "alice",
    "lineage_id": "alice",
    "start_id": "alice",
    "from": "alice",
    "to": "acme",
    "type": "person",
    "kind": "person",
    "types": ["person"],
    "relation_type": "WORKS_AT",
    "relation_types": ["WORKS_AT"],
    "tags": ["topic:login"],
    "query": "who works at acme",
    "content": "Alice works at Acme",
    "attributes": {"status": "open"},
    "metadata": {"status": "open"},
    "params": {"id": "alice"},
}


def guess_intended_argument_name(name: str, fields: Collection[str], required: Collection[str]) -> str | None:
    """Return the one of ``fields`` that an unknown name clearly means, or None."""
    plain = (
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name[:_MAX_COMPARED_NAME_CHARS])
        .lower()
        .replace("-", "_")
        .replace(" ", "_")
    )
    for each in (plain, *_SYNONYMS.get(plain, ())):
        for form in (each, f"{each}s", each.removesuffix("s")):
            if form in fields:
                return form
    further = (each for each in _FALLBACK_NAMES.get(plain, ()) if each in required or each not in _REQUIRED_ONLY_NAMES)
    return next((each for each in further if each in fields), None)


def find_similar_name(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of some names, or None if none is similar."""
    by_plain = {each.lower(): each for each in names}
    if name in _AMBIGUOUS_STORE_NAMES and "index" in by_plain:
        return "index"
    found = get_close_matches(name[:_MAX_COMPARED_NAME_CHARS].lower(), by_plain, 1, cutoff=0.7)
    begun = [each for each in by_plain if name and each.startswith(name.lower())]
    return by_plain[(found or begun)[0]] if found or len(begun) == 1 else None


def format_name_suggestions(name: str, names: Collection[str]) -> str:
    """Return a text of at most ten names, the most similar to ``name`` first, and the number of the others."""
    near = get_close_matches(name[:_MAX_COMPARED_NAME_CHARS], names, _MAX_SUGGESTED_NAMES, cutoff=0.4)
    first = [*near, *(each for each in names if each not in near)][:_MAX_SUGGESTED_NAMES]
    more = len(names) - len(first)
    return ", ".join(map(format_truncated_json, first)) + (f" and {more:,} more" if more > 0 else "")


def format_truncated_json(value: object) -> str:
    """Return a value as JSON, truncated to 64 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_COMPARED_NAME_CHARS else f"{text[:_MAX_COMPARED_NAME_CHARS]}…"


TIME_FIELDS = frozenset(
    {
        *("as_of", "valid_at", "after", "before", "after_date", "before_date", "created_at", "at"),
        *(field.wire for row in (NODE, EDGE) for field in row.extras if field.type is TIMESTAMP_TYPE),
    }
)
"""Names of fields that are times, in all tools."""

_MAX_REPORTED_FAULTS = 20
_MAX_COUNTED_NOTICES = 200
_MAX_REPORTED_NOTES = 10
_ATTRIBUTES_FIELDS = ("attributes", "metadata")
_TIME_ARGUMENTS = {"as_of": re.compile(r"\d+"), "valid_at": re.compile(r"now|any")}
_BRACKETS = re.compile(r"[\[\]{}]")


class _TooManyFaults(Exception):
    """Raised when the limit of counted faults is reached."""


class _MessageList:
    """Faults or notes. Equal messages about different items of a list are reported once, with their number."""

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
        return self._count >= _MAX_COUNTED_NOTICES

    def places(self) -> list[FieldError]:
        return [
            FieldError(path, message + (f" (and {count - 1:,} more like it)" if count > 1 else ""))
            for (_, message), (path, count) in self._found.items()
        ][: self._most]


class ArgumentCorrector:
    """Correction of the arguments of one call against the types that the tool expects.

    Unambiguous mistakes are corrected with a note; all others are reported as faults. The corrected arguments still
    pass through the normal conversion, which enforces all limits.
    """

    def __init__(self, now: float) -> None:
        """Create a correction; ``now`` is the time in examples, in seconds since 1970."""
        self._now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        self._moments = TIME_FIELDS
        self._faults = _MessageList(_MAX_REPORTED_FAULTS)
        self._notes = _MessageList(_MAX_REPORTED_NOTES)
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
        """Faults of the arguments."""
        return tuple(self._faults.places())

    @property
    def notes(self) -> list[str]:
        """Corrections that were made."""
        return [f"{place.path}: {place.message}" for place in self._notes.places()]

    def mended(self, given: Mapping[str, Any], struct: type[msgspec.Struct]) -> Mapping[str, Any]:
        """Return the arguments corrected for ``struct``, as far as possible."""
        self._moments = TIME_FIELDS - _names_of_texts(struct)
        try:
            return self._struct(dict(given), unwrap_optional_type(inspect.type_info(struct)), "")
        except _TooManyFaults:
            return given

    def _fault(self, path: str, message: str) -> None:
        self._faults.add(path, message)
        if self._faults.is_full:
            raise _TooManyFaults

    def _wrong(self, value: object, wanted: str, path: str, example: object) -> None:
        """Report a value of the wrong type."""
        self._fault(path, f"expected {wanted}, got {_describe_value(value)}; for example {json.dumps(example)}")

    def _value(self, value: Any, kind: inspect.Type, path: str) -> Any:
        kind = unwrap_optional_type(kind)
        mend = self._mends.get(type(kind))
        return value if mend is None else mend(value, kind, path)

    def _struct(self, value: Any, kind: inspect.StructType, path: str) -> Any:
        fields = {field.encode_name: field for field in kind.fields}
        required = {name for name, field in fields.items() if field.required}
        given = self._from_text(value, dict, path)
        if isinstance(given, str) and required == {"query"}:
            self._notes.add(path, "the text was used as the query")
            given = {"query": given}
        if not isinstance(given, dict):
            self._wrong(value, "an object", path, self._example("", kind))
            return value
        known = self._rename_fields(given, fields, required, path)
        if required - known.keys() == {"id"} and isinstance(known.get("name"), str):
            # A node has an id and may have a name; a name alone means the id.
            self._notes.add(_at(path, "name"), "used as `id`")
            known["id"] = known.pop("name")
        for name in sorted(required - known.keys()):
            example = self._example(name, fields[name].type)
            self._fault(_at(path, name), f"is required; for example {json.dumps(example)}")
        values = {
            name: self._value(each, fields[name].type, _at(path, name))
            for name, each in known.items()
            if name in required or not self._is_omitted(each, fields[name].type, _at(path, name))
        }
        nulls = dict.fromkeys(
            name for name, each in known.items() if each is None and _distinguishes_null(fields[name])
        )
        return {name: each for name, each in values.items() if each is not UNSET} | nulls

    def _is_omitted(self, value: Any, kind: inspect.Type, path: str) -> bool:
        """Return whether the value of an optional field is empty; some clients must fill in every field."""
        if value == "" and not _takes_empty_text(unwrap_optional_type(kind)):
            self._notes.add(path, "omitted, because it is empty")
            return True
        return value is None

    def _rename_fields(
        self, given: dict[str, Any], fields: Mapping[str, inspect.Field], required: set[str], path: str
    ) -> dict[str, Any]:
        """Return the arguments under the names of the Struct's fields."""
        known = {name: value for name, value in given.items() if name in fields}
        for name in [name for name in given if name not in fields]:
            right = guess_intended_argument_name(name, fields, required)
            if right is None:
                self._fault(
                    _at(path, name), _describe_unknown_field(name, given[name], fields, required - given.keys())
                )
            elif right not in known:
                self._notes.add(_at(path, name), f"used as `{right}`")
                known[right] = given[name]
            elif known[right] != given[name]:
                self._fault(_at(path, name), f"is an alias of `{right}`, which has a different value; omit it")
        return known

    def _list(self, value: Any, kind: inspect.ListType, path: str) -> Any:
        given = self._from_text(value, list, path)
        item = unwrap_optional_type(kind.item_type)
        if not isinstance(given, list):
            given = self._as_single_item(given, item, path)
        if given is None:
            several = isinstance(value, str) and not _BRACKETS.search(value)
            example = [each.strip() for each in value.split(",")] if several else self._example(path, kind)
            self._wrong(value, "a list", path, example)
            return value
        self._check_length(len(given), kind, path, "items")
        return [self._value(each, item, f"{path}[{number}]") for number, each in enumerate(given)]

    def _as_single_item(self, value: Any, item: inspect.Type, path: str) -> list[Any] | None:
        """Return a list of the value if it clearly is one item of the expected list, otherwise None."""
        match item:
            case inspect.StrType():
                fits = isinstance(value, str) and "," not in value and not _BRACKETS.search(value)
            case inspect.StructType():
                fits = isinstance(value, dict) or (isinstance(value, str) and value.lstrip().startswith("{"))
            case _:
                fits = False
        if not fits:
            return None
        self._notes.add(path, "used as a list of one item")
        return [value]

    def _dict(self, value: Any, kind: inspect.DictType, path: str) -> Any:
        given = self._from_text(value, dict, path)
        if not isinstance(given, dict):
            self._wrong(value, "an object", path, self._example(path, kind))
        return given

    def _from_text(self, value: Any, kind: type, path: str) -> Any:
        """Return the list or object that a JSON text contains; any other value unchanged."""
        if not isinstance(value, str) or not value.lstrip().startswith("[" if kind is list else "{"):
            return value
        try:
            found = decode_json(value)
        except (msgspec.DecodeError, RecursionError):
            return value
        if not isinstance(found, kind):
            return value
        self._notes.add(path, f"decoded from JSON text; send {'a list' if kind is list else 'an object'} instead")
        return found

    def _text(self, value: Any, kind: inspect.StrType, path: str) -> Any:
        if type(value) is int and _name_of(path) not in self._moments:
            self._notes.add(path, f"the number was used as the text {format_truncated_json(str(value))}")
            return str(value)
        if not isinstance(value, str):
            first = value[0] if isinstance(value, list) and len(value) == 1 else None
            self._wrong(value, "text", path, first if isinstance(first, str) else self._example(path, kind))
            return value
        if _name_of(path) in self._moments:
            return self._moment(value, path)
        self._check_length(len(value), kind, path, "characters")
        return value

    def _moment(self, text: str, path: str) -> Any:
        if is_time_argument_text_valid(_name_of(path), text):
            return text
        if _name_of(path) == "as_of" and text.strip().lower() in {"now", "latest"}:
            self._notes.add(path, "omitted, which means now")
            return UNSET
        if whole := complete_time_to_rfc3339(text):
            midnight = ", midnight in UTC" if len(text.strip()) == len("2025-07-15") else ""
            zone = "" if midnight or has_time_zone(text) else ", in UTC, because it has no time zone"
            self._notes.add(path, f"{format_truncated_json(text)} was used as {whole}{midnight or zone}")
            return whole
        self._fault(
            path,
            f"{format_truncated_json(text)} is not an RFC 3339 time; for example {json.dumps(self._now)}, which is now",
        )
        return text

    def _number(self, value: Any, kind: inspect.IntType | inspect.FloatType, path: str) -> Any:
        found = _number_of(value, whole=isinstance(kind, inspect.IntType))
        if found is None:
            wanted = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
            self._wrong(value, wanted, path, self._example(path, kind))
            return value
        if type(value) is not type(found):
            self._notes.add(path, f"{format_truncated_json(value)} was used as the number {found}")
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
            self._notes.add(path, f"{format_truncated_json(value)} was used as {value.lower()}")
            return value.lower() == "true"
        self._wrong(value, "true or false", path, example=True)
        return value

    def _choice(self, value: Any, kind: inspect.LiteralType, path: str) -> Any:
        if value in kind.values:
            return value
        choices = [each for each in kind.values if isinstance(each, str)]
        if isinstance(value, str) and value.strip().lower() in choices:
            self._notes.add(
                path, f"{format_truncated_json(value)} was used as {format_truncated_json(value.strip().lower())}"
            )
            return value.strip().lower()
        near = find_similar_name(value, choices) if isinstance(value, str) else None
        hint = f"; did you mean {format_truncated_json(near)}?" if near else ""
        self._fault(
            path,
            f"{format_truncated_json(value)} is not one of {', '.join(map(format_truncated_json, kind.values))}{hint}",
        )
        return value

    def _example(self, path: str, kind: inspect.Type) -> object:
        """Return an example value of a type for the field at a path."""
        kind, name = unwrap_optional_type(kind), _name_of(path)
        match kind:
            case inspect.StructType():
                chosen = [field for field in kind.fields if field.required or field.encode_name in {"type", "kind"}]
                made: object = {field.encode_name: self._example(field.encode_name, field.type) for field in chosen}
            case inspect.ListType():
                made = ARGUMENT_EXAMPLES.get(name) or [self._example(name.removesuffix("s"), kind.item_type)]
            case inspect.LiteralType():
                made = kind.values[0]
            case inspect.IntType() | inspect.FloatType():
                made = max(1, kind.ge or 1)
            case inspect.DictType():
                made = ARGUMENT_EXAMPLES.get(name, {})
            case _:
                made = self._now if name in TIME_FIELDS else ARGUMENT_EXAMPLES.get(name, "text")
        return made


def _takes_empty_text(kind: inspect.Type) -> bool:
    """Return whether an empty text is a valid value of a type, for example to clear a content."""
    match kind:
        case inspect.LiteralType():
            return "" in kind.values
        case inspect.UnionType():
            return any(_takes_empty_text(unwrap_optional_type(each)) for each in kind.types)
        case inspect.StrType():
            return not kind.min_length
        case _:
            return isinstance(kind, inspect.AnyType)


def is_time_argument_text_valid(name: str, text: str) -> bool:
    """Return whether a text is a valid value of the time field ``name``; an empty text is."""
    if not text or (name in _TIME_ARGUMENTS and _TIME_ARGUMENTS[name].fullmatch(text)):
        return True
    try:
        parse_rfc3339_timestamp(text)
    except ValueError:
        return False
    return True


def _describe_unknown_field(name: str, value: object, fields: Mapping[str, object], missing: set[str]) -> str:
    """Return the error message for an unknown field; ``missing`` are required fields that were not sent."""
    own = next((each for each in _ATTRIBUTES_FIELDS if each in fields), None)
    only = next(iter(missing)) if len(missing) == 1 and own is None else None
    if near := find_similar_name(name, fields) or only:
        hint = f" (did you mean `{near}`?)"
    else:
        hint = f" (put custom fields into `{own}`: {format_truncated_json({name: value})})" if own else ""
    return f"unknown field{hint}; allowed fields: {', '.join(fields)}"


def _number_of(value: object, *, whole: bool) -> int | float | None:
    """Return the finite number that a value is, or that its text contains; None for anything else."""
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


def _describe_value(value: object) -> str:
    """Return a short description of a value: the value itself if it is a scalar."""
    match value:
        case None:
            return "null"
        case bool() | int() | float() | str():
            return format_truncated_json(value)
        case list():
            return "a list"
        case _:
            return "an object"


def _distinguishes_null(field: inspect.Field) -> bool:
    """Return whether null and an omitted field have different meanings."""
    kind = field.type
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    has_default = field.default is not msgspec.NODEFAULT or field.default_factory is not msgspec.NODEFAULT
    is_nullable = isinstance(kind, inspect.UnionType) and any(isinstance(each, inspect.NoneType) for each in kind.types)
    return is_nullable and not (has_default or field.required)


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _name_of(path: str) -> str:
    """Return the name of the field at a path."""
    return re.sub(r"\[\d+\]$", "", path).rpartition(".")[2]


S = TypeVar("S", bound=msgspec.Struct)

StoreNamesProvider = Callable[[], Sequence[str]]
"""Function that returns the names of the stores that a caller may access; may block."""


def find_tool_store_argument(values: Mapping[str, Any]) -> str | None:
    """Return the store that undecoded arguments name, or None."""
    names = (value for name, value in values.items() if guess_intended_argument_name(name, ("index",), ()))
    return next((value for value in names if isinstance(value, str)), None)


def resolve_tool_call_store(index: str | UnsetType, default: str | None, names: StoreNamesProvider = tuple) -> str:
    """Return the store of a call. Raises InvalidInput if the call names none and there is no default store."""
    store = index or default
    if not store:
        message = "is required, because this connection has no default store; list_stores returns the stores"
        found = names()
        message += f": {format_name_suggestions('', found)}" if found else ""
        raise InvalidInput.at("index", message)
    return store


def decode_tool_arguments(values: Mapping[str, Any] | None, into: type[S], notes: list[str]) -> S:
    """Decode ``values`` as ``into``; corrections are appended to ``notes``.

    Invalid items of the lists in ``into.apart`` become `UndecodableSubgraphItem`. Raises InvalidInput with every other
    fault, also for NaN and lone surrogates, which JSON does not allow.
    """
    try:
        return _read(values, into, notes)
    except InvalidInput:
        apart: Mapping[str, type[msgspec.Struct]] = getattr(into, "apart", {})
        lists = {name: value for name, value in (values or {}).items() if name in apart and isinstance(value, list)}
        if not lists:
            raise
        read = _read({name: value for name, value in (values or {}).items() if name not in lists}, into, notes)
    for name, items in lists.items():
        setattr(read, name, [_item(item, apart[name], f"{name}[{place}]", notes) for place, item in enumerate(items)])
    return read


def _item(item: object, kind: type[S], place: str, notes: list[str]) -> S | UndecodableSubgraphItem:
    own: list[str] = []
    try:
        if not isinstance(item, Mapping):
            return convert_plain_value_to_type(item, kind)
        read = _read(cast("Mapping[str, Any]", item), kind, own)
    except msgspec.ValidationError as error:
        return UndecodableSubgraphItem(_invalid((locate_validation_error(error, kind),)))
    except InvalidInput as error:
        ref = cast("Mapping[str, Any]", item).get("ref")
        return UndecodableSubgraphItem(error, ref if isinstance(ref, str) else None)
    notes += [f"{place}.{note}" for note in own]
    return read


def _read(values: Mapping[str, Any] | None, into: type[S], notes: list[str]) -> S:
    given = {name: value for name, value in (values or {}).items() if value is not None}
    if type(sequence := given.get("as_of")) is int:
        # Answers contain sequences as numbers, so models send numbers.
        given["as_of"] = str(sequence)
    _check_json(given)
    try:
        read = convert_plain_value_to_type(given, into)
    except msgspec.ValidationError:
        return _convert_corrected(given, into, notes)
    except RecursionError:
        raise _too_deep() from None
    return _convert_corrected(given, into, notes) if _has_invalid_time(given, into) else read


def _convert_corrected(given: Mapping[str, Any], into: type[S], notes: list[str]) -> S:
    mending = ArgumentCorrector(time.time())
    try:
        values = mending.mended(given, into)
        if mending.faults:
            raise _invalid(mending.faults)
        _check_json(values)
        read = convert_plain_value_to_type(values, into)
    except msgspec.ValidationError as error:
        raise _invalid((locate_validation_error(error, into),)) from None
    except RecursionError:
        raise _too_deep() from None
    notes += mending.notes
    return read


def _check_json(given: Mapping[str, Any]) -> None:
    """Raise InvalidInput for values that JSON does not allow."""
    try:
        json.dumps(given, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidInput("the arguments contain a lone surrogate") from None
    except ValueError:
        raise _invalid((FieldError(_not_finite(given, "") or "", "is not a finite number"),)) from None
    except RecursionError:
        raise _too_deep() from None


def _invalid(faults: tuple[FieldError, ...]) -> InvalidInput:
    first = faults[0]
    return InvalidInput(f"{first.path}: {first.message}" if first.path else first.message, faults)


def _too_deep() -> InvalidInput:
    return InvalidInput("the arguments are nested too deeply")


def _not_finite(value: object, path: str) -> str | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else path
    if isinstance(value, dict):
        places = ((f"{path}.{key}" if path else str(key), item) for key, item in value.items())
    elif isinstance(value, list):
        places = ((f"{path}[{number}]", item) for number, item in enumerate(value))
    else:
        return None
    return next((found for place, item in places if (found := _not_finite(item, place))), None)


def _has_invalid_time(given: Mapping[str, Any], into: type[msgspec.Struct]) -> bool:
    """Return whether a time field of the arguments, or of an item of their lists, is not a valid time."""
    own, in_lists = _time_fields(into)
    return _has_invalid_field(given, own) or any(
        _has_invalid_field(item, moments) for name, moments in in_lists for item in given.get(name) or () if item
    )


def _has_invalid_field(given: Mapping[str, Any], moments: frozenset[str]) -> bool:
    if moments.isdisjoint(given):
        return False
    texts = ((name, given.get(name)) for name in moments)
    return any(text and not is_rfc3339(text) and not is_time_argument_text_valid(name, text) for name, text in texts)


@cache
def _time_fields(struct: type[msgspec.Struct]) -> tuple[frozenset[str], list[tuple[str, frozenset[str]]]]:
    """Return the time fields of ``struct``, and for each of its lists the time fields of the items."""
    fields = {
        field.encode_name: unwrap_optional_type(field.type)
        for field in unwrap_optional_type(inspect.type_info(struct)).fields
    }
    items = {
        name: unwrap_optional_type(kind.item_type)
        for name, kind in fields.items()
        if isinstance(kind, inspect.ListType)
    }
    in_lists = [
        (name, moments)
        for name, item in items.items()
        if isinstance(item, inspect.StructType) and (moments := _moments_of(item))
    ]
    return _moments_of(unwrap_optional_type(inspect.type_info(struct))), in_lists


def _moments_of(kind: inspect.StructType) -> frozenset[str]:
    texts = {
        field.encode_name for field in kind.fields if isinstance(unwrap_optional_type(field.type), inspect.StrType)
    }
    return TIME_FIELDS & texts - _names_of_texts(kind.cls)


def _names_of_texts(struct: type[msgspec.Struct]) -> frozenset[str]:
    """Return the fields of a request that have the name of a time field but are not times."""
    return getattr(struct, "not_times", frozenset())


def format_mcp_tool_error(error: KgserveError, names: StoreNamesProvider = tuple) -> str:
    """Return an error as text: its message, one line per further field error, and for a missing store the others."""
    if isinstance(error, NoStore):
        found = names()
        return (
            f"{error}; there are {format_name_suggestions(error.store, found)}" if found else f"{error}, nor any other"
        )
    places = error.errors[1:] if isinstance(error, InvalidInput) else ()
    return "\n".join([str(error), *(f"{place.path}: {place.message}" for place in places)])
