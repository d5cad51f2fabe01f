"""Replacement of parts of a syntax tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from kgserve.cypher.interpreter.opencypher_syntax_tree import QuerySyntaxNode

_Part = TypeVar("_Part")


def rewrite_syntax_tree(part: _Part, rewrite: Callable[[QuerySyntaxNode], QuerySyntaxNode]) -> _Part:
    """Rewrite a syntax tree from the innermost parts out; return the tree itself if nothing changed."""
    if isinstance(part, tuple):
        items = cast("tuple[Any, ...]", part)
        replaced = tuple(rewrite_syntax_tree(each, rewrite) for each in items)
        unchanged = all(new is old for new, old in zip(replaced, items, strict=True))
        return part if unchanged else cast("_Part", replaced)
    if not isinstance(part, QuerySyntaxNode):
        return part
    fields = {name: getattr(part, name) for name in part.__struct_fields__}
    changed = {name: new for name, value in fields.items() if (new := rewrite_syntax_tree(value, rewrite)) is not value}
    return cast("_Part", rewrite(msgspec.structs.replace(part, **changed) if changed else part))
