"""Events of a change feed: one per changed row, ordered so that a listener can maintain a copy.

An event's position is the sequence of its write and its index there. Positions do not depend on filters, so a listener
may reconnect with another filter. After the events of rows come memory events: memories created, updated and deleted,
entities created, consolidations completed. A withdrawn memory counts as deleted, and as created when it is restored.

A row does not contain the previous state of its node. A change set therefore carries it (`NodeBeforeImage`) for nodes
with memory events, and listeners that read the journal later get the same events.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Literal, get_args

import msgspec
from typing_extensions import override

from kgserve.errors import InvalidInput
from kgserve.platform.codecs import json_decoder
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.storage.model.change_set import ChangeSet, MemoryCategory, NodeBeforeImage
from kgserve.storage.model.node_edge_fields import (
    EDGE,
    LINK_STORE_FIELD,
    NO_EXTRAS,
    NODE,
    TIMESTAMP_TYPE,
    EdgeExtras,
    NodeExtras,
    get_row_field_names,
)
from kgserve.storage.model.node_edge_rows import (
    CrossStoreLinkKey,
    CrossStoreLinkRow,
    EdgeKey,
    EdgeRow,
    NodeRow,
    edge_id,
    format_cross_store_link_id,
)
from kgserve.storage.model.store_names import check_store_name
from kgserve.storage.model.write_batch import KIND_CONSOLIDATION

RUN_STATUS_DONE = "done"
MemoryEvent = Literal["memory_created", "memory_updated", "memory_deleted", "entity_created", "consolidation_complete"]


class MemoryEventData(msgspec.Struct, frozen=True, gc=False):
    """Data of a memory event: fields by name, and the type of the node if it is known."""

    fields: dict[str, Any]
    type: str | None = None

    @property
    def cost(self) -> int:
        """Approximate bytes of the texts."""
        return sum(len(value) for value in self.fields.values() if isinstance(value, str))


class _RunReport(msgspec.Struct, frozen=True):
    """Reported attributes of a consolidation run."""

    status: str = ""
    merged: int = 0
    deleted: int = 0


_decode_run_report = json_decoder(_RunReport).decode
_HIDDEN_EXTRAS = {"created_by", "conflicts", "ended", "former_from", "former_to", "belongs_to"}
_REPORTED_FIELDS = ("type", "content", "attributes")
_REPORTED_EXTRAS = tuple(name for name in get_row_field_names(NODE.optional) if name not in _HIDDEN_EXTRAS)
_TIME_EXTRAS = {field.name for field in NODE.optional if field.type is TIMESTAMP_TYPE}


def classify_node_for_memory_events(row: NodeRow) -> MemoryCategory:
    """Return whether memory events treat a node as an entity, a memory or a run; "" for none of these."""
    extras = row.extras
    if extras is not None and extras.confidence is not None:
        return "" if extras.ended else "memory"
    if row.type == KIND_CONSOLIDATION:
        return "run" if _read_run_report(row).status == RUN_STATUS_DONE else ""
    return "entity" if extras is not None and extras.name else ""


def build_node_before_image(old: NodeRow, new: NodeRow) -> NodeBeforeImage | None:
    """Return the before-image of an updated node, or None if the change causes no memory event."""
    kind = classify_node_for_memory_events(old)
    if not kind and not classify_node_for_memory_events(new):
        return None
    return NodeBeforeImage(old.id, kind, tuple(_changed_fields(old, new)))


def extract_memory_events_from_change_set(change: ChangeSet) -> Iterator[tuple[MemoryEvent, MemoryEventData]]:
    """Yield the memory events of a change set: deletions, then creations, updates and completed runs."""
    former = {each.id: each for each in change.former}
    yield from _deleted_memory_events(change, former)
    new: dict[MemoryCategory, list[NodeRow]] = {"": [], "entity": [], "memory": [], "run": []}
    for row in (*change.nodes_created, *(row for row in change.nodes_updated if _is_new(row, former))):
        new[classify_node_for_memory_events(row)].append(row)
    for row in new["entity"]:
        yield (
            "entity_created",
            MemoryEventData({"id": row.id, "name": (row.extras or NO_EXTRAS).name, "type": row.type}, row.type),
        )
    for row in new["memory"]:
        yield "memory_created", MemoryEventData({"id": row.id, "content": row.content, "type": row.type}, row.type)
    yield from _updated_memory_events(change, former)
    for row in new["run"]:
        run = _read_run_report(row)
        yield (
            "consolidation_complete",
            MemoryEventData({"id": row.id, "merged": run.merged, "deleted": run.deleted}, row.type),
        )


def _deleted_memory_events(
    change: ChangeSet, former: dict[str, NodeBeforeImage]
) -> Iterator[tuple[MemoryEvent, MemoryEventData]]:
    for node_id in change.nodes_deleted:
        if node_id in former and former[node_id].kind == "memory":
            yield "memory_deleted", MemoryEventData({"id": node_id, "reason": "deleted"})
    for row in change.nodes_updated:
        if row.id in former and former[row.id].kind == "memory" and classify_node_for_memory_events(row) != "memory":
            reason = (row.extras or NO_EXTRAS).ended or "withdrawn"
            yield "memory_deleted", MemoryEventData({"id": row.id, "reason": reason}, row.type)


def _updated_memory_events(
    change: ChangeSet, former: dict[str, NodeBeforeImage]
) -> Iterator[tuple[MemoryEvent, MemoryEventData]]:
    for row in change.nodes_updated:
        was = former.get(row.id)
        if (
            was is not None
            and was.kind == "memory"
            and was.changed
            and classify_node_for_memory_events(row) == "memory"
        ):
            yield (
                "memory_updated",
                MemoryEventData({"id": row.id, "changes": _current_values(row, was.changed)}, row.type),
            )


def _is_new(row: NodeRow, former: dict[str, NodeBeforeImage]) -> bool:
    """Return True if an existing node entered its category with this change."""
    return row.id in former and former[row.id].kind != classify_node_for_memory_events(row)


def _changed_fields(old: NodeRow, new: NodeRow) -> Iterator[str]:
    yield from (name for name in _REPORTED_FIELDS if getattr(old, name) != getattr(new, name))
    was, now = old.extras or NO_EXTRAS, new.extras or NO_EXTRAS
    yield from (name for name in _REPORTED_EXTRAS if getattr(was, name) != getattr(now, name))


def _current_values(row: NodeRow, changed: tuple[str, ...]) -> dict[str, Any]:
    """Return the current values of changed fields, as callers see them."""
    extras = row.extras or NO_EXTRAS
    return {name: _format_value(name, getattr(row if name in _REPORTED_FIELDS else extras, name)) for name in changed}


def _format_value(name: str, value: Any) -> Any:
    if name == "attributes":
        return msgspec.Raw(value.encode())
    return format_rfc3339_timestamp(value) if name in _TIME_EXTRAS and value is not None else value


def _read_run_report(row: NodeRow) -> _RunReport:
    try:
        return _decode_run_report(row.attributes)
    except msgspec.ValidationError:
        return _RunReport()


EventKind = (
    MemoryEvent
    | Literal[
        "node_created",
        "node_updated",
        "node_deleted",
        "edge_created",
        "edge_updated",
        "edge_deleted",
        "link_created",
        "link_updated",
        "link_deleted",
        "bulk_changed",
        "store_created",
        "store_changed",
        "store_dropped",
        "index_ready",
        "sync_complete",
    ]
)
EVENT_KINDS: frozenset[str] = frozenset(name for part in get_args(EventKind) for name in get_args(part))
MAX_SINGLE_EVENT_ROWS = 1_000
"""Changed rows beyond which a write becomes one event with counts."""
EVERY_OTHER_STORE = "*"
"""Key among positions for every store that is not named."""

EventSubject = (
    NodeRow | EdgeRow | CrossStoreLinkRow | str | EdgeKey | CrossStoreLinkKey | MemoryEventData | dict[str, Any]
)
"""Subject of an event: a row, the id or key of a deleted row, data of a memory event, or other fields."""

_POSITION_PATTERN = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,9}))?(?:~([0-9a-z]{1,16}))?")


class FeedPosition(msgspec.Struct, frozen=True, order=True):
    """Position of a listener in a change feed: the first event that it has not seen.

    ``incarnation`` is the tag of the store's incarnation, empty for the first and for the position before all events.
    """

    sequence: int
    index: int = 0
    incarnation: str = ""

    @classmethod
    def after(cls, sequence: int) -> FeedPosition:
        """Return the position after all events up to a sequence."""
        return cls(sequence + 1)

    @classmethod
    def parse(cls, text: str) -> FeedPosition:
        """Return the position after the event ``12-3`` or ``12-3~incarnation``, or after all of write ``12``.

        Raises ValueError.
        """
        found = _POSITION_PATTERN.fullmatch(text)
        if found is None:
            raise ValueError("expected a sequence such as 12, or an event's id such as 12-3")
        sequence, index, incarnation = found.groups()
        if index is None or int(sequence) == 0:  # 0-0 is the creation of a store; no write has that number
            return cls(int(sequence) + 1).in_incarnation(incarnation or "")
        return cls(int(sequence), int(index) + 1, incarnation or "")

    @property
    def last_seen_sequence(self) -> int:
        """Sequence of the last write of which the listener has seen an event."""
        return self.sequence if self.index else self.sequence - 1

    def in_incarnation(self, tag: str) -> FeedPosition:
        """Return the same position in an incarnation of the store."""
        return FeedPosition(self.sequence, self.index, tag if self.last_seen_sequence > 0 else "")

    def is_after(self, other: FeedPosition) -> bool:
        """Return whether this position is in a later incarnation than another, or further on in the same one."""
        return (self.incarnation, self.sequence, self.index) > (other.incarnation, other.sequence, other.index)

    @override
    def __str__(self) -> str:
        """Return the text that `parse` reads: the id of the last event seen, or the last write seen completely."""
        place = f"{self.sequence}-{self.index - 1}" if self.index else str(self.sequence - 1)
        return f"{place}~{self.incarnation}" if self.incarnation else place


class StoreEvent(msgspec.Struct, frozen=True, gc=False):
    """Event of a store's change feed. ``index`` is -1 for events not in the journal; ``time`` is in microseconds.

    ``subject`` depends on the kind: the current row, the id or key of a deleted row, or other fields by name.
    """

    kind: EventKind
    store: str
    sequence: int
    index: int
    time: int
    subject: EventSubject

    @property
    def type(self) -> str | None:
        """Type of the node or relation if it is known; for deleted nodes it is not."""
        match self.subject:
            case NodeRow() | MemoryEventData():
                return self.subject.type
            case EdgeRow():
                return self.subject.relation_type
            case CrossStoreLinkRow():
                return self.subject.edge.relation_type
            case CrossStoreLinkKey():
                return self.subject.edge[2]
            case tuple():
                return self.subject[2]
            case _:
                return None

    @property
    def cost(self) -> int:
        """Approximate bytes of the event as text."""
        match self.subject:
            case NodeRow():
                return (
                    100 + len(self.subject.content) + len(self.subject.attributes) + _extras_cost(self.subject.extras)
                )
            case EdgeRow():
                return 100 + len(self.subject.attributes)
            case CrossStoreLinkRow():
                return 100 + len(self.subject.edge.attributes)
            case MemoryEventData():
                return 100 + self.subject.cost
            case _:
                return 100

    def json(self) -> bytes:
        """Return the event's data as one line of JSON."""
        return _encode({"store": self.store, "time": format_rfc3339_timestamp(self.time), **_fields(self)})


class ChangeFeedEventFilter(msgspec.Struct, frozen=True):
    """Filter of events by kind and type; None matches all. Events without a type match any choice of types."""

    kinds: frozenset[str] | None = None
    types: frozenset[str] | None = None

    def takes(self, event: StoreEvent) -> bool:
        """Return True if an event matches."""
        if self.kinds is not None and event.kind not in self.kinds:
            return False
        return self.types is None or (kind := event.type) is None or kind in self.types


def expand_change_set_into_events(store: str, change: ChangeSet) -> list[StoreEvent]:
    """Return the events of a change set in order: a row follows the rows it needs, and is deleted before them.

    Memory events follow the events of rows, so that the indexes of the latter are stable.
    """
    # Most writes cause no memory events.
    means_more = change.former or any(
        row.extras is not None or row.type == KIND_CONSOLIDATION for row in change.nodes_created
    )
    subjects = chain(_row_events(change), extract_memory_events_from_change_set(change) if means_more else ())
    if (counts := count_changed_rows_by_kind(change)) and sum(counts.values()) > MAX_SINGLE_EVENT_ROWS:
        subjects = _bulk_events(counts, change)
    return [StoreEvent(kind, store, change.sequence, at, change.time, of) for at, (kind, of) in enumerate(subjects)]


def _bulk_events(counts: dict[str, Any], change: ChangeSet) -> Iterator[tuple[EventKind, EventSubject]]:
    """Yield the events of a large change set: counts, and completed consolidations."""
    meant = [*extract_memory_events_from_change_set(change)]
    numbers = Counter(kind for kind, _ in meant)
    yield "bulk_changed", counts | {name: numbers[kind] for kind, name in _COUNTED_EVENTS.items() if numbers[kind]}
    for kind, of in meant:
        if kind not in _COUNTED_EVENTS:
            yield kind, of


_COUNTED_EVENTS: dict[EventKind, str] = {
    "memory_created": "memories_created",
    "memory_updated": "memories_updated",
    "memory_deleted": "memories_deleted",
    "entity_created": "entities_created",
}


def count_changed_rows_by_kind(change: ChangeSet) -> dict[str, Any]:
    """Return the number of rows with events, by kind of change; link counts only if links changed."""
    links = ("links_created", "links_updated", "links_deleted") if change.links is not None else ()
    return {name: len(getattr(change, name)) for name in (*_COUNTED_CHANGES, *links)}


_COUNTED_CHANGES = (
    "nodes_created",
    "nodes_updated",
    "nodes_deleted",
    "edges_created",
    "edges_updated",
    "edges_deleted",
)


def parse_change_feed_positions(text: str, path: str) -> dict[str, FeedPosition]:
    """Parse change feed positions by store, as ``a:12-3,b:4``; ``*`` is every other store. Raises InvalidInput."""
    return dict(_parse_one(part.strip(), path) for part in text.split(",") if part.strip())


def parse_feed_position(text: str, path: str) -> FeedPosition:
    """Parse one change feed position. Raises InvalidInput."""
    try:
        return FeedPosition.parse(text.strip())
    except ValueError as error:
        raise InvalidInput.at(path, str(error)) from None


def format_change_feed_positions(positions: Mapping[str, FeedPosition]) -> str:
    """Format change feed positions by store, as ``a:12-3,b:4``."""
    return ",".join(f"{store}:{position}" for store, position in positions.items())


def parse_event_kinds(names: Iterable[str]) -> frozenset[str]:
    """Return the set of event kinds named. Raises InvalidInput naming the unknown ones."""
    given = frozenset(names)
    if unknown := sorted(given - EVENT_KINDS):
        raise InvalidInput.at(
            "kinds", f"no such event: {', '.join(unknown)[:200]}; known events are {', '.join(sorted(EVENT_KINDS))}"
        )
    return given


def _parse_one(part: str, path: str) -> tuple[str, FeedPosition]:
    store, colon, place = part.partition(":")
    if not colon:
        message = "expected store:id, such as project:12-3"
        raise InvalidInput.at(path, message)
    return store if store == EVERY_OTHER_STORE else check_store_name(store), parse_feed_position(place, path)


def _row_events(change: ChangeSet) -> Iterator[tuple[EventKind, EventSubject]]:
    return chain(
        (("link_deleted", key) for key in change.links_deleted),
        (("edge_deleted", key) for key in change.edges_deleted),
        (("node_deleted", node_id) for node_id in change.nodes_deleted),
        (("node_created", row) for row in change.nodes_created),
        (("node_updated", row) for row in change.nodes_updated),
        (("edge_created", row) for row in change.edges_created),
        (("edge_updated", row) for row in change.edges_updated),
        (("link_created", row) for row in change.links_created),
        (("link_updated", row) for row in change.links_updated),
    )


_encode = msgspec.json.Encoder().encode
_TIME_FIELD_NAMES = {field.name for field in (*NODE.extras, *EDGE.extras) if field.type is TIMESTAMP_TYPE}


def _edge_fields(row: EdgeRow, now: int) -> dict[str, Any]:
    return {
        "id": edge_id(row.key),
        **_key(row.key),
        "weight": row.weight,
        "attributes": msgspec.Raw(row.attributes.encode()),
        "version": row.version,
        **_extras(row.extras, now),
    }


def _fields(event: StoreEvent) -> dict[str, Any]:
    match event.subject:
        case NodeRow() as row:
            fields = {
                "id": row.id,
                "type": row.type,
                "content": row.content,
                "attributes": msgspec.Raw(row.attributes.encode()),
                "version": row.version,
                "created_at": format_rfc3339_timestamp(row.created_at),
                "updated_at": format_rfc3339_timestamp(row.updated_at),
                **_extras(row.extras, event.time),
            }
        case EdgeRow() as row:
            fields = _edge_fields(row, event.time)
        case CrossStoreLinkRow() as row:
            fields = {
                **_edge_fields(row.edge, event.time),
                "id": format_cross_store_link_id(row.key),
                LINK_STORE_FIELD: row.store,
            }
        case MemoryEventData(fields):
            pass
        case str() as node_id:
            fields = {"id": node_id}
        case CrossStoreLinkKey() as key:
            fields = {"id": format_cross_store_link_id(key), **_key(key.edge), LINK_STORE_FIELD: key.store}
        case tuple() as key:
            fields = {"id": edge_id(key), **_key(key)}
        case further:
            fields = further
    return {"sequence": event.sequence, **fields}


def _key(key: EdgeKey) -> dict[str, Any]:
    return {"from": key[0], "to": key[1], "relation_type": key[2]}


def _extras_cost(extras: NodeExtras | None) -> int:
    return 0 if extras is None else 200 + len(extras.summary) + sum(map(len, extras.tags))


def _extras(extras: NodeExtras | EdgeExtras | None, now: int) -> dict[str, Any]:
    """Return the extras that are set; ``stale`` is as of the event."""
    if extras is None:
        return {}
    held = {name: value for name, value in msgspec.structs.asdict(extras).items() if value not in (None, "", ())}
    shown = {
        name: format_rfc3339_timestamp(value) if name in _TIME_FIELD_NAMES else value for name, value in held.items()
    }
    return {**shown, "stale": held["freshness_at"] <= now} if "freshness_at" in held else shown
