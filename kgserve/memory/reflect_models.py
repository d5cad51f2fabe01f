"""Requests, answers and stored records of reflection on memories.

A *run* is a node that records proposals and their outcome. An edge from it to each memory that it placed or created
records how to undo that.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kgserve.graph.answers import MAX_REPORTED_ITEMS
from kgserve.memory.memory_models import Memory, NodeIdText, RecalledMemory, UnitFloat
from kgserve.platform.codecs import json_decoder
from kgserve.platform.timestamps import parse_stored_time
from kgserve.storage.model.write_batch import KIND_REFLECTION

CONTRADICTS = "contradicts"
MAX_REFLECTED_MEMORIES = 10_000
MAX_PROPOSALS = 100
MAX_PROPOSED_MEMORIES = 4_000
"""Maximum number of memories in the proposals of one run."""
MAX_CONCEPT_NAME_CHARS = 200

ProposalKind = Literal["link", "concept", "contradiction"]
ProposalState = Literal["open", "accepted", "refused"]
_Numbers = Annotated[list[Annotated[int, Meta(ge=1, le=MAX_PROPOSALS)]], Meta(max_length=MAX_PROPOSALS)]
_DRY_RUN_REFLECT_HELP = "Report the placements and proposals without writing"
_PROPOSAL_NAMES_HELP = (
    "By the number of a proposal: for a concept its name; for a link the id of the parent, if it is not the first "
    "candidate"
)


class OrganizeMemoriesRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A reflection to run, proposals of a run to accept or refuse, or a run to undo."""

    query: (
        Annotated[str, Meta(min_length=1, max_length=10_000, description="Only memories nearest to this text")] | None
    ) = None
    under: Annotated[NodeIdText, Meta(description="Only use concepts below this memory: its id")] | None = None
    limit: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_REFLECTED_MEMORIES,
            description="Maximum number of memories without a parent to examine, newest first",
        ),
    ] = 1_000
    threshold: Annotated[
        UnitFloat, Meta(description="Minimum score, a probability, at which a memory is placed below a concept")
    ] = 0.6
    cluster_threshold: Annotated[UnitFloat, Meta(description="Minimum cosine within the cluster of a new concept")] = (
        0.7
    )
    dry_run: Annotated[bool, Meta(description=_DRY_RUN_REFLECT_HELP)] = False
    run: (
        Annotated[
            NodeIdText, Meta(description="Run whose proposals are meant, or which to undo; default: the last run")
        ]
        | None
    ) = None
    accept: Annotated[_Numbers, Meta(description="Proposals to carry out, by number")] = []
    refuse: Annotated[_Numbers, Meta(description="Proposals not to repeat, by number")] = []
    names: (
        Annotated[
            dict[str, Annotated[str, Meta(min_length=1, max_length=512)]],
            Meta(max_length=MAX_PROPOSALS, description=_PROPOSAL_NAMES_HELP),
        ]
        | None
    ) = None
    undo: Annotated[bool, Meta(description="Undo the run, including its accepted proposals")] = False
    answer: Annotated[bool, Meta(description="Only answer `query`; needs a language model")] = False


class ParentConceptCandidate(msgspec.Struct, kw_only=True):
    """A concept that a memory may belong to; the score is the estimated probability, 0 to 1."""

    id: str
    score: float


class ReflectionProposal(msgspec.Struct, kw_only=True):
    """Proposal of a reflection run, numbered, for the caller to accept or refuse.

    ``link``: the memory in ``ids`` belongs below one of ``candidates``. ``concept``: all of ``ids`` belong below a new
    concept; ``name`` is a suggestion. ``contradiction``: the first of ``ids``, the younger, contradicts the second;
    ``differs`` says in what.
    """

    number: int
    kind: ProposalKind
    ids: list[str]
    candidates: list[ParentConceptCandidate] = []
    name: str = ""
    differs: str = ""
    state: ProposalState = "open"
    reason: Annotated[str | UnsetType, Meta(description="Comment of the language model, if one is configured")] = UNSET

    @property
    def key(self) -> str:
        """Key that is equal for the same proposal of another run."""
        return f"{self.kind} {' '.join(sorted(self.ids))}"


class MemoryParentPlacement(msgspec.Struct, kw_only=True):
    """A memory that was placed below a parent."""

    id: str
    parent_id: str
    score: float


class OrganizeMemoriesAnswer(msgspec.Struct, kw_only=True):
    """Result of a reflection. The run is null if nothing was written."""

    dry_run: bool
    run: str | None
    looked_at: Annotated[int, Meta(description="Memories without a parent that were examined")]
    merged: Annotated[int, Meta(description="Memories absorbed by one that says the same")]
    linked: Annotated[list[MemoryParentPlacement], Meta(description=f"The first {MAX_REPORTED_ITEMS}")]
    linked_count: int
    proposals: Annotated[list[ReflectionProposal], Meta(description="By number; those to accept are `open`")]
    proposals_count: Annotated[int, Meta(description="Total number; a later run reports the rest")]
    stale: Annotated[
        list[str], Meta(description=f"Memories with low effective confidence; the first {MAX_REPORTED_ITEMS}")
    ]
    stale_count: int
    undone: Annotated[int, Meta(description="Placements, creations and merges that were undone")]
    skipped: Annotated[list[str], Meta(description="Memories changed since the run, which were left unchanged")]
    near_checked: Annotated[bool, Meta(description="False if no vectors were available for comparison")]
    sequence: int
    took_ms: float
    answer: Annotated[str | UnsetType, Meta(description="Answer to `query`; empty if no memory applies")] = UNSET
    used: Annotated[list[str] | UnsetType, Meta(description="Ids of the memories that the answer uses")] = UNSET


class ReflectionRunAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes of a run's node; `merging` is the consolidation run that it began with."""

    started_at: str
    threshold: float
    cluster_threshold: float
    linked: int = 0
    merging: str = ""
    proposals: list[ReflectionProposal] = []

    @property
    def text(self) -> str:
        """The record as the attributes of a node."""
        return _encode(self).decode()


class ReflectRunEdgeAttributes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Attributes of the edge from a run to a memory: its parent, the memory it contradicts, or that it is new."""

    parent: str = ""
    against: str = ""
    made: bool = False

    @property
    def text(self) -> str:
        """The mark as the attributes of an edge."""
        return _encode(self).decode()


_encode = msgspec.json.Encoder(order="deterministic").encode
decode_reflection_record = json_decoder(ReflectionRunAttributes).decode
decode_reflection_mark = json_decoder(ReflectRunEdgeAttributes).decode


def new_reflection_id(now: int, chance: str) -> str:
    """Return the id of a run's node; ids sort by time. `now` is in microseconds."""
    return f"{KIND_REFLECTION}-{now // 1000:012x}-{chance}"


_AGE_UNITS = ((365 * 86_400, "y"), (86_400, "d"), (3_600, "h"), (60, "min"))
_MAX_LINE_CHARS = 1_000


def format_memory_line(memory: Memory, now: float, most: int = _MAX_LINE_CHARS) -> str:
    """Return a memory as one line: text, type, confidence if it is less than 1, age and entities.

    `now` is in seconds since 1970; `most` is the maximum number of characters of the content.
    """
    recalled = memory if isinstance(memory, RecalledMemory) else None
    said = f", said {recalled.said} times" if recalled and recalled.said else ""
    ended = f", {memory.ended}" if memory.ended else ""
    via = f" — via [{recalled.via}]" if recalled and recalled.via else ""
    content = " ".join(memory.content.split())
    content = content if len(content) <= most else f"{content[: most - 1]}…"
    names = f" — about {', '.join(each.name for each in memory.entities)}" if memory.entities else ""
    age = format_age(now - parse_stored_time(memory.created_at) / 1_000_000)
    place = f", in {recalled.store}" if recalled and recalled.store else ""
    certainty = f"{memory.effective_confidence:.2f}"
    confidence = "" if certainty == "1.00" else f", conf {certainty}"
    facts = f"{memory.memory_type}{confidence}, {age}{said}{ended}{place}"
    return f"[{memory.id}] ({facts}) {content}{names}{via}"


def format_age(seconds: float) -> str:
    """Return an age in words, such as "3 d ago"."""
    return next(
        (f"{int(seconds // length):,} {unit} ago" for length, unit in _AGE_UNITS if seconds >= length), "just now"
    )


def format_reflect_proposal_line(proposal: ReflectionProposal) -> str:
    """Return a numbered proposal as one line."""
    ids = ", ".join(f"[{each}]" for each in proposal.ids)
    text = {
        "link": f"{ids} belongs below {', '.join(f'[{each.id}] ({each.score:.2f})' for each in proposal.candidates)}",
        "concept": f"a new concept {proposal.name!r} above {ids}",
        "contradiction": f"{ids} contradict each other in {proposal.differs}",
    }[proposal.kind]
    state = "" if proposal.state == "open" else f" ({proposal.state})"
    reason = f" - {proposal.reason}" if proposal.reason else ""
    return f"{proposal.number}. {text}{state}{reason}"
