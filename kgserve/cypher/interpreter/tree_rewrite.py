"""Replacement of parts of a syntax tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from kgserve.cypher.interpreter.query_tree import QueryNode

_Part = TypeVar("_Part")


def rewrite_tree(part: _Part, rewrite: Callable[[QueryNode], QueryNode]) -> _Part:
    """Return a tree whose parts were replaced from the innermost out; the tree itself if nothing changed."""
    if isinstance(part, tuple):
        items = cast("tuple[Any, ...]", part)
        replaced = tuple(rewrite_tree(each, rewrite) for each in items)
        unchanged = all(new is old for new, old in zip(replaced, items, strict=True))
        return part if unchanged else cast("_Part", replaced)
    if not isinstance(part, QueryNode):
        return part
    fields = {name: getattr(part, name) for name in part.__struct_fields__}
    changed = {name: new for name, value in fields.items() if (new := rewrite_tree(value, rewrite)) is not value}
    return cast("_Part", rewrite(msgspec.structs.replace(part, **changed) if changed else part))
