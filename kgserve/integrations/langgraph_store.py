"""LangGraph's long-term memory: a `BaseStore` whose items are the nodes of a store."""

from __future__ import annotations

import asyncio
import json
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Literal

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    get_text_at_path,
    tokenize_path,
    validate_op_namespace,
)
from typing_extensions import override

from kgserve.client import Store
from kgserve.errors import Forbidden, InvalidInput, NotFound
from kgserve.graph.answers import Node
from kgserve.graph.request_bodies import MAX_QUERY_CHARS

ITEM_NODE_TYPE = "langgraph_item"
MAX_ITEM_ID_BYTES = 512

_NAMESPACE_TAG, _ANCESTOR_TAG, _TTL_TAG = "namespace:", "within:", "ttl_minutes:"
_MAX_NODES_PER_READ = 1_000
_MAX_HITS_PER_PAGE = 100
_MAX_HIT_OFFSET = 10_000
_MAX_PUSHED_CONDITIONS = 20
_MAX_PUSHED_TEXT_CHARS = 200
_MAX_INTEGER = 1 << 63
_REFRESH_AFTER_FRACTION_OF_TTL = 0.01
_NAMESPACES_QUERY = f"""
MATCH (item:{ITEM_NODE_TYPE}) WHERE item.freshness_at IS NULL OR item.freshness_at >= datetime()
UNWIND item.tags AS tag WITH tag WHERE tag STARTS WITH '{_NAMESPACE_TAG}' RETURN DISTINCT tag
"""
_SWEEP_QUERY = f"MATCH (item:{ITEM_NODE_TYPE}) WHERE item.freshness_at < datetime() DETACH DELETE item"

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


class LangGraphStore(BaseStore):
    """LangGraph `BaseStore` whose items are nodes of ``store``; threads may share it.

    ``fields``: paths of the text that a natural-language query searches, in the syntax of LangGraph's `index`; "$" is
    all text of an item. ``mode``: how a query searches. ``ttl``: default lifetime of items, in minutes, and whether
    reads extend it. Expired items are never returned; `sweep_ttl` deletes them.

    Namespace and key of an item must fit into 512 bytes of JSON, and its value into 256 KiB.
    """

    supports_ttl = True

    def __init__(
        self,
        store: Store,
        *,
        fields: Sequence[str] = ("$",),
        mode: Literal["hybrid", "keyword", "semantic"] = "hybrid",
        ttl: TTLConfig | None = None,
    ) -> None:
        self.store = store
        self.ttl_config = ttl
        self._fields = tuple(fields)
        self._mode: Literal["hybrid", "keyword", "semantic"] = mode
        self._written_sequence: int | None = None

    @override
    def batch(self, ops: Iterable[Op]) -> list[Result]:
        operations = list(ops)
        for operation in operations:
            validate_op_namespace(operation)
        found = self._read_items([each for each in operations if isinstance(each, GetOp)])
        results: list[Result] = []
        for operation in operations:
            match operation:
                case GetOp():
                    results.append(found.get(build_item_node_id(operation.namespace, operation.key)))
                case SearchOp():
                    results.append(self._search(operation))
                case ListNamespacesOp():
                    results.append(self._list_namespaces(operation))
                case PutOp():
                    results.append(None)
        self._write([each for each in operations if isinstance(each, PutOp)])
        return results

    @override
    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await asyncio.to_thread(self.batch, list(ops))

    def sweep_ttl(self) -> int:
        """Delete all expired items and return their number. Runs one Cypher write."""
        try:
            changes = self.store.cypher(_SWEEP_QUERY, mode="write").changes
        except NotFound:
            return 0
        return changes.nodes_deleted if changes else 0

    def _read_items(self, reads: Sequence[GetOp]) -> dict[str, Item]:
        refreshed = {build_item_node_id(each.namespace, each.key): each.refresh_ttl for each in reads}
        nodes: list[Node] = []
        ids = list(refreshed)
        with suppress(NotFound):
            for start in range(0, len(ids), _MAX_NODES_PER_READ):
                nodes += self.store.get_nodes(ids[start : start + _MAX_NODES_PER_READ], valid_at="now").nodes
        fresh = [node for node in nodes if node.id in refreshed and _is_live_item(node)]
        self._extend_lifetimes(node for node in fresh if refreshed[node.id])
        return {node.id: Item(**_item_fields(node)) for node in fresh}

    def _search(self, op: SearchOp) -> list[SearchItem]:
        filters = op.filter or {}
        with suppress(NotFound):
            matching = (
                (node, score)
                for node, score in self._candidates(op)
                if _is_live_item(node) and is_filter_match(node.attributes, filters)
            )
            page = list(islice(matching, op.offset, op.offset + op.limit))
            if op.refresh_ttl:
                self._extend_lifetimes(node for node, _ in page)
            return [SearchItem(**_item_fields(node), score=score) for node, score in page]
        return []

    def _candidates(self, op: SearchOp) -> Iterator[tuple[Node, float | None]]:
        """Yield the nodes that may match: best first for a query, otherwise by id."""
        tags = [_tag(_ANCESTOR_TAG, op.namespace_prefix)] if op.namespace_prefix else []
        attributes = _server_conditions(op.filter or {}) or None
        if not op.query:
            size = max(1, min(_MAX_NODES_PER_READ, op.offset + op.limit))
            with self.store.nodes(type=ITEM_NODE_TYPE, page_size=size, tags=tags, attributes=attributes) as nodes:
                yield from ((node, None) for node in nodes)
            return
        for offset in range(0, _MAX_HIT_OFFSET, _MAX_HITS_PER_PAGE):
            hits = self.store.search(
                op.query[:MAX_QUERY_CHARS],
                mode=self._mode,
                limit=_MAX_HITS_PER_PAGE,
                offset=offset,
                types=[ITEM_NODE_TYPE],
                tags=tags or None,
                attributes=attributes,
                at_least=self._written_sequence,
                fresh_only=True,
            ).hits
            yield from ((hit.node, hit.score) for hit in hits)
            if len(hits) < _MAX_HITS_PER_PAGE:
                return

    def _list_namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        found: set[tuple[str, ...]] = set()
        with suppress(NotFound), self.store.cypher_rows(_NAMESPACES_QUERY) as rows:
            found = {tuple(json.loads(tag.removeprefix(_NAMESPACE_TAG))) for (tag,) in rows}
        matching = {
            namespace[: op.max_depth]
            for namespace in found
            if all(is_namespace_match(condition, namespace) for condition in op.match_conditions or ())
        }
        return sorted(matching)[op.offset : op.offset + op.limit]

    def _write(self, puts: Sequence[PutOp]) -> None:
        """Write the last put of each key: all new values in one commit, then all deletions."""
        last = {build_item_node_id(each.namespace, each.key): each for each in puts}
        nodes = [self._build_node(item_id, each) for item_id, each in last.items() if each.value is not None]
        if nodes:
            self._written_sequence = self.store.inject(nodes).sequence
        deleted = [item_id for item_id, each in last.items() if each.value is None]
        with suppress(NotFound):
            for start in range(0, len(deleted), _MAX_NODES_PER_READ):
                some = deleted[start : start + _MAX_NODES_PER_READ]
                self.store.delete_nodes(ids=some, types=[ITEM_NODE_TYPE], valid_at="any")

    def _build_node(self, item_id: str, put: PutOp) -> dict[str, Any]:
        value = dict(put.value or {})
        paths = () if put.index is False else self._fields if put.index is None else put.index
        texts = [text for path in paths for text in _texts_at(value, path)]
        namespace = put.namespace
        tags = [_tag(_NAMESPACE_TAG, namespace)]
        tags += [_tag(_ANCESTOR_TAG, namespace[:depth]) for depth in range(1, len(namespace) + 1)]
        if put.ttl is not None:
            tags.append(f"{_TTL_TAG}{put.ttl}")
        return {
            "id": item_id,
            "type": ITEM_NODE_TYPE,
            "content": "\n".join(texts),
            "attributes": value,
            "tags": tags,
            "freshness_at": "" if put.ttl is None else _expiry(put.ttl),
            "valid_to": "",
        }

    def _extend_lifetimes(self, nodes: Iterable[Node]) -> None:
        """Move the expiry of items that were read; leave those out that were deleted meanwhile."""
        expiries = [{"id": node.id, "freshness_at": expiry} for node in nodes if (expiry := _extended_expiry(node))]
        if not expiries:
            return
        with suppress(Forbidden):  # a key that may only read extends nothing
            try:
                self.store.inject(expiries)
            except InvalidInput:
                for each in expiries:
                    with suppress(InvalidInput):
                        self.store.inject([each])


def build_item_node_id(namespace: Sequence[str], key: str) -> str:
    """Return the id of an item's node: a JSON array of the namespace's labels and the key."""
    item_id = _compact_json([*namespace, str(key)])
    if len(item_id.encode()) > MAX_ITEM_ID_BYTES:
        raise ValueError(
            f"the namespace and key {item_id[:60]}… take more than {MAX_ITEM_ID_BYTES} bytes; use shorter ones"
        )
    return item_id


def is_namespace_match(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    """Return True if a namespace begins or ends with a path, in which "*" is any label."""
    path = tuple(condition.path)
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))


def is_filter_match(value: Any, condition: Any) -> bool:
    """Return True if a value satisfies a filter: a value, operators such as `$gte`, or filters of its keys."""
    if isinstance(condition, Mapping):
        if any(str(name).startswith("$") for name in condition):
            return all(_compare(value, name, operand) for name, operand in condition.items())
        return isinstance(value, dict) and all(
            is_filter_match(value.get(name), each) for name, each in condition.items()
        )
    if isinstance(condition, list | tuple):
        return (
            isinstance(value, list)
            and len(value) == len(condition)
            and all(is_filter_match(each, wanted) for each, wanted in zip(value, condition, strict=True))
        )
    return value == condition


def _compare(value: Any, name: str, operand: Any) -> bool:
    """Apply an operator of a filter. Values that cannot be ordered, such as a missing one, do not match."""
    if name in {"$eq", "$ne"}:
        return (value == operand) is (name == "$eq")
    if name not in _COMPARISONS:
        raise ValueError(f"unknown filter operator {name!r}; use one of $eq, $ne, {', '.join(_COMPARISONS)}")
    try:
        return value is not None and _COMPARISONS[name](value, operand)
    except TypeError:
        return False


def _server_conditions(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conditions that the server can apply itself: those of equal scalar values."""
    wanted = {
        name: each["$eq"] if isinstance(each, Mapping) and [*each] == ["$eq"] else each
        for name, each in filters.items()
    }
    return dict(
        islice(((name, each) for name, each in wanted.items() if _is_indexed_value(each)), _MAX_PUSHED_CONDITIONS)
    )


def _is_indexed_value(value: Any) -> bool:
    match value:
        case str():
            return len(value) <= _MAX_PUSHED_TEXT_CHARS
        case int():  # includes bool
            return -_MAX_INTEGER <= value < _MAX_INTEGER
        case float():
            return math.isfinite(value)
        case _:
            return False


def _is_live_item(node: Node) -> bool:
    return node.type == ITEM_NODE_TYPE and not node.stale


def _item_fields(node: Node) -> dict[str, Any]:
    *namespace, key = json.loads(node.id)
    return {
        "namespace": tuple(namespace),
        "key": key,
        "value": node.attributes,
        "created_at": datetime.fromisoformat(node.created_at),
        "updated_at": datetime.fromisoformat(node.updated_at),
    }


def _texts_at(value: Mapping[str, Any], path: str) -> list[str]:
    return list(_leaf_texts(value)) if path == "$" else get_text_at_path(value, tokenize_path(path))


def _leaf_texts(value: Any) -> Iterator[str]:
    """Yield the texts and numbers in a value, in order."""
    match value:
        case Mapping():
            for each in value.values():
                yield from _leaf_texts(each)
        case list() | tuple():
            for each in value:
                yield from _leaf_texts(each)
        case None | bool():
            return
        case _:
            yield str(value)


def _extended_expiry(node: Node) -> str | None:
    """Return the expiry of an item that is read now, or None if it has no lifetime or was read a moment ago."""
    minutes = next((float(tag.removeprefix(_TTL_TAG)) for tag in node.tags or () if tag.startswith(_TTL_TAG)), None)
    if minutes is None or not node.freshness_at:
        return None
    lifetime = timedelta(minutes=minutes)
    gained = datetime.now(UTC) + lifetime - datetime.fromisoformat(node.freshness_at)
    return _expiry(minutes) if gained >= lifetime * _REFRESH_AFTER_FRACTION_OF_TTL else None


def _expiry(minutes: float) -> str:
    return (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()


def _tag(prefix: str, namespace: Sequence[str]) -> str:
    return prefix + _compact_json(list(namespace))


def _compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
