"""Requests and answers of store administration: settings, status and backups of whole stores.

Arrays are never null, sizes are in bytes, times are RFC 3339 in UTC.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kgserve.platform.text.languages import LanguageSetting
from kgserve.storage.model.projection_statuses import FactExtractionStatus, HistoryStatus, IndexStatus, SyncerStatus
from kgserve.storage.model.store_settings import (
    MAX_ATTRIBUTE_KEY_BYTES,
    MAX_CONFIGURED_KINDS,
    MAX_HISTORY_DAYS,
    MAX_INDEXED_ATTRIBUTES,
    ConflictPolicy,
    HistoryRetention,
    IndexChoice,
    LateInteraction,
    MemorySettings,
    MemorySettingsChange,
    _Kind,
)

_Name = Annotated[str | None, Meta(description="Display name, at most 512 bytes; omitted: kept; empty: cleared")]
_Policy = Annotated[
    ConflictPolicy | Literal[""] | None,
    Meta(
        description="Policy for a write that is based on a superseded version: lww (the write wins) or manual (both "
        "are kept); omitted or empty: kept, and lww for a new store"
    ),
]
_Kinds = (
    Annotated[
        list[_Kind],
        Meta(max_length=MAX_CONFIGURED_KINDS, description="Allowed types of nodes; omitted: kept; empty: all types"),
    ]
    | None
)
_Metadata = Annotated[
    dict[str, Any] | None,
    Meta(description="Any JSON object, at most 256 KiB and 64 levels; omitted: kept; given: replaced"),
]
_Indexed = (
    Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=MAX_ATTRIBUTE_KEY_BYTES)]],
        Meta(
            max_length=MAX_INDEXED_ATTRIBUTES,
            description='Attributes whose values are searchable; "*": all; omitted: kept; empty: none',
        ),
    ]
    | None
)
_Indexes = (
    Annotated[
        IndexChoice,
        Meta(
            description="Search indexes of the store: none, words, or words and meaning; default: the server's option "
            "`indexes`"
        ),
    ]
    | None
)
_Language = (
    Annotated[
        LanguageSetting,
        Meta(description="Language whose word forms keyword search matches; auto: that of each node's text"),
    ]
    | None
)
_LateInteraction = (
    Annotated[
        LateInteraction,
        Meta(description="Nodes whose tokens are embedded for late interaction: turns of conversations, all, or none"),
    ]
    | None
)
_Days = Annotated[int, Meta(ge=1, le=MAX_HISTORY_DAYS)]
_History = Annotated[
    Literal["all", "none"] | _Days | None,
    Meta(description="Former states to keep: all, none, or those of the last N days (1 to 36,500)"),
]


class StoreSettingsRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Settings to change, or of a new store. Omitted and null values are kept."""

    name: _Name = None
    conflict_policy: _Policy = None
    kind_whitelist: _Kinds = None
    metadata: _Metadata = None
    indexed_attributes: _Indexed = None
    indexes: _Indexes = None
    language: _Language = None
    late_interaction: _LateInteraction = None
    history: _History = None
    memory: Annotated[MemorySettingsChange | None, Meta(description="Memory settings; merged by field")] = None


class StoreSettingsExportLine(
    StoreSettingsRequest, tag="store", tag_field="kind", forbid_unknown_fields=True, kw_only=True
):
    """Settings of a store as the first line of an export, omitting defaults."""


class StoreSettingsAnswer(msgspec.Struct, kw_only=True):
    """Settings of ``store``; ``name`` is the display name. ``sequence`` is the store's last commit."""

    store: str
    name: str
    conflict_policy: ConflictPolicy
    kind_whitelist: list[str]
    metadata: dict[str, Any]
    indexed_attributes: list[str]
    indexes: IndexChoice
    language: LanguageSetting
    late_interaction: LateInteraction
    history: HistoryRetention
    memory: MemorySettings
    created_at: str
    sequence: int


class PruneHistoryRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Former states to delete from the history."""

    before: (
        Annotated[
            str,
            Meta(
                max_length=64,
                description="Delete states that ended by then: a sequence, an RFC 3339 time, or an age such as 30d; "
                "omitted: as configured for the store",
            ),
        ]
        | None
    ) = None


class PruneHistoryAnswer(msgspec.Struct, kw_only=True):
    """Number of deleted former states. ``oldest`` is the first sequence that `as_of` still accepts."""

    store: str
    pruned: int
    oldest: int
    sequence: int


class CrossStoreEdgeCounts(msgspec.Struct, frozen=True):
    """Numbers of edges into other stores, and of edges from other stores into this one."""

    outbound: int
    inbound: int


class StoreSettingsSummary(msgspec.Struct, kw_only=True):
    """Settings of a store as in the list of stores. Metadata larger than 4 KiB is omitted."""

    name: str
    conflict_policy: ConflictPolicy
    kind_whitelist: list[str]
    indexed_attributes: list[str]
    metadata: dict[str, Any] | UnsetType = UNSET


StoreListState: TypeAlias = Literal["open", "closed", "damaged", "elsewhere"]
MAX_LISTED_STORES = 1_000
"""Maximum and default number of stores on one page of the list."""


class StoreListParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query parameters of the list of stores."""

    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED_STORES, description="Maximum number of stores per page")] = (
        MAX_LISTED_STORES
    )
    after: Annotated[str, Meta(max_length=256, description="`next_after` of the previous page")] = ""
    prefix: Annotated[str, Meta(max_length=256, description="Only stores whose names begin with this")] = ""
    state: Annotated[StoreListState, Meta(description="Only stores in this state")] | None = None
    kind: (
        Annotated[str, Meta(max_length=256, description="Only stores whose settings allow nodes of this type")] | None
    ) = None


class StoreSummary(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Entry of the list of stores. Sizes are in bytes on disk; ``lag`` (commits) and checks are of open stores only.

    ``last_write`` is the time of the last commit, absent before the first. ``links`` is present if edges lead into
    other stores, or from them into this one. A store with the state ``elsewhere`` is served by another ``node`` of the
    cluster: name and settings are known here, and counts are null.
    """

    name: str
    state: StoreListState
    nodes: int | None
    edges: int | None
    sequence: int | None
    journal_bytes: int | None
    engine_bytes: int | None
    created_at: str
    last_write: str | None = None
    settings: StoreSettingsSummary | UnsetType = UNSET
    lag: int | None = None
    last_check: str | None = None
    last_check_ok: bool | None = None
    links: CrossStoreEdgeCounts | None = None
    node: str | None = None


class LinkedStoreEdgeCount(msgspec.Struct, frozen=True):
    """Store and the number of edges that lead into it, or come from it."""

    graph_id: str
    edge_count: int


class LinkedStoresAnswer(msgspec.Struct, kw_only=True):
    """Stores linked from and into one store: the first 1,000 of each by name.

    ``inbound_seen`` maps each linking store to the commit up to which its edges were read.
    """

    store: str
    outbound: list[LinkedStoreEdgeCount]
    inbound: list[LinkedStoreEdgeCount]
    inbound_seen: dict[str, int]
    truncated: bool
    sequence: int


class StoreList(msgspec.Struct, kw_only=True):
    """A page of the stores by name. ``count`` is the number of stores on all pages."""

    stores: list[StoreSummary]
    count: int
    next_after: Annotated[str | None, Meta(description="`after` for the next page; null on the last one")] = None


class CreateStoreAnswer(msgspec.Struct, kw_only=True):
    """Result of creating a store; ``created`` is false if it existed."""

    ok: Literal[True] = True
    name: str
    created: bool
    sequence: int


class DropStoreAnswer(msgspec.Struct, kw_only=True):
    """Result of deleting a store. ``inbound`` counts remaining edges to it from stores that the caller may read."""

    ok: Literal[True] = True
    dropped: str
    inbound: int = 0


class StoreStats(msgspec.Struct, kw_only=True):
    """Contents and status of one store. Sizes are in bytes."""

    name: str
    nodes: int
    edges: int
    sequence: int
    types: Annotated[dict[str, int], Meta(description="Number of nodes by type, for the 100 most frequent types")]
    relation_types: Annotated[
        dict[str, int], Meta(description="Number of edges by type, for the 100 most frequent types")
    ]
    journal_bytes: int
    journal_segments: int
    snapshot_sequence: int | None
    engine_bytes: int
    engine_log_bytes: int
    engine_lag: Annotated[int, Meta(description="Commits that the Cypher engine has not applied yet")]
    engine_rebuilds: Annotated[int, Meta(description="Number since the store was opened")]
    compactions: Annotated[int, Meta(description="Number since the store was opened")]
    queued_writes: int
    indexes: list[IndexStatus]
    languages: Annotated[
        dict[str, int],
        Meta(description="Indexed nodes by the detected language of their texts (ISO 639-1), for the 10 most frequent"),
    ]
    last_check: str | None
    last_check_ok: bool | None
    digest: Annotated[str, Meta(description="Order-independent digest of all rows, 32 hex digits")]
    created_at: str
    history_lag: Annotated[int | None, Meta(description="Commits that the history has not applied yet")] = None
    history: Annotated[HistoryStatus | UnsetType, Meta(description="Present if a history is kept and open")] = UNSET
    future_stamp: Annotated[
        str | None, Meta(description="Newest commit time if it lies in the future, because the clock was ahead")
    ] = None
    extraction: Annotated[FactExtractionStatus | UnsetType, Meta(description="Present if a language model is set")] = (
        UNSET
    )
    syncers: Annotated[list[SyncerStatus] | UnsetType, Meta(description="Present if connectors are configured")] = UNSET
