"""What is likely meant: names that stand for others, the nearest of some, and examples of what is wanted."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches

_SHORT = 64
_NAMED = 10

_GROUPS: tuple[tuple[str, ...], ...] = (
    ("index", "store", "store_name", "graph_id"),
    ("id", "lineage_id", "name", "node_id", "entity_id", "entity_name"),
    ("type", "kind", "entity_type", "node_type"),
    ("types", "kinds"),
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
_FURTHER: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("type", "kind", "label"), ("relation_type",)),
    **dict.fromkeys(("relation_type", "relation", "relationship", "relationship_type", "edge_type"), ("kind",)),
    **dict.fromkeys(
        ("id", "name", "node_id", "entity_id", "lineage_id", "from_lineage", "start", "start_node", "from"),
        ("start_id",),
    ),
    "limit": ("max_nodes", "max_rows"),
}
"""Names that stand for another where a tool has none of their own group."""
_ONLY_REQUIRED = {"relation_type", "start_id"}
"""Those of them that are meant only where nothing can be done without."""
_STORES = {"name", "graph", "database", "project", "memory"}
"""Names that may well mean a store, and too much else to be taken for one."""
_STANDS_FOR = {name: [each for each in group if each != name] for group in _GROUPS for name in group}

EXAMPLES: dict[str, object] = {
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


def meant(name: str, fields: Collection[str], required: Collection[str]) -> str | None:
    """The one of ``fields`` that a name which is none of them stands for, if it surely does."""
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name[:_SHORT]).lower().replace("-", "_").replace(" ", "_")
    for each in (plain, *_STANDS_FOR.get(plain, ())):
        for form in (each, f"{each}s", each.removesuffix("s")):
            if form in fields:
                return form
    further = (each for each in _FURTHER.get(plain, ()) if each in required or each not in _ONLY_REQUIRED)
    return next((each for each in further if each in fields), None)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of some names that is most like a name, if any is."""
    by_plain = {each.lower(): each for each in names}
    if name in _STORES and "index" in by_plain:
        return "index"
    found = get_close_matches(name[:_SHORT].lower(), by_plain, 1, cutoff=0.7)
    begun = [each for each in by_plain if name and each.startswith(name.lower())]
    return by_plain[(found or begun)[0]] if found or len(begun) == 1 else None


def listed(name: str, names: Collection[str]) -> str:
    """Names of which there may be many, the nearest to one first, as text."""
    near = get_close_matches(name[:_SHORT], names, _NAMED, cutoff=0.4)
    first = [*near, *(each for each in names if each not in near)][:_NAMED]
    more = len(names) - len(first)
    return ", ".join(map(shown, first)) + (f" and {more:,} more" if more > 0 else "")


def shown(value: object) -> str:
    """A value as JSON, not too long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"
