"""Stores as wholes: their settings, how they stand, backups of them. What callers send, and what they are answered.

Arrays are never null, sizes are in bytes, times RFC 3339 in UTC.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import force_setattr

from kgserve.model.decay import HalfLives
from kgserve.model.fields import MAX_ID_BYTES
from kgserve.model.requests import MAX_STORE_NAME, STORE_NAME
from kgserve.settings import (
    Alpha,
    ConsolidationGuard,
    ConsolidationHours,
    ConsolidationInterval,
    ConsolidationPolicy,
    ConsolidationThreshold,
    DedupPolicy,
    DedupThreshold,
    DefaultLimit,
    Extract,
    HalfLife,
    MinConfidence,
    MinSimilarity,
    PruneHours,
    PrunePolicy,
    PruneThreshold,
    Reinforcement,
    ReinforcementAmount,
    Settings,
)

MAX_NAME_BYTES = 512
MAX_KINDS = 1_000
MAX_DAYS = 36_500
MAX_INDEXED = 20
MAX_KEY = 256
EVERY_ATTRIBUTE = "*"

ConflictPolicy = Literal["lww", "manual"]
IndexesKept = Literal["default", "none", "words", "words+meaning"]
Keeping = Literal["all", "none"] | int
"""How much of a store's history is kept: everything, nothing, or the states that ended in so many last days."""

_Kind = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
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
        Meta(max_length=MAX_KINDS, description="Types that nodes may have; left out: kept; empty: all of them"),
    ]
    | None
)
_Metadata = Annotated[
    dict[str, Any] | None,
    Meta(description="Any JSON object, at most 256 KiB and 64 levels; left out: kept; given: replaces"),
]
_Indexed = (
    Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=MAX_KEY)]],
        Meta(
            max_length=MAX_INDEXED,
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
    Meta(description="What is kept of former states: all, none, or those of so many last days (1 to 36,500)"),
]


_HalfLives = Annotated[
    dict[_Kind, HalfLife],
    Meta(max_length=MAX_KINDS, description="Half-lives of some types of memories; null: they stay"),
]


_USUAL = Settings()


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a store remembers."""

    half_life_days: HalfLife = _USUAL.memory_half_life_days
    half_life_by_type: _HalfLives = {}
    reinforcement: Reinforcement = _USUAL.memory_reinforcement
    reinforcement_amount: ReinforcementAmount = _USUAL.memory_reinforcement_amount
    min_confidence: MinConfidence = _USUAL.memory_min_confidence
    dedup: DedupPolicy = _USUAL.memory_dedup
    dedup_threshold: DedupThreshold = _USUAL.memory_dedup_threshold
    consolidation: ConsolidationPolicy = _USUAL.memory_consolidation
    consolidation_threshold: ConsolidationThreshold = _USUAL.memory_consolidation_threshold
    consolidation_guard: ConsolidationGuard = _USUAL.memory_consolidation_guard
    consolidation_interval: ConsolidationInterval = _USUAL.memory_consolidation_interval
    consolidation_hours: ConsolidationHours = _USUAL.memory_consolidation_hours
    prune: PrunePolicy = _USUAL.memory_prune
    prune_threshold: PruneThreshold = _USUAL.memory_prune_threshold
    prune_hours: PruneHours = _USUAL.memory_prune_hours
    alpha: Alpha = _USUAL.memory_alpha
    min_similarity: MinSimilarity = _USUAL.memory_min_similarity
    default_limit: DefaultLimit = _USUAL.memory_default_limit
    extract: Extract = _USUAL.memory_extract

    def __post_init__(self) -> None:
        """Take a number in `reinforcement`, which older stores and callers have there, as the amount."""
        if not isinstance(self.reinforcement, str):
            force_setattr(self, "reinforcement_amount", self.reinforcement)
            force_setattr(self, "reinforcement", "restore")

    @property
    def half_lives(self) -> HalfLives:
        """How fast memories fade."""
        return HalfLives(self.half_life_days, self.half_life_by_type)


class MemorySettingsChange(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How a store is to remember. What is left out, or null, stays; but a half-life that is null is none."""

    half_life_days: HalfLife | UnsetType = UNSET
    half_life_by_type: _HalfLives | None = None
    reinforcement: Reinforcement | None = None
    reinforcement_amount: ReinforcementAmount | None = None
    min_confidence: MinConfidence | None = None
    dedup: DedupPolicy | None = None
    dedup_threshold: DedupThreshold | None = None
    consolidation: ConsolidationPolicy | None = None
    consolidation_threshold: ConsolidationThreshold | None = None
    consolidation_guard: ConsolidationGuard | None = None
    consolidation_interval: ConsolidationInterval | None = None
    consolidation_hours: ConsolidationHours | None = None
    prune: PrunePolicy | None = None
    prune_threshold: PruneThreshold | None = None
    prune_hours: PruneHours | None = None
    alpha: Alpha | None = None
    min_similarity: MinSimilarity | None = None
    default_limit: DefaultLimit | None = None
    extract: Extract | None = None

    def onto(self, settings: MemorySettings) -> MemorySettings:
        """What they are then."""
        given = msgspec.structs.asdict(self)
        kept = {name for name, value in given.items() if value is None and name != "half_life_days"}
        changes = {name: value for name, value in given.items() if name not in kept and value is not UNSET}
        if isinstance(changes.get("reinforcement"), float):
            changes["reinforcement_amount"] = changes.pop("reinforcement")
        return msgspec.structs.replace(settings, **changes)


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one store; an empty ``kind_whitelist`` lets every type in."""

    name: str = ""
    conflict_policy: ConflictPolicy = "lww"
    kind_whitelist: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    indexed_attributes: tuple[str, ...] = ()
    indexes: IndexesKept = "default"
    history: Keeping = "all"
    memory: MemorySettings = MemorySettings()


def usual(settings: Settings) -> StoreSettings:
    """Those of a new store of a server with these settings."""
    names = (name for name in MemorySettings.__struct_fields__ if name != "half_life_by_type")
    return StoreSettings(memory=MemorySettings(**{name: getattr(settings, f"memory_{name}") for name in names}))


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


class IndexStatus(msgspec.Struct, kw_only=True):
    """How one index of a store stands. Sizes are in bytes."""

    name: Literal["keyword", "vector", "past-keyword", "past-vector"]
    sequence: int
    lag: Annotated[int, Meta(description="Commits that it has not seen yet")]
    entities: int
    pending: Annotated[int, Meta(description="Entities of the present step that are still to come")]
    bytes: int
    model: str
    degraded: bool
    error: str | None


class SetAside(msgspec.Struct, kw_only=True):
    """A memory of which the language model made nothing that can be used, so often that it is not asked again."""

    id: str
    tries: int
    error: str


class ExtractionStatus(msgspec.Struct, kw_only=True):
    """How taking facts out of memories with a language model stands. Counts are since the store was opened."""

    model: str
    sequence: Annotated[int, Meta(description="The commit up to which new memories were noted")]
    waiting: Annotated[int, Meta(description="Memories that the model is yet to be given")]
    set_aside: Annotated[list[SetAside], Meta(description="The first 20")]
    set_aside_count: int
    extracted: Annotated[int, Meta(description="Memories of which the model's answer was taken in")]
    items: Annotated[int, Meta(description="Facts, entities and relations that were taken in")]
    dropped: Annotated[int, Meta(description="What the model proposed that could not be")]
    failures: Annotated[int, Meta(description="Questions without an answer that can be used")]
    tokens_today: Annotated[int, Meta(description="Tokens of this day (UTC), by the larger of count, estimate")]
    daily_tokens: Annotated[int, Meta(description="The most tokens of a day; 0: no limit")]
    error: Annotated[str | None, Meta(description="Why the last question failed, until one succeeds")]


class SyncerStatus(msgspec.Struct, kw_only=True):
    """How telling an index of others what the store contains stands. Counts are since the store was opened."""

    name: str
    sequence: Annotated[int, Meta(description="The commit up to which it was told")]
    lag: Annotated[int, Meta(description="Commits that it was not told of yet")]
    sent: Annotated[int, Meta(description="Contents and deletions that it took")]
    failures: Annotated[int, Meta(description="Times that it did not")]
    error: Annotated[str | None, Meta(description="Why, until it takes them")]


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
    extraction: Annotated[ExtractionStatus | UnsetType, Meta(description="Only where a language model is set")] = UNSET
    syncers: Annotated[list[SyncerStatus] | UnsetType, Meta(description="Only where others are told of contents")] = (
        UNSET
    )


_Folder = Annotated[
    str, Meta(max_length=1024, description="Folder below the server's backup_dir; left out: that folder itself")
]
_Full = Annotated[bool, Meta(description="Copy everything, not only what is new")]
_Keep = Annotated[int, Meta(ge=1, le=10_000, description="Bases to keep, the newest; left out: all")] | None
_StoreName = Annotated[str, Meta(pattern=f"^{STORE_NAME}", max_length=MAX_STORE_NAME)]
_Until = (
    Annotated[
        str,
        Meta(max_length=64, description="A sequence or an RFC 3339 time; left out: the end of the newest backup"),
    ]
    | None
)


class StoreBackupRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where to back one store up to."""

    to: _Folder = ""
    full: _Full = False
    keep: _Keep = None


class BackupRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which stores to back up, and where to."""

    stores: Annotated[list[_StoreName], Meta(description="Left out: all that the caller sees")] | None = None
    to: _Folder = ""
    full: _Full = False
    keep: _Keep = None


class StoreBackupAnswer(msgspec.Struct, kw_only=True):
    """The backup of one store. What it covers ends with ``sequence``, and begins with ``first`` on its newest base.

    ``new_base`` says why everything was copied; it is empty when only what was new was. ``since`` and ``taken_at`` are
    the times between which every moment can be restored.
    """

    store: str
    sequence: int
    first: int
    since: str
    taken_at: str
    digest: str
    nodes: int
    edges: int
    new_base: str
    bytes_copied: int
    bytes_total: int
    bases: int
    took_ms: float


class BackupFailure(msgspec.Struct, kw_only=True):
    """A store that could not be backed up; its former backup is as it was."""

    store: str
    error: str


class BackupAnswer(msgspec.Struct, kw_only=True):
    """What was backed up into ``folder``, and what was not. A server names the folder from its `backup_dir` on."""

    folder: str
    stores: list[StoreBackupAnswer]
    failed: list[BackupFailure]
    bytes_copied: int


class PreparedStore(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A store's folder that a local command has made in the data folder, and the state that it must open with."""

    folder: Annotated[str, Meta(max_length=128)]
    store: _StoreName
    sequence: Annotated[int, Meta(ge=0, lt=1 << 53)]
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]


class RestoreBackupRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which store to restore, as what, and as of when; all stores of the backup when ``store`` is left out."""

    source: _Folder = msgspec.field(default="", name="from")
    store: _StoreName | None = None
    into: Annotated[_StoreName, Meta(description="Another name for it")] | None = msgspec.field(default=None, name="as")
    until: _Until = None
    prepared: Annotated[PreparedStore, Meta(description="For `kgserve restore` on the server's own machine")] | None = (
        None
    )


class RestoredStore(msgspec.Struct, kw_only=True):
    """A store that was made out of the backup of ``source``; ``sequence`` is the commit as of which it is."""

    store: str
    source: str
    sequence: int
    digest: str
    nodes: int
    edges: int
    took_ms: float


class RestoreBackupAnswer(msgspec.Struct, kw_only=True):
    """The stores that were restored."""

    stores: list[RestoredStore]


class BaseAnswer(msgspec.Struct, kw_only=True):
    """One base of a backup: whether it is whole, the sequences and times that it covers, and its runs."""

    ok: bool
    first: int
    last: int
    since: str
    until: str
    runs: int
    bytes: int


class VerifiedStore(msgspec.Struct, kw_only=True):
    """What was found in the backup of one store; it is whole when there are no ``faults``."""

    store: str
    ok: bool
    bases: list[BaseAnswer]
    faults: list[str]
    leftovers: int
