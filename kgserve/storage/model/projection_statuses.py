"""Status of the projections of a store, as statistics show it: search indexes, extraction, syncers, history."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class IndexStatus(msgspec.Struct, kw_only=True):
    """Status of one search index of a store. Sizes are in bytes."""

    name: Literal["keyword", "vector", "past-keyword", "past-vector"]
    sequence: int
    lag: Annotated[int, Meta(description="Commits that are not indexed yet")]
    entities: int
    pending: Annotated[int, Meta(description="Entities of the current batch that are not indexed yet")]
    progress: Annotated[
        float | None, Meta(description="Share of the store, 0 to 1, that a rebuild has indexed; null without a rebuild")
    ] = None
    bytes: int
    model: str
    degraded: bool
    error: str | None
    note: Annotated[str | None, Meta(description="Why searches are slow, and what to install")] = None


class FailedMemoryExtraction(msgspec.Struct, kw_only=True):
    """Memory whose fact extraction failed so often that the language model is not asked again."""

    id: str
    tries: int
    error: str


class FactExtractionStatus(msgspec.Struct, kw_only=True):
    """Status of fact extraction with a language model. Counts start when the store is opened."""

    model: str
    sequence: Annotated[int, Meta(description="Last commit whose new memories were queued")]
    waiting: Annotated[int, Meta(description="Memories waiting for the model")]
    set_aside: Annotated[list[FailedMemoryExtraction], Meta(description="The first 20 memories that failed too often")]
    set_aside_count: int
    extracted: Annotated[int, Meta(description="Memories whose answer from the model was applied")]
    items: Annotated[int, Meta(description="Facts, entities and relations that were added")]
    dropped: Annotated[int, Meta(description="Proposals of the model that were invalid")]
    failures: Annotated[int, Meta(description="Requests without a usable answer")]
    tokens_today: Annotated[int, Meta(description="Tokens used today (UTC): the larger of count and estimate")]
    daily_tokens: Annotated[int, Meta(description="Maximum tokens per day; 0 for no limit")]
    error: Annotated[str | None, Meta(description="Why the last request failed, until one succeeds")]


class SyncerStatus(msgspec.Struct, kw_only=True):
    """Status of a syncer, which sends a store's contents to an external index. Counts start at opening."""

    name: str
    sequence: Annotated[int, Meta(description="Last commit that was sent")]
    lag: Annotated[int, Meta(description="Commits that were not sent yet")]
    sent: Annotated[int, Meta(description="Contents and deletions that were accepted")]
    failures: Annotated[int, Meta(description="Requests that failed")]
    error: Annotated[str | None, Meta(description="Why the last request failed, until one succeeds")]


class HistoryGap(msgspec.Struct, kw_only=True):
    """Range of commits whose history is incomplete because part of its file was damaged."""

    part: Annotated[str, Meta(description="Missing part: node, edge or link")]
    first: Annotated[int, Meta(description="First affected sequence")]
    last: Annotated[int | None, Meta(description="First sequence that is complete again; null until it is known")]


class HistoryStatus(msgspec.Struct, kw_only=True):
    """Status of the history and of its scrubber, which looks for damage in the background."""

    oldest: Annotated[int, Meta(description="First sequence that can be queried; 0 for all")]
    bytes: int
    gaps: list[HistoryGap]
    scrubbed_bytes: Annotated[int, Meta(description="Bytes that the current scrub has verified")]
    scrubbed_at: Annotated[str | None, Meta(description="When the last scrub ended")]
    damage: Annotated[str | None, Meta(description="Damage found since the store was opened")]
