"""Arguments of a call, read into the Struct of its tool, and what is said of those that do not fit."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from kgserve.decoding import convert
from kgserve.errors import FieldError, InvalidInput, KgserveError
from kgserve.model.requests import place_of

S = TypeVar("S", bound=msgspec.Struct)


def store_of(index: str | msgspec.UnsetType, default: str | None) -> str:
    """The store that a call means. Raises InvalidInput when it says none and there is no default."""
    store = index or default
    if not store:
        message = "say which store is meant: there is no default store on this connection; list_stores names them"
        raise InvalidInput(f"index: {message}", (FieldError("index", message),))
    return store


def read_arguments(values: Mapping[str, Any] | None, into: type[S]) -> S:
    """``values`` as ``into``. Raises InvalidInput naming the place; JSON knows neither NaN nor half characters."""
    given = {name: value for name, value in (values or {}).items() if value is not None}
    if type(sequence := given.get("as_of")) is int:
        # Answers give sequences as numbers, and so models send them.
        given["as_of"] = str(sequence)
    try:
        json.dumps(given, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidInput("the arguments hold a surrogate without its other half") from None
    except ValueError:
        path = _not_finite(given, "") or ""
        raise InvalidInput(f"{path}: is not a finite number", (FieldError(path, "is not a finite number"),)) from None
    except RecursionError:
        raise InvalidInput("the arguments are nested too deeply") from None
    try:
        return convert(given, into)
    except msgspec.ValidationError as error:
        fault = place_of(error)
        raise InvalidInput(f"{fault.path}: {fault.message}" if fault.path else fault.message, (fault,)) from None
    except RecursionError:
        raise InvalidInput("the arguments are nested too deeply") from None


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


def explained(error: KgserveError) -> str:
    """An error as text: the sentence, and every place beyond the first that it names."""
    places = error.errors[1:] if isinstance(error, InvalidInput) else ()
    return "\n".join([str(error), *(f"{place.path}: {place.message}" for place in places)])
