"""Arguments of a call, read into the Struct of its tool, and what is said of those that do not fit."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from kgserve.decoding import convert, kind_of, place_of
from kgserve.errors import FieldError, InvalidInput, KgserveError, NoStore
from kgserve.mcp.likely import listed, meant
from kgserve.mcp.mending import MOMENTS, Mending, is_moment
from kgserve.model.times import has_form
from kgserve.model.versioned import Unread

S = TypeVar("S", bound=msgspec.Struct)

Names = Callable[[], Sequence[str]]
"""The stores that a caller sees; may block."""


def store_named(values: Mapping[str, Any]) -> str | None:
    """The store that arguments name, as far as can be said before they are read."""
    names = (value for name, value in values.items() if meant(name, ("index",), ()))
    return next((value for value in names if isinstance(value, str)), None)


def store_of(index: str | msgspec.UnsetType, default: str | None, names: Names = tuple) -> str:
    """The store that a call means. Raises InvalidInput when it says none and there is no default."""
    store = index or default
    if not store:
        message = "say which store is meant: there is no default store on this connection; list_stores names them"
        found = names()
        message += f": {listed('', found)}" if found else ""
        raise InvalidInput(f"index: {message}", (FieldError("index", message),))
    return store


def read_arguments(values: Mapping[str, Any] | None, into: type[S], notes: list[str]) -> S:
    """``values`` as ``into``; what was put right on the way is added to ``notes``.

    Items of lists that ``into`` wants read ``apart`` are `Unread` where something is wrong with them. Raises
    InvalidInput naming every fault of the rest. JSON knows neither NaN nor half characters.
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


def _item(item: object, kind: type[S], place: str, notes: list[str]) -> S | Unread:
    own: list[str] = []
    try:
        if not isinstance(item, Mapping):
            return convert(item, kind)
        read = _read(cast("Mapping[str, Any]", item), kind, own)
    except msgspec.ValidationError as error:
        return Unread(_invalid((place_of(error, kind),)))
    except InvalidInput as error:
        ref = cast("Mapping[str, Any]", item).get("ref")
        return Unread(error, ref if isinstance(ref, str) else None)
    notes += [f"{place}.{note}" for note in own]
    return read


def _read(values: Mapping[str, Any] | None, into: type[S], notes: list[str]) -> S:
    given = {name: value for name, value in (values or {}).items() if value is not None}
    if type(sequence := given.get("as_of")) is int:
        # Answers give sequences as numbers, and so models send them.
        given["as_of"] = str(sequence)
    _check_json(given)
    try:
        read = convert(given, into)
    except msgspec.ValidationError:
        return _mended(given, into, notes)
    except RecursionError:
        raise _too_deep() from None
    return _mended(given, into, notes) if _has_odd_moment(given, into) else read


def _mended(given: Mapping[str, Any], into: type[S], notes: list[str]) -> S:
    mending = Mending(time.time())
    try:
        values = mending.mended(given, into)
        if mending.faults:
            raise _invalid(mending.faults)
        _check_json(values)
        read = convert(values, into)
    except msgspec.ValidationError as error:
        raise _invalid((place_of(error, into),)) from None
    except RecursionError:
        raise _too_deep() from None
    notes += mending.notes
    return read


def _check_json(given: Mapping[str, Any]) -> None:
    """Raises InvalidInput for what JSON does not know."""
    try:
        json.dumps(given, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidInput("the arguments hold a surrogate without its other half") from None
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


def _has_odd_moment(given: Mapping[str, Any], into: type[msgspec.Struct]) -> bool:
    """Whether what fits otherwise has a text in the place of a time, in an item of a list too, that is none yet."""
    own, in_lists = _places_of_moments(into)
    return _is_odd(given, own) or any(
        _is_odd(item, moments) for name, moments in in_lists for item in given.get(name) or () if item
    )


def _is_odd(given: Mapping[str, Any], moments: frozenset[str]) -> bool:
    if moments.isdisjoint(given):
        return False
    texts = ((name, given.get(name)) for name in moments)
    return any(text and not has_form(text) and not is_moment(name, text) for name, text in texts)


@cache
def _places_of_moments(struct: type[msgspec.Struct]) -> tuple[frozenset[str], list[tuple[str, frozenset[str]]]]:
    """The fields of ``struct`` that are times, and by the names of its lists those of their items, if there are any."""
    fields = {field.encode_name: kind_of(field.type) for field in kind_of(inspect.type_info(struct)).fields}
    items = {name: kind_of(kind.item_type) for name, kind in fields.items() if isinstance(kind, inspect.ListType)}
    in_lists = [
        (name, moments)
        for name, item in items.items()
        if isinstance(item, inspect.StructType) and (moments := MOMENTS & {field.encode_name for field in item.fields})
    ]
    return MOMENTS & fields.keys(), in_lists


def explained(error: KgserveError, names: Names = tuple) -> str:
    """An error as text: the sentence, every place beyond the first that it names, the stores where one is not there."""
    if isinstance(error, NoStore):
        found = names()
        return f"{error}; there are {listed(error.store, found)}" if found else f"{error}, nor any other"
    places = error.errors[1:] if isinstance(error, InvalidInput) else ()
    return "\n".join([str(error), *(f"{place.path}: {place.message}" for place in places)])
