"""Retaining, forgetting, and recalling as agents do: what callers send, and what they are answered."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from kgserve.graph.answers import MAX_REPORTED_ITEMS
from kgserve.memory.api import (
    MAX_MEMORY_ENTITIES,
    MAX_QUESTION_CHARS,
    MAX_RECALL_BUDGET_TOKENS,
    MAX_RECALL_LIMIT,
    AssociatedEntity,
    Deduplicated,
    Expand,
    ExpiresIn,
    Id,
    Label,
    Metadata,
    RecallingQuery,
    RecallRequest,
    Share,
    Similar,
    Text,
    Time,
)
from kgserve.memory.entities_api import RelationInput
from kgserve.storage.model.fields import MAX_TAGS

MAX_CONVERSATION_MESSAGES = 1_000
MAX_FORGET_IDS = 1_000
CONVERSATION_ROLES = frozenset({"user", "assistant", "system", "tool", "developer", "function", "human", "ai", "model"})
"""Who speaks in conversations that know no names."""
MAX_REASON_CHARS = 512
RECALLED, RECALLED_TOKENS = 10, 2_000
"""Memories, and tokens of their contents, that an agent is told where it does not say how many."""

Action = Literal["create", "update", "merge", "link", "noop"]


class Message(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One turn of a conversation."""

    role: Annotated[Label, Meta(description="Who says it: user, assistant …, or a name")] = "user"
    content: Annotated[str, Meta(description="What is said; where nothing is, nothing is kept")]
    at: Annotated[Time, Meta(description="When (RFC 3339), not in the future; left out: now")] | None = None


class RetainRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to remember, and what it replaces."""

    content: Annotated[
        Annotated[str, Meta(min_length=1)]
        | Annotated[list[Message], Meta(min_length=1, max_length=MAX_CONVERSATION_MESSAGES)],
        Meta(description="Text, 1 byte to 1 MiB, or up to 1,000 messages, each of which is kept as an episode"),
    ]
    entity_id: (
        Annotated[Id, Meta(description="The memory that this is the present state of; made if need be")] | None
    ) = None
    supersedes: Annotated[Id, Meta(description="The memory that this takes the place of")] | None = None
    update: Annotated[
        Literal["auto", "correct", "never"],
        Meta(description="Of a memory that is there: keep what it said as a former version, overwrite it, or refuse"),
    ] = "auto"
    memory_type: Annotated[Label, Meta(description="Kind of memory; left out: fact, or episode")] | None = None
    layer: (
        Annotated[
            int,
            Meta(ge=0, le=3, description="0 domain, 1 concept, 2 fact, 3 episode; left out: 2, or 3 for messages"),
        ]
        | None
    ) = None
    parent: Annotated[Text, Meta(description="Id of the memory that it stands below")] | None = None
    tags: Annotated[list[Label], Meta(max_length=MAX_TAGS, description="At most 100")] | None = None
    entities: Annotated[
        list[AssociatedEntity],
        Meta(max_length=MAX_MEMORY_ENTITIES, description="Whom or what it is about; made if need be"),
    ] = []
    relations: Annotated[
        list[RelationInput], Meta(max_length=MAX_MEMORY_ENTITIES, description="Between entities, by name")
    ] = []
    confidence: Annotated[Share, Meta(description="How sure it is, 0 to 1; left out: 1")] | None = None
    importance: Annotated[Share, Meta(description="0 to 1; 1 pins it; left out: 0.5")] | None = None
    source: (
        Annotated[
            Text,
            Meta(description="Where it is from; of messages the conversation, so that it can be sent again"),
        ]
        | None
    ) = None
    first: Annotated[int, Meta(ge=0, lt=1 << 31, description="The place of the first message in its conversation")] = 0
    context: Annotated[str, Meta(description="What it was met in, at most 64 KiB")] | None = None
    metadata: Annotated[Metadata, Meta(description="Any JSON object, at most 256 KiB")] | None = None
    valid_from: (
        Annotated[Time, Meta(description="True from then on (RFC 3339); left out: now, of what is new unknown")] | None
    ) = None
    valid_to: Annotated[Time, Meta(description="True until then (RFC 3339)")] | None = None
    expires_in: ExpiresIn = None
    created_at: Annotated[Time, Meta(description="When it came to be (RFC 3339); left out: now")] | None = None
    dedup: Deduplicated = None
    extract: (
        Annotated[
            bool,
            Meta(
                description="Whether a language model takes facts out of it; kept in its metadata; left out: as the "
                "store's settings say"
            ),
        ]
        | None
    ) = None


class RetainOperation(msgspec.Struct, kw_only=True):
    """One thing that was done. ``version_id`` is the memory's version that says it, null where there is none."""

    type: Action
    memory_id: str
    version_id: str | None
    content: Annotated[str, Meta(description="The text, at most 200 characters of it, or what is linked")]
    reason: str


class RetainAnswer(msgspec.Struct, kw_only=True):
    """What became of it. ``near_checked`` is false where meaning could not be compared.

    ``extracting``, where a language model is set or was asked for: whether it is to be given what is new.
    """

    operations: list[RetainOperation]
    similar: Annotated[list[Similar], Meta(description="What is near and was not merged, nearest first")]
    sequence: int
    near_checked: bool
    extracting: bool | UnsetType = UNSET


class RetainBatchRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to remember in one commit, each as if it came after those before it."""

    items: Annotated[
        list[RetainRequest],
        Meta(min_length=1, max_length=MAX_CONVERSATION_MESSAGES, description="At most 1,000 texts and messages in all"),
    ]


class Retained(msgspec.Struct, kw_only=True):
    """What became of one of several; what only a later one has made of it is told there."""

    operations: list[RetainOperation]
    similar: Annotated[list[Similar], Meta(description="What is near and was not merged, nearest first")]


class RetainedBatch(msgspec.Struct, kw_only=True):
    """What became of each, in the order in which they were sent."""

    results: list[Retained]
    sequence: int
    near_checked: Annotated[bool, Meta(description="Whether meaning was compared, of what names no memory")]


class ForgetRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to forget: one of ``entity_id``, ``ids`` and ``query``."""

    entity_id: Annotated[Id, Meta(description="A memory, with its former versions")] | None = None
    ids: (
        Annotated[list[Id], Meta(min_length=1, max_length=MAX_FORGET_IDS, description="At most 1,000 memories")] | None
    ) = None
    query: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=10_000,
                description="Forgets nothing: lists what fits, to be confirmed by its ids",
            ),
        ]
        | None
    ) = None
    reason: Annotated[str, Meta(max_length=MAX_REASON_CHARS, description="Why; kept with what is forgotten")] = ""
    hard: Annotated[bool, Meta(description="Delete it, which cannot be undone")] = False
    erase: Annotated[
        bool,
        Meta(
            description="Leave nothing of it in any file of the store, nor of its past; for the role admin. It takes "
            "seconds, and the answer comes when it is done"
        ),
    ] = False
    undo: Annotated[bool, Meta(description="Bring back what was forgotten")] = False
    dry_run: Annotated[bool, Meta(description="Say what would be done, and do nothing")] = False


class ForgetMatch(msgspec.Struct, kw_only=True):
    """A memory that fits a query."""

    id: str
    content: Annotated[str, Meta(description="At most 200 characters of it")]
    memory_type: str
    score: float


class Remainder(msgspec.Struct, kw_only=True):
    """Where something of what was erased may still be."""

    kind: Annotated[
        Literal["backup", "file", "node", "log", "unknown"],
        Meta(
            description="A backup of this server, a file of the store, nodes of the cluster, the servers of its "
            "log, or what nobody can know"
        ),
    ]
    name: Annotated[str, Meta(description="Below the folder of backups, or that of the store")]
    reason: str


class ForgetAnswer(msgspec.Struct, kw_only=True):
    """What was forgotten, or with ``undo`` brought back, or with ``dry_run`` would be; former versions count."""

    memories_removed: int
    relations_removed: int
    memories_restored: int
    relations_restored: int
    ids: Annotated[list[str], Meta(description=f"The first {MAX_REPORTED_ITEMS}")]
    matches: Annotated[list[ForgetMatch], Meta(description="What fits a query; send their ids to forget them")]
    dry_run: bool
    sequence: int
    remains: Annotated[
        list[Remainder], Meta(description="With `erase`: what may still have it, for this cannot reach that")
    ] = []


# The words stand outside: those of an alternative within are not shown of a query's parameter.
_Limit = Annotated[Annotated[int, Meta(ge=1, le=MAX_RECALL_LIMIT)] | None, Meta(description="Most hits")]
_Budget = Annotated[
    Annotated[int, Meta(ge=1, le=MAX_RECALL_BUDGET_TOKENS)] | None,
    Meta(description="Most tokens of all contents, by estimate"),
]


_Question = Annotated[
    Annotated[str, Meta(min_length=1, max_length=MAX_QUESTION_CHARS)] | None,
    Meta(description="What to look for, in plain words: `q`, or `query`"),
]


class AgentRecallRequest(RecallRequest, kw_only=True):
    """What to recall. What is left out is as an agent needs it."""

    limit: _Limit = RECALLED
    expand: Expand = True
    budget: _Budget = RECALLED_TOKENS


class AgentRecallQuery(RecallingQuery, kw_only=True):
    """The same as a query, in which `query` is another name for `q`. Lists are given by repeating the parameter."""

    query: _Question = field(name="q", default=None)
    same_query: _Question = field(name="query", default=None)
    limit: _Limit = RECALLED
    expand: Expand = True
    budget: _Budget = RECALLED_TOKENS
