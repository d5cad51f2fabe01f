"""Deduplication: whether a memory to store is new, repeats an existing one, or merges into one.

A draft is a write under construction. It overlays the rows to write on the pending state of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgserve.errors import Conflict, NotFound
from kgserve.graph.mutations import estimate_batch_bytes
from kgserve.memory.hierarchy_models import can_merge_memory_layers, can_merge_memory_types, check_parent_memory_layer
from kgserve.memory.memory_models import EPISODE_LAYER, MemoryEntityInput, StoreOutcome
from kgserve.platform.codecs import decode_json
from kgserve.platform.idempotency import generate_idempotent_node_id
from kgserve.platform.settings import DedupPolicy
from kgserve.platform.text.text_equality import fingerprint_wording, hash_normalized_text
from kgserve.projections.recent_vectors import RecentVectorBuffer
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.entity_names import (
    IS_ABOUT_RELATION,
    UNKNOWN_TYPE,
    list_entity_names_and_aliases,
    normalize_entity_name,
)
from kgserve.storage.model.memory_parents import CHILD_OF_RELATION, MAX_HIERARCHY_DEPTH, find_newest_memory_parent_edge
from kgserve.storage.model.merge_redirects import MERGED_INTO_RELATION, is_node_never_valid
from kgserve.storage.model.node_edge_fields import (
    MAX_ATTRIBUTES_BYTES,
    MAX_ID_BYTES,
    MAX_TAGS,
    NO_EXTRAS,
    EdgeExtrasUpsert,
    NodeExtras,
    NodeExtrasUpsert,
)
from kgserve.storage.model.node_edge_rows import (
    EMPTY_ATTRIBUTES_JSON,
    EdgeKey,
    EdgeRow,
    NodeRow,
    has_validity_ended,
    is_valid_at,
)
from kgserve.storage.model.soft_delete import build_edge_restore_upsert, is_current_unwithdrawn_memory
from kgserve.storage.model.write_batch import (
    EdgeUpsert,
    NodeUpsert,
    WriteBatch,
    compute_node_extras_after_upsert,
    copy_edge_row_as_upsert,
)
from kgserve.stores.pending_state import PendingCommitGroupState

_MAX_QUOTED_CANDIDATES = 10
"""Entities that an error about an ambiguous name lists."""


class MemoryWriteBatchDraft:
    """Nodes and edges to write in one batch, overlaid on the pending state. Use it in the writer thread only."""

    def __init__(self, ahead: PendingCommitGroupState) -> None:
        self.ahead = ahead
        self.accesses: dict[str, MemoryAccessRecord] = {}
        self.made: list[str] = []
        self.restored: dict[str, None] = {}
        self._nodes: dict[str, NodeUpsert] = {}
        self._rows: dict[str, NodeRow] = {}
        self._dropped_nodes: dict[str, None] = {}
        self._edges: dict[EdgeKey, EdgeUpsert] = {}
        self._dropped_edges: dict[EdgeKey, None] = {}
        self._edges_at: dict[str, dict[EdgeKey, None]] = {}
        # State of the pending writes, which does not change while the draft is built.
        self._existing_from: dict[str, dict[EdgeKey, EdgeUpsert]] = {}
        self._existing_sources: dict[tuple[str, str], dict[EdgeKey, None]] = {}
        self._by_name: dict[str, list[str]] = {}

    def batch(self) -> WriteBatch:
        """Return the batch of the draft."""
        nodes, edges = [*self._nodes.values()], [*self._edges.values()]
        return WriteBatch(
            nodes=nodes,
            edges=edges,
            delete_nodes=[node_id for node_id in self._dropped_nodes if self.ahead.node(node_id) is not None],
            delete_edges=[*self._dropped_edges],
            accesses=[*self.accesses.values()],
            touch=False,
            cost=estimate_batch_bytes(nodes, edges),
        )

    def node(self, node_id: str) -> NodeRow | None:
        """Return a node as the draft leaves it."""
        return self._rows.get(node_id) or (None if node_id in self._dropped_nodes else self.ahead.node(node_id))

    def edge(self, key: EdgeKey) -> EdgeUpsert | EdgeRow | None:
        """Return an edge as the draft leaves it."""
        return self._edges.get(key) or (None if key in self._dropped_edges else self.ahead.edges((key,)).get(key))

    def is_edge_current(self, key: EdgeKey) -> bool:
        """Return whether an edge exists and is valid now as the draft leaves it."""
        edge = self.edge(key)
        return edge is not None and (isinstance(edge, EdgeUpsert) or edge.is_valid_at(self.ahead.now))

    def edges_from(self, node_id: str) -> list[EdgeUpsert]:
        """Return the edges that leave a node after the draft, each as a put that recreates it."""
        if (known := self._existing_from.get(node_id)) is None:
            known = {edge.key: copy_edge_row_as_upsert(edge, edge.key) for edge in self.ahead.edges_from(node_id)}
            self._existing_from[node_id] = known
        edges = known.copy()
        for key in self._edges_at.get(node_id, ()):
            if key[0] == node_id:
                earlier, put = edges.pop(key, None), self._edges.get(key)
                if put is not None:
                    edges[key] = put if earlier is None or key in self._dropped_edges else put.over(earlier)
        return [*edges.values()]

    def sources(self, node_id: str, kind: str) -> list[str]:
        """Return the ids of the nodes with an edge of a kind to a node after the draft."""
        if (existing := self._existing_sources.get((node_id, kind))) is None:
            existing = dict.fromkeys(edge.key for edge in self.ahead.edges_to(node_id, kind))
            self._existing_sources[node_id, kind] = existing
        mine = dict.fromkeys(key for key in self._edges_at.get(node_id, ()) if key[1:] == (node_id, kind))
        return [
            key[0]
            for key in existing | mine
            if key in self._edges or (key in existing and key not in self._dropped_edges)
        ]

    def about(self, memory: str) -> dict[str, float]:
        """Return the entities that a memory is about after the draft, with the relevance of each."""
        found = (put for put in self.edges_from(memory) if put.key[2] == IS_ABOUT_RELATION)
        return {put.key[1]: 1.0 if put.weight is None else put.weight for put in found}

    def put_node(self, put: NodeUpsert) -> NodeRow:
        """Write a node or add to it; return its row without the fields that the store sets."""
        old, earlier = self.node(put.id), self._nodes.get(put.id)
        self._nodes[put.id] = put if earlier is None else put.over(earlier)
        created = self.ahead.now if old is None else old.created_at
        row = self._rows[put.id] = NodeRow(
            put.id,
            put.type or (old.type if old else ""),
            (old.content if old else "") if put.content is None else put.content,
            (old.attributes if old else EMPTY_ATTRIBUTES_JSON) if put.attributes is None else put.attributes,
            old.version if old else 1,
            self.ahead.sequence,
            created if put.created_at is None else put.created_at,
            self.ahead.now,
            compute_node_extras_after_upsert(put.extras, old.extras if old else None),
        )
        for name in list_entity_names_and_aliases(row):
            self._by_name.setdefault(normalize_entity_name(name), []).append(row.id)
        return row

    def drop_node(self, node_id: str) -> None:
        """Delete a node with its edges."""
        self._nodes.pop(node_id, None)
        self._rows.pop(node_id, None)
        for key in self._edges_at.get(node_id, ()):
            self._edges.pop(key, None)
        self._dropped_nodes[node_id] = None

    def put_edge(self, put: EdgeUpsert) -> None:
        """Write an edge or add to it."""
        earlier = self._edges.get(put.key)
        self._edges[put.key] = put if earlier is None else put.over(earlier)
        self._note_edge(put.key)

    def drop_edge(self, key: EdgeKey) -> None:
        """Delete an edge."""
        self._edges.pop(key, None)
        self._dropped_edges[key] = None
        self._note_edge(key)

    def _note_edge(self, key: EdgeKey) -> None:
        for end in key[:2]:
            self._edges_at.setdefault(end, {})[key] = None

    # Named entities

    def entity(self, name: str, entity_type: str = UNKNOWN_TYPE) -> str:
        """Return the id of the entity with a name; create it if none exists. Raises Conflict if several exist.

        An entity of unknown type receives `entity_type`. Each name exists once per type, in any spelling.
        """
        found = self.find(name)
        if entity_type == UNKNOWN_TYPE:
            return self._unambiguous(name, found).id if found else self._create_entity(name, UNKNOWN_TYPE)
        same = [row for row in found if row.type == entity_type]
        if same:
            return self._unambiguous(name, same).id
        unknown = [row for row in found if row.type == UNKNOWN_TYPE]
        if unknown:
            return self.put_node(NodeUpsert(0, unknown[0].id, entity_type)).id
        return self._create_entity(name, entity_type)

    def restore_if_ended(self, row: NodeRow) -> str:
        """Make an entity that was retired true from now on; return its id."""
        if has_validity_ended(row.extras, self.ahead.now):
            extras = NodeExtrasUpsert(valid_from=self.ahead.now, valid_to=None)
            self.put_node(NodeUpsert(0, row.id, extras=extras))
            self.restored[row.id] = None
        return row.id

    def find_entity_named(self, name: str) -> str | None:
        """Return the id of the entity with a name, or None. Raises Conflict if several exist."""
        found = self.find(name)
        return self._unambiguous(name, found).id if found else None

    def find(self, name: str) -> list[NodeRow]:
        """Return the entities with a name: exact, then in another spelling, then by alias, then by id."""
        wanted = normalize_entity_name(name)
        ids = dict.fromkeys(row.id for row in self.ahead.nodes_named(name)) | dict.fromkeys(
            self._by_name.get(wanted, ())
        )
        # A merged entity keeps its name, which then refers to the entity that absorbed it.
        rows = [row for node_id in ids if (row := self.node(node_id)) is not None]
        tests: tuple[Callable[[NodeRow], bool], ...] = (
            lambda row: _name(row) == name,
            lambda row: normalize_entity_name(_name(row)) == wanted,
            lambda row: wanted in map(normalize_entity_name, list_entity_names_and_aliases(row)),
        )
        for fits in tests:
            if found := self.find_current_nodes(row.id for row in rows if fits(row)):
                return found
        return self.find_current_nodes((name,))

    def find_current_nodes(self, ids: Iterable[str]) -> list[NodeRow]:
        """Return the active entities among some nodes, after following merge redirects."""
        survivors = dict.fromkeys(map(self.ahead.resolve_redirect, ids))
        rows = (row for node_id in survivors if (row := self.node(node_id)) is not None)
        return [row for row in rows if not row.is_memory and not is_node_never_valid(row.extras)]

    def _unambiguous(self, name: str, found: list[NodeRow]) -> NodeRow:
        known = [row for row in found if row.type != UNKNOWN_TYPE] or found
        if len(known) > 1:
            some = ", ".join(f"{row.id!r} ({row.type})" for row in known[:_MAX_QUOTED_CANDIDATES])
            raise Conflict(
                f"{name!r} is the name of {len(known)} entities: {some}; use an id, or a type where one is taken"
            )
        return known[0]

    def _create_entity(self, name: str, entity_type: str) -> str:
        self.made.append(node_id := self._free_id(name, entity_type))
        self.put_node(
            NodeUpsert(0, node_id, entity_type, "", EMPTY_ATTRIBUTES_JSON, extras=NodeExtrasUpsert(name=name))
        )
        return node_id

    def _free_id(self, name: str, entity_type: str) -> str:
        for node_id in (name, f"{name} ({entity_type})"):
            if len(node_id.encode()) <= MAX_ID_BYTES and self.node(node_id) is None:
                return node_id
        return generate_idempotent_node_id(len(self.made))


def _name(row: NodeRow) -> str:
    return "" if row.extras is None else row.extras.name


_encode = msgspec.json.Encoder(order="deterministic").encode


class ValidatedMemoryInput(msgspec.Struct, frozen=True, kw_only=True):
    """A validated memory to store; `node` is its content if it is new.

    `parent` is the id of its parent. `near` are the nearest memories in the index with their cosines; `vector` is its
    own vector. Both may be absent.
    """

    node: NodeUpsert
    about: tuple[MemoryEntityInput, ...]
    dedup: DedupPolicy
    threshold: float
    parent: str = ""
    near: Mapping[str, float] = {}
    vector: NDArray[np.float32] | None = None

    @property
    def content(self) -> str:
        """Text of the memory."""
        return self.node.content or ""

    @property
    def is_mergeable(self) -> bool:
        """True if the memory may merge into another one."""
        return self.dedup != "off" and (self.node.extras is None or self.node.extras.layer != EPISODE_LAYER)

    @property
    def extras(self) -> NodeExtras:
        """Extra fields of the memory if it is new."""
        return NO_EXTRAS if self.node.extras is None else self.node.extras.applied_to(NO_EXTRAS)


class MemoryStoreResult(NamedTuple):
    """Result of storing a memory; `id` is the memory that holds it."""

    id: str
    outcome: StoreOutcome


class MemoryDeduplicator(MemoryWriteBatchDraft):
    """Decides for memories stored together which are new, duplicates or merged, each after the ones before it.

    `used` maps the existing memories that matched to the confidence of the new ones; `with_new_times` are those that
    took over other times.
    """

    def __init__(self, ahead: PendingCommitGroupState, recent: RecentVectorBuffer) -> None:
        super().__init__(ahead)
        self.used: dict[str, float] = {}
        self.with_new_times: set[str] = set()
        self.places = ParentAssignments(self)
        self._holder_ids: dict[str, str] = {}
        self._recent = recent
        self._by_text: dict[bytes, list[str]] = {}

    def store(self, put: ValidatedMemoryInput) -> MemoryStoreResult:
        """Decide and draft one memory. Raises NotFound if its parent does not exist.

        Raises Conflict for an ambiguous entity name, for an id that holds another text, and for an invalid parent.
        """
        parent = self.places.find(self._holder_ids.get(put.parent, put.parent)) if put.parent else None
        stored = self._store(put)
        self._holder_ids[put.node.id] = stored.id
        if parent is not None and (row := self.node(stored.id)) is not None:
            place = self.places.put if stored.outcome == "created" else self.places.add
            place(row, parent)
        return stored

    def _store(self, put: ValidatedMemoryInput) -> MemoryStoreResult:
        about = self._about(put)
        own = self.node(put.node.id)
        if own is not None:
            return self._store_existing_id(put, own, about)
        same = self._find_equal(put, about)
        return self._create(put, about) if same is None else self._merge(put, same, about)

    def _about(self, put: ValidatedMemoryInput) -> dict[str, float]:
        about: dict[str, float] = {}
        for each in put.about:
            entity = self.entity(each.name, each.entity_type)
            about[entity] = max(each.relevance, about.get(entity, 0.0))
        return about

    def _create(self, put: ValidatedMemoryInput, about: Mapping[str, float]) -> MemoryStoreResult:
        row = self.put_node(put.node)
        self.associate(row.id, about)
        for digest in (hash_normalized_text(row.content), fingerprint_wording(row.content)):
            self._by_text.setdefault(digest, []).append(row.id)
        if put.vector is not None:
            self._recent.add(row.id, put.vector)
        return MemoryStoreResult(row.id, "created")

    def _store_existing_id(
        self, put: ValidatedMemoryInput, own: NodeRow, about: Mapping[str, float]
    ) -> MemoryStoreResult:
        """Store a memory whose id exists; another kind of node becomes a memory."""
        if not own.is_memory:
            # The times of the other node, which may have been retired, are not those of the memory.
            bounds = {"valid_from": put.extras.valid_from, "valid_to": put.extras.valid_to}
            extras = msgspec.structs.replace(put.node.extras or NodeExtrasUpsert(), **bounds)
            node = msgspec.structs.replace(put.node, extras=extras)
            return self._create(msgspec.structs.replace(put, node=node), about)
        survivor = self.ahead.resolve_redirect(own.id)
        row = self.node(survivor) if survivor != own.id else own
        if row is None or hash_normalized_text(own.content) != hash_normalized_text(put.content):
            raise Conflict(f"memory {own.id!r} exists with another text: update it, or omit the id")
        if row.extras is not None and row.extras.ended:
            raise Conflict(f"memory {own.id!r} exists and was {row.extras.ended}: store the text under another id")
        has_times = put.extras.valid_from is not None or put.extras.valid_to is not None
        if unite_validity(row, put.extras, self.ahead.now) is None and (
            has_times or not row.is_valid_at(self.ahead.now)
        ):
            raise Conflict(f"memory {own.id!r} exists with other times: update it, or omit the id")
        return self._merge(put, row, about, absorbs=False)

    def _merge(
        self, put: ValidatedMemoryInput, row: NodeRow, about: Mapping[str, float], *, absorbs: bool = True
    ) -> MemoryStoreResult:
        """Keep the older memory with its wording; another wording is stored as an absorbed memory."""
        extras = put.extras
        self.used[row.id] = max(extras.confidence or 0.0, self.used.get(row.id, 0.0))
        self._add_fields(row, extras, put.node.attributes or EMPTY_ATTRIBUTES_JSON)
        self.associate(row.id, about)
        if not absorbs or hash_normalized_text(row.content) == hash_normalized_text(put.content):
            return MemoryStoreResult(row.id, "duplicate")
        self._absorb(put, row.id)
        return MemoryStoreResult(row.id, "merged")

    def _add_fields(self, row: NodeRow, extras: NodeExtras, attributes: str) -> None:
        own = row.extras or NO_EXTRAS
        united = tuple(dict.fromkeys((*own.tags, *extras.tags)))[:MAX_TAGS]
        joined, layer = merge_attributes(row.attributes, attributes), self._layer_for(row, extras.layer)
        bounds = own.valid_from, own.valid_to
        start, end = unite_validity(row, extras, self.ahead.now) or bounds
        if (start, end) != bounds:
            self.with_new_times.add(row.id)
        if united != own.tags or joined != row.attributes or layer != own.layer or (start, end) != bounds:
            put = NodeExtrasUpsert(tags=united, layer=layer, valid_from=start, valid_to=end)
            self.put_node(NodeUpsert(0, row.id, attributes=joined, extras=put))

    def _layer_for(self, row: NodeRow, layer: int | None) -> int | None:
        """Return the layer that a memory has after a merge: its own, or the given one if it can have that."""
        own = row.extras or NO_EXTRAS
        if own.layer is not None or layer is None:
            return own.layer
        try:
            self.places.check_order(msgspec.structs.replace(row, extras=msgspec.structs.replace(own, layer=layer)))
        except Conflict:
            return None
        return layer

    def _absorb(self, put: ValidatedMemoryInput, into: str) -> None:
        extras = put.extras
        begun = self.ahead.now if put.node.created_at is None else put.node.created_at
        withdrawn = msgspec.structs.replace(
            put.node.extras or NodeExtrasUpsert(),
            valid_from=begun,
            valid_to=begun,
            former_from=extras.valid_from,
            former_to=extras.valid_to,
            ended="merged",
            belongs_to=into,
        )
        self.put_node(msgspec.structs.replace(put.node, extras=withdrawn))
        self.put_edge(EdgeUpsert(0, (put.node.id, into, MERGED_INTO_RELATION)))

    def associate(self, memory: str, about: Mapping[str, float]) -> None:
        """Make a memory be about entities with at least the given relevance."""
        for entity, relevance in about.items():
            key = (memory, entity, IS_ABOUT_RELATION)
            existing = self.edge(key)
            if existing is None or (existing.weight or 0.0) < relevance or not self.is_edge_current(key):
                self.put_edge(build_current_edge_upsert(self, EdgeUpsert(0, key, relevance)))

    # Equal statements

    def _find_equal(self, put: ValidatedMemoryInput, about: Mapping[str, float]) -> NodeRow | None:
        """Return the oldest memory that can absorb this one."""
        if not put.is_mergeable:
            return None
        found = [
            row
            for row in self._candidates(put)
            if self._can_absorb(row, put) and self._has_same_entities(row.id, about)
        ]
        return min(found, key=lambda row: (row.created_at, row.id), default=None)

    def _candidates(self, put: ValidatedMemoryInput) -> Iterable[NodeRow]:
        in_other_words = put.dedup != "exact"
        found = {row.id: row for row in self.ahead.ids_with_equal_text(put.content, in_other_words=in_other_words)}
        for digest in (hash_normalized_text(put.content), fingerprint_wording(put.content)):
            found |= {row.id: row for node_id in self._by_text.get(digest, ()) if (row := self.node(node_id))}
        found |= {node_id: row for node_id in self._near(put) if (row := self.node(node_id)) is not None}
        return [self._rows.get(node_id, row) for node_id, row in found.items()]

    def _near(self, put: ValidatedMemoryInput) -> set[str]:
        """Return memories near enough to merge, if the policy compares vectors."""
        if put.dedup != "similarity" or put.vector is None:
            return set()
        known = {node_id for node_id, similarity in put.near.items() if similarity > put.threshold}
        return known | self._recent.find_similar(put.vector, put.threshold).keys()

    def _can_absorb(self, row: NodeRow, put: ValidatedMemoryInput) -> bool:
        """Return whether a memory says the same, as the policy defines it, and may absorb the other one."""
        extras = row.extras
        layer = put.extras.layer
        if not row.is_memory or extras is None or extras.ended or not can_merge_memory_layers(extras.layer, layer):
            return False
        if unite_validity(row, put.extras, self.ahead.now) is None:
            return False
        if hash_normalized_text(row.content) == hash_normalized_text(put.content):
            return True
        if put.dedup == "exact":
            return False
        share = can_merge_memory_types((row.type, extras.layer), (put.node.type or "", layer))
        alike = share and fingerprint_wording(row.content) == fingerprint_wording(put.content)
        return alike or row.id in self._near(put)

    def _has_same_entities(self, memory: str, about: Mapping[str, float]) -> bool:
        """Return whether a memory is about no other entity of the same name."""
        current = {normalize_entity_name(name): entity for entity, name in self._names(self.about(memory))}
        new = ((normalize_entity_name(name), entity) for entity, name in self._names(about))
        return all(current.get(name, entity) == entity for name, entity in new)

    def _names(self, ids: Iterable[str]) -> list[tuple[str, str]]:
        rows = [row for node_id in ids if (row := self.node(node_id)) is not None]
        return [(row.id, (row.extras.name if row.extras else "") or row.id) for row in rows]


def unite_validity(row: NodeRow, new: NodeExtras, now: int) -> tuple[int | None, int | None] | None:
    """Return the validity of a memory that absorbs another with the times `new`; None if either would lose its own.

    Both have the same times, or are true now and both have an end or none.
    """
    old = row.extras or NO_EXTRAS
    if (old.valid_from, old.valid_to) == (new.valid_from, new.valid_to):
        return old.valid_from, old.valid_to
    if not row.is_valid_at(now) or not is_valid_at(new, now) or (old.valid_to is None) != (new.valid_to is None):
        return None
    starts = [at for at in (old.valid_from, new.valid_from) if at is not None]
    ends = [at for at in (old.valid_to, new.valid_to) if at is not None]
    return min(starts, default=None), max(ends, default=None)


def build_current_edge_upsert(draft: MemoryWriteBatchDraft, put: EdgeUpsert) -> EdgeUpsert:
    """Return a put that also makes a retired edge, or one that is not true yet, valid from now on."""
    old, now = draft.edge(put.key), draft.ahead.now
    if old is None or draft.is_edge_current(put.key):
        return put
    end = old.extras.valid_to if isinstance(old, EdgeRow) and old.extras is not None else None
    has_ended = end is not None and end <= now
    extras = msgspec.structs.replace(put.extras or EdgeExtrasUpsert(), valid_from=now)
    return msgspec.structs.replace(put, extras=msgspec.structs.replace(extras, valid_to=None) if has_ended else extras)


def merge_attributes(old: str, new: str) -> str:
    """Return the union of two attribute objects, new values first; the old ones alone if the union is too large."""
    if new in {EMPTY_ATTRIBUTES_JSON, old}:
        return old
    joined = _encode(decode_json(old, dict[str, object]) | decode_json(new, dict[str, object]))
    return joined.decode() if len(joined) <= MAX_ATTRIBUTES_BYTES else old


class ParentAssignments:
    """Parents of the memories of a draft. Use it in the writer thread only."""

    def __init__(self, draft: MemoryWriteBatchDraft) -> None:
        self._draft = draft
        self._placed: dict[str, str] = {}

    def parent(self, memory: str) -> NodeRow | None:
        """Return the parent of a memory after the draft."""
        if (placed := self._placed.get(memory)) is not None:
            return self._draft.node(placed) if placed else None
        edges = self._draft.ahead.parent_edges(memory)
        parents = {parent: row for parent in edges if is_current_unwithdrawn_memory(row := self._draft.node(parent))}
        edge = find_newest_memory_parent_edge(edge for parent, edge in edges.items() if parent in parents)
        self._placed[memory] = "" if edge is None else edge.target
        return None if edge is None else parents[edge.target]

    def find(self, parent_id: str) -> NodeRow:
        """Return an active memory that can be a parent, after following merges. Raises NotFound and Conflict."""
        row = self._draft.node(self._draft.ahead.resolve_redirect(parent_id))
        if row is None:
            raise NotFound(f"parent_id: there is no memory {parent_id!r}")
        if not row.is_memory:
            raise Conflict(f"parent_id: node {parent_id!r} is not a memory")
        if not is_current_unwithdrawn_memory(row):
            extras = row.extras or NO_EXTRAS
            why = f"is a former version of {extras.belongs_to!r}" if extras.belongs_to else f"was {extras.ended}"
            raise Conflict(f"parent_id: memory {parent_id!r} {why}; it cannot be a parent")
        return row

    def put(self, child: NodeRow, parent: NodeRow | None) -> None:
        """Make `parent` the only parent of a memory, or remove its parent. Raises Conflict."""
        if parent is not None:
            self._check(child, parent)
        upward = self._draft.ahead.parent_edges(child.id)
        for target in upward:
            row = self._draft.node(target)
            if (parent is None or target != parent.id) and row is not None and row.is_memory:
                self._draft.drop_edge((child.id, target, CHILD_OF_RELATION))
        for target in self._withdrawn(child.id):
            if parent is None or target != parent.id:
                self._draft.drop_edge((child.id, target, CHILD_OF_RELATION))
        if (own := self._placed.get(child.id)) and (parent is None or own != parent.id):
            self._draft.drop_edge((child.id, own, CHILD_OF_RELATION))
        if parent is not None and parent.id not in upward:
            self._draft.put_edge(
                EdgeUpsert(0, (child.id, parent.id, CHILD_OF_RELATION), extras=_without_end(self._draft, child, parent))
            )
        self._placed[child.id] = "" if parent is None else parent.id

    def _withdrawn(self, child: str) -> list[str]:
        """Return its forgotten parents, whose edges would otherwise return when they are restored."""
        edges = (edge for edge in self._draft.ahead.edges_from(child) if edge.relation_type == CHILD_OF_RELATION)
        return [edge.target for edge in edges if build_edge_restore_upsert(edge) is not None]

    def add(self, child: NodeRow, parent: NodeRow) -> None:
        """Set the parent of a memory that has none, if the hierarchy allows it."""
        if self.parent(child.id) is None:
            try:
                self.put(child, parent)
            except Conflict:
                return

    def check_order(self, row: NodeRow) -> None:
        """Raise Conflict if a memory's layer is more general than its parent's, or less so than its children's."""
        layer, parent = (row.extras or NO_EXTRAS).layer, self.parent(row.id)
        if parent is not None:
            check_parent_memory_layer(row, parent)
        if layer is not None:
            for child_id in dict.fromkeys(self._draft.ahead.more_general_children(row.id, layer)):
                child, above = self._draft.node(child_id), self.parent(child_id)
                if is_current_unwithdrawn_memory(child) and above is not None and above.id == row.id:
                    check_parent_memory_layer(child, row)

    def _check(self, child: NodeRow, parent: NodeRow) -> None:
        """Raise Conflict if the parent is the memory or its descendant, too deep, or of a more specific layer."""
        if parent.id == child.id:
            raise Conflict(f"parent_id: memory {child.id!r} cannot be its own parent")
        seen = {parent.id}
        at: NodeRow | None = parent
        while (at := self.parent(at.id)) is not None and at.id not in seen:
            if at.id == child.id:
                raise Conflict(
                    f"parent_id: memory {parent.id!r} is a descendant of {child.id!r}; that would be a cycle"
                )
            seen.add(at.id)
            if len(seen) > MAX_HIERARCHY_DEPTH:
                raise Conflict(
                    f"parent_id: memory {parent.id!r} is already below {MAX_HIERARCHY_DEPTH} levels, the maximum depth"
                )
        check_parent_memory_layer(child, parent)


def _without_end(draft: MemoryWriteBatchDraft, child: NodeRow, parent: NodeRow) -> EdgeExtrasUpsert | None:
    """Return the put that makes an ended relation valid without end again."""
    existing = draft.edge((child.id, parent.id, CHILD_OF_RELATION))
    return None if existing is None else EdgeExtrasUpsert(valid_from=None, valid_to=None)
