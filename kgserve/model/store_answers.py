"""What callers get to hear of stores, as Structs. Arrays are never null, sizes in bytes, times RFC 3339 in UTC."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec


class StoreSummary(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A store as the list shows it. Sizes are in bytes, on disk; ``lag``, in commits, and checks are of open ones."""

    name: str
    state: Literal["open", "closed", "damaged"]
    nodes: int
    edges: int
    sequence: int
    journal_bytes: int
    engine_bytes: int
    created_at: str
    lag: int | None = None
    last_check: str | None = None
    last_check_ok: bool | None = None


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
    """A store that is gone."""

    ok: Literal[True] = True
    dropped: str


class IndexStatus(msgspec.Struct, kw_only=True):
    """How one index of a store stands. Sizes are in bytes."""

    name: Literal["keyword", "vector", "past-keyword", "past-vector"]
    sequence: int
    lag: Annotated[int, msgspec.Meta(description="Commits that it has not seen yet")]
    entities: int
    pending: Annotated[int, msgspec.Meta(description="Entities of the present step that are still to come")]
    bytes: int
    model: str
    degraded: bool
    error: str | None


class StoreStats(msgspec.Struct, kw_only=True):
    """What one store holds and how it is doing. Sizes are in bytes."""

    name: str
    nodes: int
    edges: int
    sequence: int
    types: Annotated[dict[str, int], msgspec.Meta(description="Nodes by type, the 100 most frequent")]
    relation_types: Annotated[dict[str, int], msgspec.Meta(description="Edges by relation type, the 100 most frequent")]
    journal_bytes: int
    journal_segments: int
    snapshot_sequence: int | None
    engine_bytes: int
    engine_log_bytes: int
    engine_lag: Annotated[int, msgspec.Meta(description="Commits that Cypher would have to wait for")]
    engine_rebuilds: Annotated[int, msgspec.Meta(description="Since the store was opened")]
    compactions: Annotated[int, msgspec.Meta(description="Since the store was opened")]
    queued_writes: int
    indexes: list[IndexStatus]
    last_check: str | None
    last_check_ok: bool | None
    digest: Annotated[str, msgspec.Meta(description="Order-independent digest of all rows, 32 hex digits")]
    created_at: str
    history_lag: Annotated[int | None, msgspec.Meta(description="Commits that it has not seen yet")] = None
