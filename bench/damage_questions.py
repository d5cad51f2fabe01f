"""Questions of `bench.damage` to a data folder, chosen so that any loss changes an answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from kgserve.client import Store
from kgserve.client.embedded import Library
from kgserve.errors import KgserveError
from kgserve.platform.access.audit import read_newest_audit_records
from kgserve.platform.access.authentication import read_api_keys

Answers: TypeAlias = dict[str, Any]
Question: TypeAlias = Callable[[], Any]

VOLATILE = {
    "took_ms",
    "effective_confidence",
    "inbound_seen",
    "bytes",
    "index_sequence",
    "confidence",
    "last_accessed_at",
    "access_count",
    "score",
    "degraded",
}
"""Fields that change with time or between readings."""
REFUSED = "refused: "


def answer(library: Library, data: Path) -> Answers:
    """Answer all questions, without volatile fields; a rejected question is answered with its message."""
    store = library.store("s")
    questions = {
        **_current_state_questions(library, store),
        **_history_questions(store),
        **_search_questions(store),
        **_memory_questions(store),
        "audit": lambda: read_newest_audit_records(data, 100),
        "keys": lambda: read_api_keys(data),
    }
    return {name: _plain_answer(question) for name, question in questions.items()}


def is_refusal(answer: Any) -> bool:
    """Return True if an answer is a rejection."""
    return isinstance(answer, str) and answer.startswith(REFUSED)


def _current_state_questions(library: Library, store: Store) -> dict[str, Question]:
    edges = "MATCH (n:Entity)-[]->(m) RETURN n.id, m.id, n.content ORDER BY n.id, m.id"
    return {
        "accesses": lambda: [(each.id, each.access_count) for each in store.memories().memories],
        "nodes": lambda: list(store.nodes()),
        "nodes by attribute": lambda: list(store.nodes(attributes={"rank": 1})),
        "nodes by tag": lambda: list(store.nodes(tags=["red"])),
        "node": lambda: store.node("n1"),
        "merged node": lambda: store.node("n21"),
        "links": store.links,
        "links to the other": library.store("other").links,
        "nodes of the other": lambda: list(library.store("other").nodes()),
        "walk": lambda: store.traverse("n1", depth=2),
        "walk with links": lambda: store.traverse("n1", depth=2, follow_symlinks=True),
        "tags": store.list_tags,
        "schema": store.describe_schema,
        "statement": lambda: store.cypher(edges),
        "export": lambda: list(store.export()),
        "stores": lambda: _list_stores(library),
        "counts": lambda: (found := store.stats()) and (found.nodes, found.edges, found.types, found.digest),
        "settings": store.settings,
    }


def _list_stores(library: Library) -> list[tuple[str, int | None]]:
    stores = library.stores().stores
    if damaged := [each.name for each in stores if each.state == "damaged"]:
        raise KgserveError(f"listed as damaged: {damaged}")
    return [(each.name, each.nodes) for each in stores]


def _history_questions(store: Store) -> dict[str, Question]:
    last = store.stats().sequence
    found: dict[str, Question] = {
        f"nodes as of {at}": lambda at=at: list(store.nodes(as_of=str(at))) for at in range(1, last + 1)
    }
    found |= {
        f"walk as of {at}": lambda at=at: store.traverse("n1", depth=2, as_of=str(at)) for at in range(1, last + 1)
    }
    return found | {
        f"states of {each}": lambda each=each: store.history(each) for each in ("n1", "n2", "n4", "n23", "n21")
    }


def _search_questions(store: Store) -> dict[str, Question]:
    last = store.stats().sequence

    def found(query: str, **wanted: Any) -> list[str]:
        return sorted(hit.node.id for hit in store.search(query, limit=30, at_least=last, **wanted).hits)

    return {
        "words": lambda: found("elk", mode="keyword"),
        "meaning": lambda: found("elk", mode="semantic"),
        "hybrid": lambda: found("ibex"),
        "words as of 1": lambda: found("hen", mode="keyword", as_of="1"),
        "meaning as of 1": lambda: found("hen", mode="semantic", as_of="1"),
    }


def _memory_questions(store: Store) -> dict[str, Question]:
    return {
        "memories": store.memories,
        "entities": store.entities,
        "recall": lambda: [hit.id for hit in store.recall("chess", touch=False).hits],
        "recall of the older": lambda: [hit.id for hit in store.recall("green tea", touch=False).hits],
        "memories about": lambda: store.memories(entity="Carol"),
    }


def _plain_answer(question: Question) -> Any:
    try:
        return _without_volatile_fields(msgspec.to_builtins(question()))
    except KgserveError as error:
        return f"{REFUSED}{error.message}"


def _without_volatile_fields(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_volatile_fields(each) for key, each in value.items() if key not in VOLATILE}
    if isinstance(value, list | tuple):
        return [_without_volatile_fields(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value
