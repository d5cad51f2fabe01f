"""LangGraph's short-term memory: a checkpoint saver that keeps threads as a graph of checkpoints, channels and writes.

    thread -HAS_CHECKPOINT-> checkpoint -HAS_CHANNEL-> value of a channel
                             checkpoint -HAS_WRITES-> writes -HAS_WRITE-> pending write of a task

Values of channels are shared by checkpoints of a thread. Writes may arrive before their checkpoint. A serialized value
too large for one node continues in nodes with the relation HAS_CHUNK.

All nodes of a thread have its tag, and its digest at the beginning of their ids. The order of the ids is thread,
checkpoints, the rest, so that an interrupted deletion leaves no checkpoint without its values.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from typing_extensions import override

from kgserve.client import Store
from kgserve.errors import NotFound, TooLarge
from kgserve.graph.answers import Edge, Node

THREAD_TYPE = "langgraph_thread"
CHECKPOINT_TYPE = "langgraph_checkpoint"
CHANNEL_TYPE = "langgraph_channel"
WRITES_TYPE = "langgraph_writes"
WRITE_TYPE = "langgraph_write"
CHUNK_TYPE = "langgraph_chunk"
MAX_CHUNK_BYTES = 180_000
"""Bytes per node; attributes hold 256 KiB of text."""

_PART_RELATIONS = ["HAS_CHANNEL", "HAS_WRITES", "HAS_WRITE", "HAS_CHUNK"]
_PART_DEPTH = 3
_DIGEST_CHARS = 32
_IDS_PER_REQUEST = 1_000
_IDS_PER_PAGE = 100
_CHECKPOINTS_QUERY = f"MATCH (t:{THREAD_TYPE})-[:HAS_CHECKPOINT]->(c) RETURN c.id"
_THREAD_CHECKPOINTS_QUERY = f"MATCH (t:{THREAD_TYPE} {{id: $thread}})-[:HAS_CHECKPOINT]->(c) RETURN c.id"
_LATEST_QUERY = """
MATCH (t:Entity {id: $thread})-[:HAS_CHECKPOINT]->(c) WHERE c.id STARTS WITH $prefix
RETURN c.id ORDER BY c.id DESC LIMIT 1
"""
_PARTS_QUERY = f"""
MATCH (c:Entity)-[:{"|".join(_PART_RELATIONS)}*1..{_PART_DEPTH}]->(part) WHERE c.id IN $ids RETURN DISTINCT part.id
"""
_DELTA_COUNTERS = "counters_since_delta_snapshot"


NodeIds = list[str]


class CheckpointKey(NamedTuple):
    """Names of a checkpoint: thread, namespace and id."""

    thread: str
    namespace: str
    checkpoint: str

    @property
    def prefix(self) -> str:
        """Prefix of the node ids of the namespace's checkpoints."""
        return f"{_digest(self.thread)}/0/{_digest(self.namespace)}/"

    @property
    def node_id(self) -> str:
        """Id of the checkpoint's node."""
        return self.prefix + self.checkpoint

    def part_id(self, *names: object) -> str:
        """Return the id of a node that belongs to the namespace."""
        return f"{_digest(self.thread)}/1/{_digest(self.namespace, *names)}"

    @property
    def config(self) -> RunnableConfig:
        """The names as LangGraph passes them."""
        names = {"thread_id": self.thread, "checkpoint_ns": self.namespace, "checkpoint_id": self.checkpoint}
        return {"configurable": names}


class LangGraphCheckpointSaver(BaseCheckpointSaver[str]):
    """LangGraph checkpointer that keeps its threads in ``store``; threads of a program may share it.

    Call `setup` once for a store that holds nothing else: it turns search and history off, which checkpoints do not
    need. ``serde``: serializer of checkpoints and values.
    """

    def __init__(self, store: Store, *, serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde)
        self.store = store

    def setup(self) -> None:
        """Create the store if necessary, and turn its search and history off."""
        self.store.inject()
        self.store.update_settings(indexes="none", history="none")

    @override
    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        key = _key_of(config)
        with suppress(NotFound):
            if key.checkpoint:
                return self._load(key.node_id)
            thread = _digest(key.thread)
            rows = self.store.cypher(_LATEST_QUERY, {"thread": thread, "prefix": key.prefix}).rows
            return self._load(rows[0][0]) if rows else None
        return None

    @override
    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        ids = self._select_checkpoint_ids(config, before)
        left = len(ids) if limit is None else limit
        for start in range(0, len(ids), _IDS_PER_PAGE):
            for node in self.store.get_nodes(ids[start : start + _IDS_PER_PAGE]).nodes:
                if left <= 0:
                    return
                metadata = self._loads(node.attributes["metadata"]) if "metadata" in node.attributes else {}
                if not all(metadata.get(name) == value for name, value in (filter or {}).items()):
                    continue
                if found := self._load(node.id):
                    left -= 1
                    yield found

    @override
    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        parent = _key_of(config)
        key = parent._replace(checkpoint=checkpoint["id"])
        values, described = checkpoint["channel_values"], get_checkpoint_metadata(config, metadata)
        batch = CheckpointBatch(key.thread)
        batch.add_node(_digest(key.thread), THREAD_TYPE, {"thread_id": key.thread})
        batch.add_value(
            key.node_id,
            CHECKPOINT_TYPE,
            {
                **_names_of(key.config),
                "parent_checkpoint_id": parent.checkpoint or None,
                "metadata": self._dumps(described),
            },
            self.serde.dumps_typed({name: each for name, each in checkpoint.items() if name != "channel_values"}),
            tags=[_run_tag(described["run_id"])] if "run_id" in described else [],
        )
        batch.add_edge(_digest(key.thread), key.node_id, "HAS_CHECKPOINT")
        batch.add_edge(key.node_id, batch.add_writes_node(key), "HAS_WRITES")
        for channel, version in new_versions.items():
            if channel in values:
                attributes = {"channel": channel, "version": str(version)}
                typed = self.serde.dumps_typed(values[channel])
                batch.add_value(key.part_id("channel", channel, version), CHANNEL_TYPE, attributes, typed)
        for channel, version in checkpoint["channel_versions"].items():
            batch.add_edge(key.node_id, key.part_id("channel", channel, version), "HAS_CHANNEL")
        self.store.inject(batch.nodes, batch.edges)
        return key.config

    @override
    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        key = _key_of(config)
        numbered = [(WRITES_IDX_MAP.get(name, index), name, value) for index, (name, value) in enumerate(writes)]
        ids = {index: key.part_id("write", key.checkpoint, task_id, index) for index, _, _ in numbered}
        kept = self._existing([ids[index] for index in ids if index >= 0])
        batch = CheckpointBatch(key.thread)
        holder = batch.add_writes_node(key)
        for index, channel, value in numbered:
            if ids[index] in kept:
                continue
            attributes = {"task_id": task_id, "task_path": task_path, "index": index, "channel": channel}
            batch.add_value(ids[index], WRITE_TYPE, attributes, self.serde.dumps_typed(value))
            batch.add_edge(holder, ids[index], "HAS_WRITE")
        self.store.inject(batch.nodes, batch.edges)

    @override
    def delete_thread(self, thread_id: str) -> None:
        with suppress(NotFound):
            while self.store.delete_nodes(tags=[_thread_tag(str(thread_id))], valid_at="any").more:
                pass

    @override
    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        with suppress(NotFound):
            for run in run_ids:
                found = [node.id for node in self.store.nodes(type=CHECKPOINT_TYPE, tags=[_run_tag(run)], compact=True)]
                self._delete_checkpoints(found)

    @override
    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        source, target = _digest(source_thread_id), _digest(target_thread_id)
        with suppress(NotFound):
            for found in sorted(self._thread_checkpoint_ids(source_thread_id)):
                nodes, edges = self._read_checkpoint(found)
                batch = CheckpointBatch(target_thread_id)
                batch.add_node(target, THREAD_TYPE, {"thread_id": target_thread_id})
                for node in nodes:
                    moved = {"thread_id": target_thread_id} if "thread_id" in node.attributes else {}
                    tags = [tag for tag in node.tags or () if tag != _thread_tag(source_thread_id)]
                    batch.add_node(_moved(node.id, source, target), node.type, node.attributes | moved, tags)
                for edge in edges:
                    ends = _moved(edge.source, source, target), _moved(edge.target, source, target)
                    batch.add_edge(*ends, edge.relation_type)
                batch.add_edge(target, _moved(found, source, target), "HAS_CHECKPOINT")
                self.store.inject(batch.nodes, batch.edges)

    @override
    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete the threads, or all but the latest checkpoint of each namespace.

        Checkpoints that a delta channel of the latest one is rebuilt from are kept. Prune threads that do not run.
        """
        if strategy not in {"keep_latest", "delete"}:
            raise ValueError(f"unknown strategy {strategy!r}; use 'keep_latest' or 'delete'")
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
            else:
                with suppress(NotFound):
                    self._prune_to_latest(thread_id)

    @override
    def get_next_version(self, current: str | None, channel: None) -> str:
        number = int(str(current).partition(".")[0]) if current is not None else 0
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311 - tells forks apart

    @override
    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

    @override
    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (each := await asyncio.to_thread(next, found, None)) is not None:
            yield each

    @override
    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    @override
    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    @override
    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)

    @override
    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    @override
    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    @override
    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await asyncio.to_thread(self.prune, thread_ids, strategy=strategy)

    def _select_checkpoint_ids(self, config: RunnableConfig | None, before: RunnableConfig | None) -> NodeIds:
        """Return the ids of the checkpoints in question, newest first."""
        names = _names_of(config) if config else {}
        namespace, wanted = names.get("checkpoint_ns"), names.get("checkpoint_id")
        limit_id = get_checkpoint_id(before) if before else None
        ids: Iterable[str] = ()
        with suppress(NotFound):
            ids = self._thread_checkpoint_ids(str(names["thread_id"]) if "thread_id" in names else None)
        chosen: list[tuple[str, str]] = []
        for each in ids:
            _, _, digest, checkpoint = each.split("/", 3)
            if (
                (namespace is None or digest == _digest(namespace))
                and (not wanted or checkpoint == wanted)
                and (not limit_id or checkpoint < limit_id)
            ):
                chosen.append((checkpoint, each))
        return [each for _, each in sorted(chosen, reverse=True)]

    def _load(self, node_id: str) -> CheckpointTuple | None:
        """Return the checkpoint of a node, or None if it does not exist."""
        nodes, edges = self._read_checkpoint(node_id)
        if not nodes:
            return None
        values = {node: self.serde.loads_typed(typed) for node, typed in _join_chunks(nodes, edges).items()}
        head = nodes[0].attributes
        writes = sorted((node for node in nodes if node.type == WRITE_TYPE), key=_write_order)
        key = CheckpointKey(head["thread_id"], head["checkpoint_ns"], head["checkpoint_id"])
        parent = head["parent_checkpoint_id"]
        channels = {node.attributes["channel"]: values[node.id] for node in nodes if node.type == CHANNEL_TYPE}
        return CheckpointTuple(
            config=key.config,
            checkpoint=cast("Checkpoint", {**values[node_id], "channel_values": channels}),
            metadata=self._loads(head["metadata"]),
            parent_config=key._replace(checkpoint=parent).config if parent else None,
            pending_writes=[(w.attributes["task_id"], w.attributes["channel"], values[w.id]) for w in writes],
        )

    def _read_checkpoint(self, node_id: str) -> tuple[Sequence[Node], Sequence[Edge]]:
        """Return a checkpoint's node, first, and all its parts, with the edges between them, of one moment."""
        walk = self.store.traverse(node_id, depth=_PART_DEPTH, relation_types=_PART_RELATIONS)
        if walk.truncated:
            raise TooLarge(f"checkpoint {node_id} has more than {len(walk)} parts, which one read cannot return")
        return walk.nodes, walk.edges

    def _prune_to_latest(self, thread_id: str) -> None:
        ids = self._thread_checkpoint_ids(thread_id)
        latest = {each.split("/", 3)[2]: each for each in sorted(ids)}
        kept = {needed for each in latest.values() for needed in self._rebuilding_ids(each)}
        self._delete_checkpoints([each for each in ids if each not in kept])

    def _rebuilding_ids(self, node_id: str) -> Iterator[str]:
        """Yield a checkpoint's node and those of its ancestors that its delta channels are rebuilt from."""
        found = self._load(node_id)
        missing = set(found.metadata.get(_DELTA_COUNTERS) or ()) if found else set[str]()
        while found:
            yield _key_of(found.config).node_id
            missing -= set(found.checkpoint["channel_values"])
            found = self.get_tuple(found.parent_config) if missing and found.parent_config else None

    def _delete_checkpoints(self, ids: Sequence[str]) -> None:
        """Delete checkpoints, their writes, and values that no other checkpoint of their threads uses."""
        threads = {each.partition("/")[0] for each in ids}
        others = {each for thread in threads for each in self._read_ids(_THREAD_CHECKPOINTS_QUERY, {"thread": thread})}
        unused = self._part_ids(ids) - self._part_ids(sorted(others.difference(ids)))
        ordered = sorted({*ids, *unused})  # checkpoints come before their parts
        for start in range(0, len(ordered), _IDS_PER_REQUEST):
            self.store.delete_nodes(ids=ordered[start : start + _IDS_PER_REQUEST], valid_at="any")

    def _part_ids(self, ids: Sequence[str]) -> set[str]:
        pages = (ids[start : start + _IDS_PER_PAGE] for start in range(0, len(ids), _IDS_PER_PAGE))
        return {part for page in pages for part in self._read_ids(_PARTS_QUERY, {"ids": page})}

    def _thread_checkpoint_ids(self, thread_id: str | None) -> NodeIds:
        if thread_id is None:
            return self._read_ids(_CHECKPOINTS_QUERY, {})
        return self._read_ids(_THREAD_CHECKPOINTS_QUERY, {"thread": _digest(thread_id)})

    def _read_ids(self, query: str, params: Mapping[str, Any]) -> NodeIds:
        with self.store.cypher_rows(query, params) as rows:
            return [node_id for (node_id,) in rows]

    def _existing(self, ids: Sequence[str]) -> set[str]:
        with suppress(NotFound):
            return {node.id for node in self.store.get_nodes(ids).nodes} if ids else set()
        return set()

    def _dumps(self, value: Any) -> Mapping[str, str]:
        kind, data = self.serde.dumps_typed(value)
        return {"serde": kind, "data": base64.b64encode(data).decode()}

    def _loads(self, packed: Mapping[str, str]) -> Any:
        return self.serde.loads_typed((packed["serde"], base64.b64decode(packed["data"])))


class CheckpointBatch:
    """Nodes and edges of one write, all with the tag of a thread."""

    def __init__(self, thread: str) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.edges: list[dict[str, Any]] = []
        self._tag = _thread_tag(thread)

    def add_node(self, node_id: str, type_: str, attributes: Mapping[str, Any], tags: Sequence[str] = ()) -> None:
        """Add a node with a tag of its thread."""
        tags = [self._tag, *(tag for tag in tags if tag != self._tag)]
        self.nodes.append({"id": node_id, "type": type_, "attributes": dict(attributes), "tags": tags})

    def add_edge(self, source: str, target: str, relation_type: str) -> None:
        """Add an edge. Without its target it is skipped when it is written."""
        self.edges.append({"from": source, "to": target, "relation_type": relation_type})

    def add_writes_node(self, key: CheckpointKey) -> str:
        """Add the node that a checkpoint's writes belong to, and return its id."""
        node_id = key.part_id("writes", key.checkpoint)
        self.add_node(node_id, WRITES_TYPE, {})
        return node_id

    def add_value(
        self,
        node_id: str,
        type_: str,
        attributes: Mapping[str, Any],
        typed: tuple[str, bytes],
        tags: Sequence[str] = (),
    ) -> None:
        """Add a node with a serialized value, and nodes for what does not fit into it."""
        kind, data = typed
        pieces = [data[start : start + MAX_CHUNK_BYTES] for start in range(0, len(data), MAX_CHUNK_BYTES)] or [b""]
        packed = {"serde": kind, "chunks": len(pieces), "data": base64.b64encode(pieces[0]).decode()}
        self.add_node(node_id, type_, {**attributes, **packed}, tags)
        thread, _, name = node_id.split("/", 2)
        for number, piece in enumerate(pieces[1:], 1):
            chunk_id = f"{thread}/1/{_digest(name, 'chunk')}.{number:06}"
            self.add_node(chunk_id, CHUNK_TYPE, {"number": number, "data": base64.b64encode(piece).decode()})
            self.add_edge(node_id, chunk_id, "HAS_CHUNK")


def _names_of(config: RunnableConfig) -> Mapping[str, Any]:
    return config.get("configurable") or {}


def _key_of(config: RunnableConfig) -> CheckpointKey:
    names = _names_of(config)
    return CheckpointKey(str(names["thread_id"]), names.get("checkpoint_ns", ""), names.get("checkpoint_id") or "")


def _join_chunks(nodes: Sequence[Node], edges: Sequence[Edge]) -> dict[str, tuple[str, bytes]]:
    """Return the serialized value of each node that has one. Raises ValueError if a part of one is missing."""
    by_id = {node.id: node for node in nodes}
    chunks: dict[str, dict[int, str]] = {}
    for edge in edges:
        if edge.relation_type == "HAS_CHUNK":
            chunk = by_id[edge.target].attributes
            chunks.setdefault(edge.source, {})[chunk["number"]] = chunk["data"]
    values: dict[str, tuple[str, bytes]] = {}
    for node in nodes:
        if node.type == CHUNK_TYPE or "serde" not in node.attributes:
            continue
        parts = {0: node.attributes["data"], **chunks.get(node.id, {})}
        count = node.attributes["chunks"]
        if any(number not in parts for number in range(count)):
            raise ValueError(f"node {node.id!r} lacks chunks of its value; it was not written by this checkpointer")
        data = b"".join(base64.b64decode(parts[number]) for number in range(count))
        values[node.id] = (node.attributes["serde"], data)
    return values


def _write_order(write: Node) -> tuple[str, str, int]:
    names = write.attributes
    return writes_sort_key(names["task_path"], names["task_id"], names["index"])


def _digest(*names: object) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:_DIGEST_CHARS]


def _thread_tag(thread: str) -> str:
    return f"thread:{_digest(thread)}"


def _run_tag(run: str) -> str:
    return f"run:{_digest(str(run))}"


def _moved(node_id: str, source: str, target: str) -> str:
    return target + node_id.removeprefix(source)
