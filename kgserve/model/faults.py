"""What msgspec says of a value that does not fit, as a fault with its place."""

from __future__ import annotations

import re

import msgspec

from kgserve.errors import FieldError

_FAULT = re.compile(r"(?P<message>.*?)(?: - at `(?:key in )?(?P<path>[^`]*)`)?", re.DOTALL)
_FIELD = re.compile(r"Object (?:contains unknown|missing required) field `(?P<name>.*)`", re.DOTALL)


def place_of(error: msgspec.ValidationError) -> FieldError:
    """Msgspec's message taken apart: ``nodes[0].id`` and what is wrong there. A field it names joins the path."""
    found = _FAULT.fullmatch(str(error))
    message, path = (found["message"], found["path"] or "") if found else (str(error), "")
    path = path.removeprefix("$").removeprefix(".")
    if field := _FIELD.fullmatch(message):
        path = f"{path}.{field['name']}" if path else field["name"]
    return FieldError(path, message)
