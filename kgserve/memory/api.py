"""Memories: what callers send about them, and the answers; those of entities are in `memory.entities_api`.

A memory is a node with a confidence. It is answered flat: ``memory_type`` is the node's type, ``metadata`` its
attributes. Times are RFC 3339 in UTC with microseconds; confidence, importance and relevance are 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from kgserve.graph.requests import VALID_AT_HELP, Also, AsOf, AsOfText, SearchMode
from kgserve.platform.settings import Dedup, Pruning
from kgserve.storage.model.attributes import ATTRIBUTES_DESCRIPTION, MAX_ATTRIBUTES_TEXT, Wanted
from kgserve.storage.model.fields import MAX_ID_BYTES, MAX_TAGS

MAX_BATCH_ITEMS = 1_000
MAX_PAGE_MEMORIES = 1_000
MAX_RECALL_LIMIT = 100
MAX_PAGE_OFFSET = 10_000
MAX_MEMORY_ENTITIES = 100
"""Entities that one memory may be stored with."""
MAX_REPORTED_ITEMS = 100
"""Ids that an answer names of those that it counts."""
MAX_SIMILAR_MEMORIES = 5
MIN_REPORTED_SIMILARITY = 0.8
"""Cosine from which on a memory that was not merged is told of, at most `MAX_SIMILAR_MEMORIES`."""

DEFAULT_MEMORY_TYPE = "observation"
DOMAIN_LAYER = 0
CONCEPT_LAYER = 1
FACT_LAYER = 2
EPISODE_LAYER = 3
"""The layer of what happened: the same words twice are two events."""
LAYER_TYPES = ("domain", "concept", "fact", "episode")
"""The type of a memory that comes with a layer and without a type, by its layer."""
UNKNOWN_ENTITY_TYPE = "unknown"
"""The type of an entity that nobody has said the type of."""
DEFAULT_IMPORTANCE = 0.5
PINNED_IMPORTANCE = 1.0
RESERVED_IDS = frozenset({"batch", "consolidate", "consolidations", "delete", "prune", "search"})
"""Paths, and so ids of neither memories nor entities."""

Ended = Literal["superseded", "merged", "forgotten", "pruned"]
Outcome = Literal["created", "duplicate", "merged"]
Differs = Literal["", "not", "numbers", "names", "words"]
"""What keeps two texts apart; nothing where they say the same, and layer, type or policy kept them apart."""

Share = Annotated[float, Meta(ge=0, le=1)]
Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
Label = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
Text = Annotated[str, Meta(max_length=MAX_ID_BYTES)]
Time = Annotated[str, Meta(max_length=64)]
Version = Annotated[int, Meta(ge=1, lt=1 << 53)]
Metadata = dict[str, Any]
_Tags = Annotated[list[Label], Meta(max_length=MAX_TAGS)]
_Labels = Annotated[list[Label], Meta(max_length=100)]
_CONTENT_HELP = "What to remember: text, 1 byte to 1 MiB"
_MEMORY_TYPE_HELP = (
    "Kind of memory: observation, decision, learning, error, pattern, preference, fact, procedure, or a word of your "
    "own; left out: observation, and with a layer domain, concept, fact or episode"
)
_CONFIDENCE_HELP = "How sure it is, 0 to 1; fades from created_at on, and rises when it is used"
_IMPORTANCE_HELP = "0 to 1; 1 pins it: it is never pruned or absorbed"
_LAYER_HELP = "0 domain, 1 concept, 2 fact, 3 episode, which is never merged"
_PARENT_HELP = "Id of the memory that it stands below, of the same layer or of a more general one"
_DRY_RUN_HELP = "Say what would be done, and do nothing"


EXPIRES_IN_PATTERN = r"^[1-9][0-9]{0,5}[smhdw](?![\s\S])"
"""Some seconds, minutes, hours, days or weeks."""
_EXPIRES_IN_HELP = "The same as a time from now, such as 30m, 12h, 7d or 2w; not beside valid_to"
ExpiresIn = Annotated[str, Meta(pattern=EXPIRES_IN_PATTERN, description=_EXPIRES_IN_HELP)] | None
Deduplicated = (
    Annotated[Dedup, Meta(description="What it may be merged into; left out: as the store's settings say")] | None
)


class AssociatedEntity(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Whom or what a memory is about, by name; who is not there is made."""

    name: Annotated[Label, Meta(description="Its name, an alias, or its id")]
    entity_type: Annotated[Label, Meta(description="Its type; unknown: any that has the name")] = UNKNOWN_ENTITY_TYPE
    relevance: Annotated[Share, Meta(description="How much the memory is about it, 0 to 1")] = 1.0


class StoreMemoryRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A memory to store."""

    content: Annotated[str, Meta(min_length=1, description=_CONTENT_HELP)]
    memory_type: Annotated[Label, Meta(description=_MEMORY_TYPE_HELP)] | None = None
    tags: Annotated[_Tags, Meta(description="At most 100 of 1 to 512 bytes")] = []
    confidence: Annotated[Share, Meta(description=_CONFIDENCE_HELP)] = 1.0
    source: Annotated[Text, Meta(description="Where it is from, such as a conversation")] | None = None
    context: Annotated[str, Meta(description="What it was met in, at most 64 KiB")] | None = None
    metadata: Annotated[Metadata, Meta(description="Any JSON object, at most 256 KiB and 64 levels")] = {}
    entity_names: Annotated[
        list[Label], Meta(max_length=MAX_MEMORY_ENTITIES, description="Whom or what it is about; made if need be")
    ] = []
    entities: Annotated[
        list[AssociatedEntity], Meta(max_length=MAX_MEMORY_ENTITIES, description="The same, with types and relevance")
    ] = []
    memory_id: (
        Annotated[Id, Meta(description="Its id; left out: a new one. A node that has it becomes a memory")] | None
    ) = field(default=None, name="id")
    importance: Annotated[Share, Meta(description=_IMPORTANCE_HELP)] = DEFAULT_IMPORTANCE
    layer: Annotated[int, Meta(ge=0, le=3, description=_LAYER_HELP)] | None = None
    parent_id: Annotated[Text, Meta(description=_PARENT_HELP)] | None = None
    valid_from: Annotated[Time, Meta(description="True in the world from then on (RFC 3339)")] | None = None
    valid_to: Annotated[Time, Meta(description="True in the world until then (RFC 3339)")] | None = None
    expires_in: ExpiresIn = None
    created_at: (
        Annotated[Time, Meta(description="When it came to be (RFC 3339), not in the future; left out: now")] | None
    ) = None
    dedup: Deduplicated = None
    dedup_threshold: (
        Annotated[
            Share,
            Meta(description="Cosine above which `similarity` merges; left out: as the store's settings say"),
        ]
        | None
    ) = None


class StoreMemoriesRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Memories to store in one commit, each as if it came after those before it."""

    memories: Annotated[
        list[StoreMemoryRequest], Meta(min_length=1, max_length=MAX_BATCH_ITEMS, description="At most 1,000")
    ]


class MemoryQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How to read one memory."""

    touch: Annotated[bool, Meta(description="Count it as a use, which raises its confidence")] = True


class MemoryRequest(MemoryQuery, kw_only=True):
    """One memory to read."""

    memory_id: str = field(name="id")


class MemoryId(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Names one memory."""

    memory_id: str = field(name="id")


class UpdateMemory(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to change in a memory. What is left out, or null, stays; an empty text, list or object clears."""

    content: Annotated[str, Meta(min_length=1, description=_CONTENT_HELP)] | None = None
    memory_type: Annotated[Label, Meta(description="Another kind of memory")] | None = None
    tags: Annotated[_Tags, Meta(description="Replaces all of them")] | None = None
    confidence: Annotated[Share, Meta(description="How sure it is now, 0 to 1; fades from now on")] | None = None
    source: Annotated[Text, Meta(description="Where it is from")] | None = None
    context: Annotated[str, Meta(description="What it was met in, at most 64 KiB")] | None = None
    metadata: Annotated[Metadata, Meta(description="Replaces all of it")] | None = None
    entity_names: (
        Annotated[
            list[Label],
            Meta(max_length=MAX_MEMORY_ENTITIES, description="Whom or what it is about; replaces all of them"),
        ]
        | None
    ) = None
    importance: Annotated[Share, Meta(description=_IMPORTANCE_HELP)] | None = None
    layer: Annotated[int, Meta(ge=0, le=3, description=_LAYER_HELP)] | None = None
    parent_id: Annotated[Text, Meta(description=f"{_PARENT_HELP}; empty: none")] | None = None
    valid_from: Annotated[Time, Meta(description="RFC 3339; empty: none")] | None = None
    valid_to: Annotated[Time, Meta(description="RFC 3339; empty: none")] | None = None
    based_on_version: (
        Annotated[Version, Meta(description="The version that was seen; another one now is a conflict")] | None
    ) = None


class UpdateMemoryRequest(UpdateMemory, kw_only=True):
    """A memory, and what to change in it."""

    memory_id: str = field(name="id")


class DeleteMemoriesRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which memories to delete: those that all filters let pass, of which there must be one that is not empty."""

    memory_ids: Annotated[list[Id], Meta(max_length=MAX_BATCH_ITEMS, description="Only these")] | None = None
    before_date: (
        Annotated[Time, Meta(description="Only those created before then: an RFC 3339 time or a day, in UTC")] | None
    ) = None
    min_confidence_below: (
        Annotated[Share, Meta(description="Only those whose confidence has faded below that")] | None
    ) = None
    memory_types: Annotated[_Labels, Meta(description="Only those of these types")] | None = None
    dry_run: Annotated[bool, Meta(description=_DRY_RUN_HELP)] = False


class WhichMemories(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which memories: those that all filters let pass.

    ``aliases`` are the names that the entity memory's specification gives to filters; REST takes either.
    """

    field_aliases: ClassVar[Mapping[str, str]] = {
        "memory_types": "types",
        "entity_id": "entity",
        "entity_name": "entity",
    }

    types: Annotated[_Labels, Meta(description="Of any of these types; also `memory_types`")] | None = None
    tags: Annotated[_Labels, Meta(description="With all of these tags")] | None = None
    min_confidence: Annotated[Share, Meta(description="Whose confidence has not faded below that")] | None = None
    after_date: (
        Annotated[Time, Meta(description="Created then or later: an RFC 3339 time, or a day, in UTC")] | None
    ) = None
    before_date: Annotated[Time, Meta(description="Created before then: an RFC 3339 time, or a day, in UTC")] | None = (
        None
    )
    entity: (
        Annotated[Label, Meta(description="About this entity: its id, name or alias; also `entity_id`, `entity_name`")]
        | None
    ) = None
    source: Annotated[Label, Meta(description="From this source")] | None = None
    layer: Annotated[int, Meta(ge=0, le=3, description="Of this layer")] | None = None
    under: Annotated[Id, Meta(description="Below this memory, at any depth: its id")] | None = None


Sorted = Literal["created", "updated", "confidence", "accessed"]


class MemoriesQuery(WhichMemories, kw_only=True):
    """The query of a list of memories. Lists do not count as uses."""

    metadata: (
        Annotated[str, Meta(max_length=MAX_ATTRIBUTES_TEXT, description=f"{ATTRIBUTES_DESCRIPTION}. A JSON object")]
        | None
    ) = None
    orphans: Annotated[
        bool, Meta(description="Only those below none, but for domains and concepts, layers 0 and 1")
    ] = False
    ended: (
        Annotated[
            Literal["superseded", "merged", "forgotten", "pruned", "any"],
            Meta(description="Those that were withdrawn so; any: all that there are; left out: none of them"),
        ]
        | None
    ) = None
    sort: Annotated[Sorted, Meta(description="Newest, or most, first")] = "created"
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_MEMORIES, description="Most memories on the page")] = 20
    offset: Annotated[
        int, Meta(ge=0, le=MAX_PAGE_OFFSET, description="Memories to pass over; with the first page only")
    ] = 0
    cursor: Annotated[str, Meta(description="`next_cursor` of the page before")] | None = None
    valid_at: Annotated[str, Meta(max_length=64, description=VALID_AT_HELP)] | None = None


MAX_QUESTION_CHARS = 10_000
_Query = Annotated[
    str, Meta(min_length=1, max_length=MAX_QUESTION_CHARS, description="What to look for, in plain words")
]


Expand = Annotated[
    bool,
    Meta(
        description="Also what stands beside the ten best: parent, children, siblings, what is related or about "
        "the same; what says the same is shown once"
    ),
]
MAX_RECALL_BUDGET_TOKENS = 1_000_000


class Recalling(WhichMemories, kw_only=True):
    """How to recall, but for the query."""

    mode: Annotated[SearchMode, Meta(description="By words, by meaning, by both, or from entity to entity")] = "hybrid"
    limit: Annotated[int, Meta(ge=1, le=MAX_RECALL_LIMIT, description="Most hits; left out: 20, or as set")] | None = (
        None
    )
    offset: Annotated[int, Meta(ge=0, le=MAX_PAGE_OFFSET, description="Hits to pass over")] = 0
    min_confidence: (
        Annotated[Share, Meta(description="Whose confidence has not faded below that; left out: 0.1, or as set")] | None
    ) = None
    min_similarity: (
        Annotated[
            float,
            Meta(
                ge=-1,
                le=1,
                description="Least cosine with the query, which in hybrid mode memories that share a word with it need "
                "not have; left out: 0.3 in hybrid and 0.5 in semantic mode, or as set",
            ),
        ]
        | None
    ) = None
    alpha: Annotated[Share, Meta(description="Weight of words against meaning; left out: 0.4, or as set")] | (
        None
    ) = None
    entity: (
        Annotated[Label, Meta(description="About this entity, by id, name or alias; in graph mode, from there")] | None
    ) = None
    depth: Annotated[int, Meta(ge=1, le=10, description="Hops from entity to entity, in graph mode")] = 2
    touch: Annotated[bool, Meta(description="Count the hits as used, which raises their confidence")] = True
    at_least: Annotated[int, Meta(ge=0, description="Wait for the indexes to see this sequence, up to 10 s")] | None = (
        None
    )
    explain: Annotated[bool, Meta(description="Say of each hit why it is one")] = False
    valid_at: Annotated[str, Meta(max_length=64, description=VALID_AT_HELP)] | None = None
    expand: Expand = False
    past: Annotated[
        Literal["hide", "show"],
        Meta(description="show: also what was superseded, with 0.7 of its score"),
    ] = "hide"
    budget: (
        Annotated[int, Meta(ge=1, le=MAX_RECALL_BUDGET_TOKENS, description="Most tokens of all contents, by estimate")]
        | None
    ) = None
    also: Also = None


class RecallRequest(Recalling, kw_only=True):
    """What to recall."""

    query: _Query
    metadata: Wanted | None = None
    as_of: AsOf | None = None


class RecallingQuery(Recalling, kw_only=True):
    """How to recall, as a query."""

    metadata: (
        Annotated[str, Meta(max_length=MAX_ATTRIBUTES_TEXT, description=f"{ATTRIBUTES_DESCRIPTION}. A JSON object")]
        | None
    ) = None
    as_of: AsOfText | None = None


class RecallQuery(RecallingQuery, kw_only=True):
    """What to recall, as a query. Lists are given by repeating the parameter."""

    field_aliases: ClassVar[Mapping[str, str]] = {**WhichMemories.field_aliases, "query": "q", "search_mode": "mode"}

    query: _Query = field(name="q")


class ApplyPlan(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The plan of a dry run."""

    plan: Annotated[int, Meta(ge=0, lt=1 << 53, description="`plan` of the dry run")]


class ConsolidateRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How to consolidate."""

    similarity_threshold: (
        Annotated[Share, Meta(description="Cosine that all of a cluster have with each other; left out: 0.85, or set")]
        | None
    ) = None
    dry_run: Annotated[bool, Meta(description="Say what would be merged, and merge nothing")] = False
    guard: (
        Annotated[
            bool,
            Meta(
                description="Keep apart what differs in numbers, names, negations, opposites or things; left out: as "
                "the store's setting `consolidation_guard` says, at first true"
            ),
        ]
        | None
    ) = None
    types: Annotated[_Labels, Meta(description="Only memories of these types")] | None = None
    apply: (
        Annotated[
            ApplyPlan,
            Meta(description="Do exactly what a dry run has told, asked for as it was, or it is a conflict"),
        ]
        | None
    ) = None


class UndoConsolidation(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How to undo."""

    force: Annotated[bool, Meta(description="Also where a memory was changed since")] = False


class UndoConsolidationRequest(UndoConsolidation, kw_only=True):
    """A run of consolidation to undo."""

    run_id: str = field(name="id")


class ConsolidationsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of the runs of consolidation."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_MEMORIES, description="Most runs, newest first")] = 20


class PruneMemoriesRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How to prune."""

    dry_run: Annotated[bool, Meta(description=_DRY_RUN_HELP)] = False


class MemoryEntity(msgspec.Struct, kw_only=True):
    """Whom or what a memory is about, and how much, 0 to 1."""

    id: str
    name: str
    entity_type: str
    relevance: float


class Memory(msgspec.Struct, kw_only=True):
    """A memory.

    ``confidence`` was so at ``last_accessed_at``, or when it was written; ``effective_confidence`` is what is left of
    it for this answer. Both have changed by the next read if this one counts as a use.

    What comes after ``version`` is absent where it does not apply: the memory that it stands below, of ``ended``
    memories, why they were withdrawn, and which one they ``belong to``.
    """

    id: str
    content: str
    memory_type: str
    tags: list[str]
    confidence: float
    effective_confidence: float
    importance: float
    source: str | None
    context: str | None
    metadata: Metadata
    entities: list[MemoryEntity]
    access_count: int
    last_accessed_at: str | None
    created_at: str
    updated_at: str
    version: int
    layer: int | UnsetType = UNSET
    parent_id: str | UnsetType = UNSET
    valid_from: str | UnsetType = UNSET
    valid_to: str | UnsetType = UNSET
    ended: Ended | UnsetType = UNSET
    belongs_to: str | UnsetType = UNSET


class Similar(msgspec.Struct, kw_only=True):
    """A memory that is near a new one and was not merged with it: in what they differ, and how near they are."""

    id: str
    similarity: Annotated[float, Meta(description="Cosine")]
    differs: Differs
    content: Annotated[str, Meta(description="Its first 200 characters")]


class StoredMemory(Memory, kw_only=True):
    """The memory that holds what was sent: a new one, or the one that it met.

    ``outcome`` is `created`; `duplicate` when it said the same; `merged` when the wording was another.
    """

    outcome: Outcome
    similar: Annotated[list[Similar], Meta(description="At most five from a cosine of 0.8 on, nearest first")]
    near_checked: Annotated[bool, Meta(description="False: there was no vector to compare by")]
    sequence: Annotated[int, Meta(description="The store's commit number once this write is in it")]


class UpdatedMemory(Memory, kw_only=True):
    """The memory as it is after a change."""

    sequence: Annotated[int, Meta(description="The store's commit number once this write is in it")]


class StoredInBatch(msgspec.Struct, kw_only=True):
    """What became of one memory of a batch: ``id`` is the memory that holds it."""

    id: str
    outcome: Outcome
    similar: list[Similar]


class StoredMemories(msgspec.Struct, kw_only=True):
    """What became of each memory, in the order in which they were sent."""

    results: list[StoredInBatch]
    created: int
    duplicates: int
    merged: int
    near_checked: bool
    sequence: int


class MemoryDeleted(msgspec.Struct, kw_only=True):
    """What deleting one memory did. Entities that it was about stay."""

    ok: Literal[True] = True
    deleted_id: str
    existed: bool
    sequence: int


class MemoriesDeleted(msgspec.Struct, kw_only=True):
    """What a deletion did, or with ``dry_run`` would do, in one commit. Entities that they were about stay."""

    ok: Literal[True] = True
    dry_run: bool
    count: Annotated[int, Meta(description="Memories deleted, or to be deleted")]
    ids: Annotated[list[str], Meta(description="The first 100 of them")]
    missing: Annotated[list[str], Meta(description="Ids that were sent and are no memories that fit")]
    more: Annotated[bool, Meta(description="More fit than are deleted at once; send it again")]
    sequence: int


class DeletedEntity(msgspec.Struct, frozen=True, kw_only=True):
    """An entity that is no longer there, though memories about it are."""

    id: str
    name: str
    entity_type: str
    deleted_at: str
    sequence: Annotated[int, Meta(description="The commit that deleted it")]


Deleted = Annotated[
    DeletedEntity, Meta(description="The entity that was asked for, if it was deleted: the memories were about it")
]


class MemoryPage(msgspec.Struct, kw_only=True):
    """One page of memories; ``next_cursor`` is null on the last one."""

    memories: list[Memory]
    next_cursor: str | None
    deleted_entity: Deleted | UnsetType = UNSET


class RecalledMemory(Memory, kw_only=True):
    """A memory that was found. Scores are absent where that part did not find it; ``hops`` is of graph mode.

    ``via`` is the memory beside which it stands, as many ``hops`` away, that gave to its score: a turn near it in a
    conversation, or anything with ``expand``; ``relation`` says what the hit is to it.
    """

    score: Annotated[float, Meta(description="What it is sorted by, effective confidence included")]
    keyword_score: float | UnsetType = UNSET
    semantic_score: float | UnsetType = UNSET
    hops: int | UnsetType = UNSET
    via: Annotated[str, Meta(description="The hit that gave to its score")] | UnsetType = UNSET
    relation: (
        Annotated[
            str,
            Meta(
                description="With `via`, what this is to that hit: parent, child, sibling, entity (both are about the "
                "same), or the type of the relationship"
            ),
        ]
        | UnsetType
    ) = UNSET
    said: Annotated[int, Meta(description="How many of those found say this, if several do")] | UnsetType = UNSET
    why: str | UnsetType = UNSET
    store: Annotated[str, Meta(description="With `also`, where it is")] | UnsetType = UNSET


class RecallAnswer(msgspec.Struct, kw_only=True):
    """What was recalled, best first. ``degraded``: meaning is judged by words and letters alone."""

    hits: list[RecalledMemory]
    withheld: Annotated[
        dict[str, int],
        Meta(
            description="Memories that match and were left out, by why: below_confidence, superseded, merged, "
            "forgotten, pruned, not_valid, over_budget"
        ),
    ]
    degraded: bool
    index_sequence: Annotated[int, Meta(description="The commit that the indexes have seen")]
    took_ms: float
    deleted_entity: Deleted | UnsetType = UNSET


class Cluster(msgspec.Struct, kw_only=True):
    """Memories that are, or would be, one: ``absorbed`` go into ``primary``, which then has the ``content``."""

    primary: str
    absorbed: list[str]
    similarity: Annotated[float, Meta(description="The least cosine between two; 1 for equal wording")]
    content: str
    tags: list[str]
    reason: Annotated[str, Meta(description="Why it is left; empty for one that is not")] = ""


class Suggestion(msgspec.Struct, frozen=True):
    """Memories that are near, and were left to a person."""

    ids: list[str]
    similarity: float


class KeptApart(msgspec.Struct, kw_only=True):
    """Two memories that are near in meaning and that the guard kept apart, with what they differ in."""

    ids: list[str]
    similarity: float
    differs: str


class ConsolidationReport(msgspec.Struct, kw_only=True):
    """What a consolidation did, or would do.

    ``plan`` of a dry run can be applied as it is. ``run`` can be undone; it is null where nothing was merged. Without
    vectors (``near_checked``) only the wording counts.
    """

    dry_run: bool
    run: str | None
    plan: Annotated[int, Meta(description="The commit that it was computed from")]
    threshold: float
    clusters_found: int
    memories_merged: Annotated[int, Meta(description="Memories that were merged into others")]
    memories_deleted: Annotated[int, Meta(description="Memories that were absorbed: withdrawn, not erased")]
    clusters: Annotated[list[Cluster], Meta(description="The first 100")]
    kept_apart: Annotated[
        list[KeptApart], Meta(description="Near pairs that the guard kept apart, nearest first; the first 100")
    ]
    kept_apart_count: int
    left: Annotated[list[Cluster], Meta(description="Found and not merged, each with its reason; the first 100")]
    near_checked: bool
    sequence: int
    took_ms: float


class ConsolidationRun(msgspec.Struct, kw_only=True):
    """A run of consolidation. ``state``: whether it came to its end, or was undone."""

    id: str
    started_at: str
    trigger: Literal["manual", "automatic"]
    state: Literal["running", "done", "interrupted", "undone"]
    threshold: float
    guard: bool
    clusters: int
    merged: int
    deleted: int
    suggestions: Annotated[list[Suggestion], Meta(description="Near in meaning, and left to a person")]


class ConsolidationRuns(msgspec.Struct, kw_only=True):
    """Runs of consolidation, newest first."""

    runs: list[ConsolidationRun]


class ConsolidationUndone(msgspec.Struct, kw_only=True):
    """What undoing a run brought back; ``skipped`` had been changed since and are as they are, or are gone."""

    run: str
    restored: Annotated[list[str], Meta(description="Memories that are back, the first 100")]
    restored_count: int
    skipped: list[str]
    sequence: int


class PruneReport(msgspec.Struct, kw_only=True):
    """What pruning withdrew or deleted, or with ``dry_run`` would. ``kept`` are those below the threshold that stay."""

    dry_run: bool
    mode: Pruning
    threshold: float
    count: int
    ids: Annotated[list[str], Meta(description="The first 100")]
    kept: Annotated[dict[str, int], Meta(description="By why: pinned, layer, parent, recent")]
    sequence: int
