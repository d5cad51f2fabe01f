"""The form of an answer, and what a model has answered, taken apart: nothing is believed to have that form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from kgserve.decoding import decode_json
from kgserve.llm.chat import Unanswered

Item = TypeVar("Item")
OR_NULL = {"type": ["string", "null"]}
"""The schema of a text, or of none."""


def object_of(**properties: Any) -> dict[str, Any]:
    """The schema of an object that has all of these properties and no other."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def parts(text: str, known: Sequence[str]) -> tuple[dict[str, list[msgspec.Raw]], int]:
    """The lists of an answer by name, items as they came, and how many other parts it has. Raises Unanswered."""
    try:
        found = decode_json(object_in(text), dict[str, msgspec.Raw])
        lists = {name: decode_json(bytes(found[name]), list[msgspec.Raw] | None) for name in known if name in found}
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise Unanswered("its answer is not the JSON that was asked for", of_service=False) from None
    if not lists:
        raise Unanswered(f"its answer has none of {', '.join(known)}", of_service=False)
    return {name: lists.get(name) or [] for name in known}, len(found.keys() - set(known))


def items(raw: Sequence[msgspec.Raw], kind: type[Item], most: int) -> tuple[list[Item], int]:
    """The first items that are what they should be, and how many others there are."""
    found: list[Item] = []
    for each in raw[:most]:
        try:
            found.append(decode_json(bytes(each), kind))
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue
    return found, len(raw) - len(found)


def object_in(text: str) -> str:
    """The JSON object of an answer that may have words, a fence or thoughts around it."""
    said = text.rpartition("</think>")[2]
    first, last = said.find("{"), said.rfind("}")
    return said[first : last + 1] if 0 <= first < last else said
