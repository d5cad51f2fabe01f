"""Settings of a store: indexes, history, accepted kinds, and memory behaviour."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import force_setattr

from kgserve.platform.settings import (
    ConsolidationGuard,
    ConsolidationHours,
    ConsolidationInterval,
    ConsolidationPolicy,
    ConsolidationThreshold,
    DedupPolicy,
    DedupThreshold,
    DefaultRecallLimit,
    ExtractionEnabled,
    HalfLife,
    KeywordWeight,
    MinConfidence,
    MinRelevance,
    MinSimilarity,
    PruneHours,
    PrunePolicy,
    PruneThreshold,
    Reinforcement,
    ReinforcementAmount,
    Settings,
)
from kgserve.platform.text.languages import LanguageSetting
from kgserve.storage.model.node_edge_fields import MAX_ID_BYTES

MAX_DISPLAY_NAME_BYTES = 512
MAX_CONFIGURED_KINDS = 1_000
MAX_HISTORY_DAYS = 36_500
MAX_INDEXED_ATTRIBUTES = 20
MAX_ATTRIBUTE_KEY_BYTES = 256
EVERY_ATTRIBUTE = "*"
ConflictPolicy = Literal["lww", "manual"]
IndexChoice = Literal["default", "none", "words", "words+meaning"]
LateInteraction = Literal["turns", "all", "none"]
"""Nodes whose tokens are embedded, for late interaction: turns of conversations, all nodes, or none."""
HistoryRetention = Literal["all", "none"] | int
"""Retention of a store's history: everything, nothing, or states that ended within a number of days."""
_Kind = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
_HalfLives = Annotated[
    dict[_Kind, HalfLife],
    Meta(max_length=MAX_CONFIGURED_KINDS, description="Half-lives of memories by type; null: no decay"),
]
_DEFAULTS = Settings()


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a store for its memories of agents."""

    half_life_days: HalfLife = _DEFAULTS.memory_half_life_days
    half_life_by_type: _HalfLives = {}
    reinforcement: Reinforcement = _DEFAULTS.memory_reinforcement
    reinforcement_amount: ReinforcementAmount = _DEFAULTS.memory_reinforcement_amount
    min_confidence: MinConfidence = _DEFAULTS.memory_min_confidence
    dedup: DedupPolicy = _DEFAULTS.memory_dedup
    dedup_threshold: DedupThreshold = _DEFAULTS.memory_dedup_threshold
    consolidation: ConsolidationPolicy = _DEFAULTS.memory_consolidation
    consolidation_threshold: ConsolidationThreshold = _DEFAULTS.memory_consolidation_threshold
    consolidation_guard: ConsolidationGuard = _DEFAULTS.memory_consolidation_guard
    consolidation_interval: ConsolidationInterval = _DEFAULTS.memory_consolidation_interval
    consolidation_hours: ConsolidationHours = _DEFAULTS.memory_consolidation_hours
    prune: PrunePolicy = _DEFAULTS.memory_prune
    prune_threshold: PruneThreshold = _DEFAULTS.memory_prune_threshold
    prune_hours: PruneHours = _DEFAULTS.memory_prune_hours
    alpha: KeywordWeight = _DEFAULTS.memory_alpha
    min_similarity: MinSimilarity = _DEFAULTS.memory_min_similarity
    min_relevance: MinRelevance = _DEFAULTS.memory_min_relevance
    default_limit: DefaultRecallLimit = _DEFAULTS.memory_default_limit
    extract: ExtractionEnabled = _DEFAULTS.memory_extract

    def __post_init__(self) -> None:
        """Interpret a number in `reinforcement`, as older stores and callers send it, as the amount."""
        if not isinstance(self.reinforcement, str):
            force_setattr(self, "reinforcement_amount", self.reinforcement)
            force_setattr(self, "reinforcement", "restore")


class MemorySettingsChange(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Change of memory settings. Omitted and null values stay; a null half-life turns decay off."""

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
    alpha: KeywordWeight | None = None
    min_similarity: MinSimilarity | None = None
    min_relevance: MinRelevance | None = None
    default_limit: DefaultRecallLimit | None = None
    extract: ExtractionEnabled | None = None

    def applied_to(self, settings: MemorySettings) -> MemorySettings:
        """Return the settings after the change."""
        given = msgspec.structs.asdict(self)
        kept = {name for name, value in given.items() if value is None and name != "half_life_days"}
        changes = {name: value for name, value in given.items() if name not in kept and value is not UNSET}
        if isinstance(changes.get("reinforcement"), float):
            changes["reinforcement_amount"] = changes.pop("reinforcement")
        return msgspec.structs.replace(settings, **changes)


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one store; an empty ``kind_whitelist`` accepts every type."""

    name: str = ""
    conflict_policy: ConflictPolicy = "lww"
    kind_whitelist: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    indexed_attributes: tuple[str, ...] = ()
    indexes: IndexChoice = "default"
    language: LanguageSetting = "auto"
    late_interaction: LateInteraction = "turns"
    history: HistoryRetention = "all"
    memory: MemorySettings = MemorySettings()


def default_store_settings(settings: Settings) -> StoreSettings:
    """Return the settings of a new store on a server with these settings."""
    names = (name for name in MemorySettings.__struct_fields__ if name != "half_life_by_type")
    return StoreSettings(memory=MemorySettings(**{name: getattr(settings, f"memory_{name}") for name in names}))
