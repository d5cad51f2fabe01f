"""Requests and answers of retain, forget, and the recall endpoint for agents."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from kgserve.graph.answers import MAX_REPORTED_ITEMS
from kgserve.memory.entity_models import RelationInput
from kgserve.memory.memory_models import (
    MAX_MEMORY_ENTITIES,
    MAX_QUESTION_CHARS,
    MAX_RECALL_BUDGET_TOKENS,
    MAX_RECALL_LIMIT,
    DedupField,
    ExpandField,
    ExpiresInField,
    LabelText,
    MemoryEntityInput,
    MetadataObject,
    NodeIdText,
    RecallOptionsQuery,
    RecallRequest,
    ShortText,
    SimilarMemory,
    TimestampText,
    UnitFloat,
)
from kgserve.storage.model.node_edge_fields import MAX_ID_BYTES, MAX_TAGS

MAX_CONVERSATION_MESSAGES = 1_000
MAX_FORGET_IDS = 1_000
CONVERSATION_ROLES = frozenset({"user", "assistant", "system", "tool", "developer", "function", "human", "ai", "model"})
"""Generic roles of conversations; any other role is treated as a speaker's name."""
MAX_REASON_CHARS = 512
DEFAULT_AGENT_RECALL_LIMIT, DEFAULT_AGENT_RECALL_BUDGET_TOKENS = 10, 2_000
"""Default number of memories, and of tokens of their contents, that an agent's recall returns."""

RetainAction = Literal["create", "update", "merge", "link", "noop"]


class ConversationMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One turn of a conversation."""

    role: Annotated[LabelText, Meta(description="Speaker: user, assistant …, or a name")] = "user"
    content: Annotated[str, Meta(description="Text of the message; blank messages are not stored")]
    at: (
        Annotated[TimestampText, Meta(description="Time of the message (RFC 3339), not in the future; default: now")]
        | None
    ) = None


class RetainTextRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A text or conversation to remember, and the memory that it replaces."""

    content: Annotated[
        Annotated[str, Meta(min_length=1)]
        | Annotated[list[ConversationMessage], Meta(min_length=1, max_length=MAX_CONVERSATION_MESSAGES)],
        Meta(description="Text, 1 byte to 1 MiB, or up to 1,000 messages, each stored as an episode"),
    ]
    entity_id: (
        Annotated[NodeIdText, Meta(description="Id of the memory whose current state this is; created if missing")]
        | None
    ) = None
    supersedes: Annotated[NodeIdText, Meta(description="Id of the memory that this replaces")] | None = None
    update: Annotated[
        Literal["auto", "correct", "never"],
        Meta(description="For an existing memory: auto archives its old text, correct overwrites it, never refuses"),
    ] = "auto"
    memory_type: Annotated[LabelText, Meta(description="Kind of memory; default: fact, or episode")] | None = None
    layer: (
        Annotated[
            int,
            Meta(ge=0, le=3, description="0 domain, 1 concept, 2 fact, 3 episode; default: 2, or 3 for messages"),
        ]
        | None
    ) = None
    parent: Annotated[ShortText, Meta(description="Id of the parent memory")] | None = None
    tags: Annotated[list[LabelText], Meta(max_length=MAX_TAGS, description="At most 100")] | None = None
    entities: Annotated[
        list[MemoryEntityInput],
        Meta(max_length=MAX_MEMORY_ENTITIES, description="Entities that it is about; created if missing"),
    ] = []
    relations: Annotated[
        list[RelationInput], Meta(max_length=MAX_MEMORY_ENTITIES, description="Relations between entities, by name")
    ] = []
    confidence: Annotated[UnitFloat, Meta(description="Confidence, 0 to 1; default: 1")] | None = None
    importance: Annotated[UnitFloat, Meta(description="0 to 1; 1 pins it; default: 0.5")] | None = None
    source: (
        Annotated[
            ShortText,
            Meta(description="Origin; for messages the conversation's id, which makes resending safe"),
        ]
        | None
    ) = None
    first: Annotated[int, Meta(ge=0, lt=1 << 31, description="Position of the first message in its conversation")] = 0
    context: Annotated[str, Meta(description="Surrounding context, at most 64 KiB")] | None = None
    metadata: Annotated[MetadataObject, Meta(description="Any JSON object, at most 256 KiB")] | None = None
    valid_from: (
        Annotated[
            TimestampText,
            Meta(description="True from then on (RFC 3339); default: now for an update, unknown for a new memory"),
        ]
        | None
    ) = None
    valid_to: Annotated[TimestampText, Meta(description="True until then, exclusive (RFC 3339)")] | None = None
    expires_in: ExpiresInField = None
    created_at: Annotated[TimestampText, Meta(description="Creation time (RFC 3339); default: now")] | None = None
    dedup: DedupField = None
    extract: (
        Annotated[
            bool,
            Meta(
                description="Extract facts from it with a language model; stored in its metadata; default: the "
                "store's setting"
            ),
        ]
        | None
    ) = None


class RetainMemoryOutcome(msgspec.Struct, kw_only=True):
    """One operation on a memory; `version_id` is the version that states it, or null."""

    type: RetainAction
    memory_id: str
    version_id: str | None
    content: Annotated[str, Meta(description="First 200 characters of the text, or the link")]
    reason: str


class RetainAnswer(msgspec.Struct, kw_only=True):
    """Result of retaining; `near_checked` is false if vectors could not be compared.

    `extracting` is present if a language model is configured or was requested: true if it will process the new text.
    """

    operations: list[RetainMemoryOutcome]
    similar: Annotated[list[SimilarMemory], Meta(description="Near memories that were not merged, nearest first")]
    sequence: int
    near_checked: bool
    extracting: bool | UnsetType = UNSET


class RetainBatchRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Items to retain in one commit, each after the ones before it."""

    items: Annotated[
        list[RetainTextRequest],
        Meta(min_length=1, max_length=MAX_CONVERSATION_MESSAGES, description="At most 1,000 texts and messages in all"),
    ]


class RetainItemResult(msgspec.Struct, kw_only=True):
    """Result of one item; effects of later items are reported with those items."""

    operations: list[RetainMemoryOutcome]
    similar: Annotated[list[SimilarMemory], Meta(description="Near memories that were not merged, nearest first")]


class RetainBatchAnswer(msgspec.Struct, kw_only=True):
    """Results of the items, in the order of the request."""

    results: list[RetainItemResult]
    sequence: int
    near_checked: Annotated[bool, Meta(description="True if items that name no memory were compared by vectors")]


class ForgetRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Request to forget exactly one of `entity_id`, `ids`, `query` and `entity`."""

    entity_id: (
        Annotated[NodeIdText, Meta(description="Id of a memory; its former versions are forgotten too")] | None
    ) = None
    ids: (
        Annotated[list[NodeIdText], Meta(min_length=1, max_length=MAX_FORGET_IDS, description="At most 1,000 memories")]
        | None
    ) = None
    query: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=10_000,
                description="Lists matching memories without forgetting any; confirm with `ids`",
            ),
        ]
        | None
    ) = None
    entity: (
        Annotated[
            NodeIdText,
            Meta(
                description="Name or id of a person or other entity: forgets it, its aliases, the memories about it "
                "and those that name it"
            ),
        ]
        | None
    ) = None

    reason: Annotated[
        str, Meta(max_length=MAX_REASON_CHARS, description="Reason, stored with the forgotten memories")
    ] = ""
    hard: Annotated[bool, Meta(description="Delete permanently")] = False
    erase: Annotated[
        bool,
        Meta(
            description="Erase it from every file of the store, history included; requires the role admin and takes "
            "seconds"
        ),
    ] = False
    undo: Annotated[bool, Meta(description="Restore forgotten or pruned memories")] = False
    dry_run: Annotated[bool, Meta(description="Report the effect without writing")] = False
    keep_shared: Annotated[
        bool, Meta(description="With `entity`: keep memories that are also about others, even if they name it")
    ] = False
    confirm: Annotated[
        str, Meta(max_length=MAX_ID_BYTES, description="With `entity` and `erase`: the entity, repeated")
    ] = ""


class ForgetQueryMatch(msgspec.Struct, kw_only=True):
    """A memory that matches a query."""

    id: str
    content: Annotated[str, Meta(description="Its first 200 characters")]
    memory_type: str
    score: float


class MemoryForgottenWithEntity(msgspec.Struct, kw_only=True):
    """A memory that would be forgotten with an entity."""

    id: str
    content: Annotated[str, Meta(description="Its first 200 characters")]
    also_about: Annotated[list[str], Meta(description="Names of the other entities that it is about")]


class ItemKeptAfterForgetting(msgspec.Struct, kw_only=True):
    """Something that stays although it names a forgotten entity, or was about it."""

    id: str
    kind: Literal["memory", "node", "edge"]
    content: Annotated[str, Meta(description="Its first 200 characters")]
    reason: Annotated[str, Meta(description="Why it was kept")]


class UnrestoredItem(msgspec.Struct, kw_only=True):
    """Something that undo did not restore."""

    id: str
    kind: Literal["memory", "node", "edge"]
    reason: Annotated[str, Meta(description="Why it was not restored")]


class UnerasedDataLocation(msgspec.Struct, kw_only=True):
    """A place that may still hold erased data."""

    kind: Annotated[
        Literal["backup", "file", "node", "log", "unknown"],
        Meta(
            description="A backup of this server, a file of the store, cluster nodes, the log servers, or an unknown "
            "place"
        ),
    ]
    name: Annotated[str, Meta(description="Path relative to the folder of backups or of the store")]
    reason: str


class ForgetAnswer(msgspec.Struct, kw_only=True):
    """Counts of forgotten, restored (`undo`) or affected (`dry_run`) memories, former versions included."""

    memories_removed: int
    relations_removed: int
    memories_restored: int
    relations_restored: int
    ids: Annotated[list[str], Meta(description=f"The first {MAX_REPORTED_ITEMS}")]
    matches: Annotated[
        list[ForgetQueryMatch], Meta(description="Memories that match the query; send their ids to forget them")
    ]
    dry_run: bool
    sequence: int
    remains: Annotated[
        list[UnerasedDataLocation],
        Meta(description="With `erase`: places that it cannot reach and that may still hold the data"),
    ] = []
    entities_removed: (
        Annotated[list[str], Meta(description="With `entity`: its id, and those of entities merged into it")]
        | UnsetType
    ) = UNSET
    memories_shared: (
        Annotated[int, Meta(description="With `entity`: how many of the memories were also about others")] | UnsetType
    ) = UNSET
    kept: (
        Annotated[
            list[ItemKeptAfterForgetting],
            Meta(description="With `entity`: the first 100 that name it, or were about it, and stay"),
        ]
        | UnsetType
    ) = UNSET
    not_restored: (
        Annotated[list[UnrestoredItem], Meta(description="With `undo`: the first 100 that it did not restore")]
        | UnsetType
    ) = UNSET
    kept_count: Annotated[int, Meta(description="With `entity`: how many stay")] | UnsetType = UNSET
    preview: (
        Annotated[
            list[MemoryForgottenWithEntity],
            Meta(description="With `entity` and `dry_run`: the first 100 memories to forget"),
        ]
        | UnsetType
    ) = UNSET


# The description is on the outer type: OpenAPI drops descriptions of union members of query parameters.
_Limit = Annotated[Annotated[int, Meta(ge=1, le=MAX_RECALL_LIMIT)] | None, Meta(description="Maximum number of hits")]
_Budget = Annotated[
    Annotated[int, Meta(ge=1, le=MAX_RECALL_BUDGET_TOKENS)] | None,
    Meta(description="Maximum estimated tokens of all contents"),
]


_Question = Annotated[
    Annotated[str, Meta(min_length=1, max_length=MAX_QUESTION_CHARS)] | None,
    Meta(description="Question or keywords, in plain language: `q`, or `query`"),
]


class AgentRecallRequest(RecallRequest, kw_only=True):
    """Recall request with defaults for agents."""

    limit: _Limit = DEFAULT_AGENT_RECALL_LIMIT
    expand: ExpandField = True
    budget: _Budget = DEFAULT_AGENT_RECALL_BUDGET_TOKENS


class AgentRecallQuery(RecallOptionsQuery, kw_only=True):
    """Recall query string with defaults for agents; `query` is an alias of `q`. Lists repeat the parameter."""

    query: _Question = field(name="q", default=None)
    same_query: _Question = field(name="query", default=None)
    limit: _Limit = DEFAULT_AGENT_RECALL_LIMIT
    expand: ExpandField = True
    budget: _Budget = DEFAULT_AGENT_RECALL_BUDGET_TOKENS
