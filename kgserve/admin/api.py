"""Stores as wholes: their settings, how they stand, backups of them. What callers send, and what they are answered.

Arrays are never null, sizes are in bytes, times RFC 3339 in UTC.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kgserve.storage.model.statuses import ExtractionStatus, HistoryStatus, IndexStatus, SyncerStatus
from kgserve.storage.model.store_settings import (
    MAX_ATTRIBUTE_KEY_BYTES,
    MAX_CONFIGURED_KINDS,
    MAX_DAYS,
    MAX_INDEXED_ATTRIBUTES,
    ConflictPolicy,
    IndexesKept,
    Keeping,
    MemorySettings,
    MemorySettingsChange,
    _Kind,
)

_Name = Annotated[str | None, Meta(description="For people, at most 512 bytes; left out: kept; empty: cleared")]
_Policy = Annotated[
    ConflictPolicy | Literal[""] | None,
    Meta(
        description="What becomes of a write that is based on a former version: it wins, or both are kept; "
        "left out or empty: stays, of a new store lww"
    ),
]
_Kinds = (
    Annotated[
        list[_Kind],
        Meta(
            max_length=MAX_CONFIGURED_KINDS, description="Types that nodes may have; left out: kept; empty: all of them"
        ),
    ]
    | None
)
_Metadata = Annotated[
    dict[str, Any] | None,
    Meta(description="Any JSON object, at most 256 KiB and 64 levels; left out: kept; given: replaces"),
]
_Indexed = (
    Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=MAX_ATTRIBUTE_KEY_BYTES)]],
        Meta(
            max_length=MAX_INDEXED_ATTRIBUTES,
            description='Attributes whose values search finds nodes by; "*": all; left out: kept; empty: none',
        ),
    ]
    | None
)
_Indexes = (
    Annotated[
        IndexesKept,
        Meta(
            description="What search finds by: nothing, words, or words and meaning; default: what the server's option "
            "`indexes` says"
        ),
    ]
    | None
)
_Days = Annotated[int, Meta(ge=1, le=MAX_DAYS)]
_History = Annotated[
    Literal["all", "none"] | _Days | None,
    Meta(description="Former states that are kept: all, none, or those of the last N days (1 to 36,500)"),
]


class StoreSettingsRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Settings to change, or to create a store with. What is left out, or null, stays."""

    name: _Name = None
    conflict_policy: _Policy = None
    kind_whitelist: _Kinds = None
    metadata: _Metadata = None
    indexed_attributes: _Indexed = None
    indexes: _Indexes = None
    history: _History = None
    memory: Annotated[MemorySettingsChange | None, Meta(description="How it remembers; merged by field")] = None


class StoreLine(StoreSettingsRequest, tag="store", tag_field="kind", forbid_unknown_fields=True, kw_only=True):
    """The settings of a store as the first line of an export, as far as they are not those of a new one."""


class StoreSettingsAnswer(msgspec.Struct, kw_only=True):
    """The settings of ``store``; ``name`` is the one for people. ``sequence`` is the store's last commit."""

    store: str
    name: str
    conflict_policy: ConflictPolicy
    kind_whitelist: list[str]
    metadata: dict[str, Any]
    indexed_attributes: list[str]
    indexes: IndexesKept
    history: Keeping
    memory: MemorySettings
    created_at: str
    sequence: int


class PruneRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which former states to forget."""

    before: (
        Annotated[
            str,
            Meta(
                max_length=64,
                description="Forget what had ended by then: a sequence, an RFC 3339 time, or days such as 30d; "
                "left out: as the store's settings say",
            ),
        ]
        | None
    ) = None


class PruneAnswer(msgspec.Struct, kw_only=True):
    """``pruned`` states were forgotten; ``oldest`` is the first sequence that can be looked at as of."""

    store: str
    pruned: int
    oldest: int
    sequence: int


class LinkCounts(msgspec.Struct, frozen=True):
    """Edges that lead into other stores, and edges of others that lead into this one."""

    outbound: int
    inbound: int


class StoreChoices(msgspec.Struct, kw_only=True):
    """What was chosen for a store, as the list shows it. Metadata of more than 4 KiB is left out there."""

    name: str
    conflict_policy: ConflictPolicy
    kind_whitelist: list[str]
    indexed_attributes: list[str]
    metadata: dict[str, Any] | UnsetType = UNSET


class StoreSummary(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A store as the list shows it. Sizes are in bytes, on disk; ``lag``, in commits, and checks are of open ones.

    ``last_write`` is the time of its last commit; a store without any has none. ``links`` is there where edges lead
    into other stores, or from others into this one. Of a store that is ``elsewhere`` in the cluster, at another
    ``node``, only name and settings are known here: its counts are 0.
    """

    name: str
    state: Literal["open", "closed", "damaged", "elsewhere"]
    nodes: int
    edges: int
    sequence: int
    journal_bytes: int
    engine_bytes: int
    created_at: str
    last_write: str | None = None
    settings: StoreChoices | UnsetType = UNSET
    lag: int | None = None
    last_check: str | None = None
    last_check_ok: bool | None = None
    links: LinkCounts | None = None
    node: str | None = None


class LinkedStore(msgspec.Struct, frozen=True):
    """A store, and how many edges lead there, or come from there."""

    graph_id: str
    edge_count: int


class LinkManifest(msgspec.Struct, kw_only=True):
    """The stores that edges of one lead into, and those whose edges lead into it: the first 1,000 of each by name.

    ``inbound_seen`` has the commit of each of these up to which its edges were looked at.
    """

    store: str
    outbound: list[LinkedStore]
    inbound: list[LinkedStore]
    inbound_seen: dict[str, int]
    truncated: bool
    sequence: int


class StoreList(msgspec.Struct, kw_only=True):
    """All stores by name."""

    stores: list[StoreSummary]
    count: int


class StoreAnswer(msgspec.Struct, kw_only=True):
    """A store after it was created or found."""

    ok: Literal[True] = True
    name: str
    created: bool
    sequence: int


class DropAnswer(msgspec.Struct, kw_only=True):
    """A store that is gone. ``inbound``: how many edges of stores that the caller sees lead there still."""

    ok: Literal[True] = True
    dropped: str
    inbound: int = 0


class StoreStats(msgspec.Struct, kw_only=True):
    """What one store holds and how it is doing. Sizes are in bytes."""

    name: str
    nodes: int
    edges: int
    sequence: int
    types: Annotated[dict[str, int], Meta(description="Nodes by type, the 100 most frequent")]
    relation_types: Annotated[dict[str, int], Meta(description="Edges by relation type, the 100 most frequent")]
    journal_bytes: int
    journal_segments: int
    snapshot_sequence: int | None
    engine_bytes: int
    engine_log_bytes: int
    engine_lag: Annotated[int, Meta(description="Commits that Cypher would have to wait for")]
    engine_rebuilds: Annotated[int, Meta(description="Since the store was opened")]
    compactions: Annotated[int, Meta(description="Since the store was opened")]
    queued_writes: int
    indexes: list[IndexStatus]
    last_check: str | None
    last_check_ok: bool | None
    digest: Annotated[str, Meta(description="Order-independent digest of all rows, 32 hex digits")]
    created_at: str
    history_lag: Annotated[int | None, Meta(description="Commits that it has not seen yet")] = None
    history: Annotated[HistoryStatus | UnsetType, Meta(description="Only where one is kept, once it is open")] = UNSET
    future_stamp: Annotated[
        str | None, Meta(description="Newest time of a commit where that lies in the future: the clock was ahead")
    ] = None
    extraction: Annotated[ExtractionStatus | UnsetType, Meta(description="Only where a language model is set")] = UNSET
    syncers: Annotated[list[SyncerStatus] | UnsetType, Meta(description="Only where connectors are configured")] = UNSET
