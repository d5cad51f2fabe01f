"""Reflecting on memories: what callers ask for, what they are told, and what is noted of it in rows.

A *run* is a node that says what was proposed and what became of that. From it a relation goes to each memory that it
has placed or made, which says how to take that back.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kgserve.graph.answers import MAX_REPORTED_ITEMS
from kgserve.memory.api import Id, Memory, RecalledMemory, Share
from kgserve.platform.codecs import json_decoder
from kgserve.platform.times import time_of
from kgserve.storage.model.batch import KIND_REFLECTION

CONTRADICTS = "contradicts"
MAX_REFLECTED_MEMORIES = 10_000
MAX_PROPOSALS = 100
MAX_PROPOSED_MEMORIES = 4_000
"""So many memories are named by the proposals of one run."""
MAX_CONCEPT_NAME_CHARS = 200

ProposalKind = Literal["link", "concept", "contradiction"]
State = Literal["open", "accepted", "refused"]
_Numbers = Annotated[list[Annotated[int, Meta(ge=1, le=MAX_PROPOSALS)]], Meta(max_length=MAX_PROPOSALS)]
_DRY_RUN_REFLECT_HELP = "Say what would be done and proposed, and write nothing"
_PROPOSAL_NAMES_HELP = (
    "By the number of a proposal: of a concept the name to give it; of a link the id of the parent, where it is not "
    "the first of the candidates"
)


class ReflectRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to reflect on; or which proposals of a run to accept or refuse; or a run to take back."""

    query: Annotated[str, Meta(min_length=1, max_length=10_000, description="Only what is nearest to this")] | None = (
        None
    )
    under: Annotated[Id, Meta(description="Only concepts below this memory take others in: its id")] | None = None
    limit: Annotated[
        int,
        Meta(ge=1, le=MAX_REFLECTED_MEMORIES, description="Most memories without a parent to look at, newest first"),
    ] = 1_000
    threshold: Annotated[
        Share, Meta(description="Score, a chance of being right, from which on a memory is put below a concept")
    ] = 0.6
    cluster_threshold: Annotated[Share, Meta(description="How near each two are that make a new concept together")] = (
        0.7
    )
    dry_run: Annotated[bool, Meta(description=_DRY_RUN_REFLECT_HELP)] = False
    run: Annotated[Id, Meta(description="Whose proposals, or what to undo; left out: the last run")] | None = None
    accept: Annotated[_Numbers, Meta(description="Proposals to carry out, by their numbers")] = []
    refuse: Annotated[_Numbers, Meta(description="Proposals that are not to be made again")] = []
    names: (
        Annotated[
            dict[str, Annotated[str, Meta(min_length=1, max_length=512)]],
            Meta(max_length=MAX_PROPOSALS, description=_PROPOSAL_NAMES_HELP),
        ]
        | None
    ) = None
    undo: Annotated[bool, Meta(description="Take the run back, with what was accepted of it")] = False
    answer: Annotated[bool, Meta(description="Only answer `query`; needs a language model")] = False


class Candidate(msgspec.Struct, kw_only=True):
    """A concept that a memory may belong below; the score is the estimated chance of that, 0 to 1."""

    id: str
    score: float


class Proposal(msgspec.Struct, kw_only=True):
    """Something to decide.

    ``link``: the one memory of ``ids`` belongs below one of ``candidates``. ``concept``: all of ``ids`` belong below a
    new concept, for which ``name`` is a suggestion. ``contradiction``: the first of ``ids``, which is the younger, says
    something else than the second, in what ``differs`` says.
    """

    number: int
    kind: ProposalKind
    ids: list[str]
    candidates: list[Candidate] = []
    name: str = ""
    differs: str = ""
    state: State = "open"
    reason: Annotated[str | UnsetType, Meta(description="What a language model says of it, where one is set")] = UNSET

    @property
    def key(self) -> str:
        """The same for the same proposal of another run."""
        return f"{self.kind} {' '.join(sorted(self.ids))}"


class Link(msgspec.Struct, kw_only=True):
    """A memory that was put below another one."""

    id: str
    parent_id: str
    score: float


class Reflection(msgspec.Struct, kw_only=True):
    """What was done and what is proposed. The run is null where nothing was written."""

    dry_run: bool
    run: str | None
    looked_at: Annotated[int, Meta(description="Memories without a parent that were looked at")]
    merged: Annotated[int, Meta(description="Memories that were absorbed by one that says the same")]
    linked: Annotated[list[Link], Meta(description=f"The first {MAX_REPORTED_ITEMS}")]
    linked_count: int
    proposals: Annotated[list[Proposal], Meta(description="By number; those to accept are `open`")]
    proposals_count: Annotated[int, Meta(description="All there are; more than are told come another time")]
    stale: Annotated[list[str], Meta(description=f"Memories that have faded; the first {MAX_REPORTED_ITEMS}")]
    stale_count: int
    undone: Annotated[int, Meta(description="Memories that were placed, made or absorbed, and are no more")]
    skipped: Annotated[list[str], Meta(description="What somebody has changed since, and so was left")]
    near_checked: Annotated[bool, Meta(description="False: there were no vectors to compare by")]
    sequence: int
    took_ms: float
    answer: Annotated[str | UnsetType, Meta(description="The answer to `query`; empty where nothing is remembered")] = (
        UNSET
    )
    used: Annotated[list[str] | UnsetType, Meta(description="Ids of the memories that it is taken from")] = UNSET


class ReflectionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the node of a run says, in its attributes. ``merging`` is the consolidation that it has begun with."""

    started_at: str
    threshold: float
    cluster_threshold: float
    linked: int = 0
    merging: str = ""
    proposals: list[Proposal] = []

    @property
    def text(self) -> str:
        """As the attributes of a node."""
        return _encode(self).decode()


class ReflectionMark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is noted between a run and a memory: the parent it was given, what it was set against, or that it is new."""

    parent: str = ""
    against: str = ""
    made: bool = False

    @property
    def text(self) -> str:
        """As the attributes of an edge."""
        return _encode(self).decode()


_encode = msgspec.json.Encoder(order="deterministic").encode
record_of = json_decoder(ReflectionRecord).decode
mark_of = json_decoder(ReflectionMark).decode


def new_run_id(now: int, chance: str) -> str:
    """The id of a run's node; ids sort by time, which is in microseconds."""
    return f"{KIND_REFLECTION}-{now // 1000:012x}-{chance}"


_AGE_UNITS = ((365 * 86_400, "y"), (86_400, "d"), (3_600, "h"), (60, "min"))
_MAX_LINE_CHARS = 1_000


def memory_line(memory: Memory, now: float, most: int = _MAX_LINE_CHARS) -> str:
    """A memory as one line: what it is, how sure, how old, and whom it is about.

    ``now`` is in seconds since 1970; of the content it shows at most so many characters.
    """
    recalled = memory if isinstance(memory, RecalledMemory) else None
    said = f", said {recalled.said} times" if recalled and recalled.said else ""
    ended = f", {memory.ended}" if memory.ended else ""
    beside = f" — beside [{recalled.via}]" if recalled and recalled.via else ""
    content = " ".join(memory.content.split())
    content = content if len(content) <= most else f"{content[: most - 1]}…"
    names = f" — about {', '.join(each.name for each in memory.entities)}" if memory.entities else ""
    age = age_of(now - time_of(memory.created_at) / 1_000_000)
    place = f", in {recalled.store}" if recalled and recalled.store else ""
    facts = f"{memory.memory_type}, conf {memory.effective_confidence:.2f}, {age}{said}{ended}{place}"
    return f"[{memory.id}] ({facts}) {content}{names}{beside}"


def age_of(seconds: float) -> str:
    """How long ago something was, in words."""
    return next(
        (f"{int(seconds // length):,} {unit} ago" for length, unit in _AGE_UNITS if seconds >= length), "just now"
    )


def proposal_line(proposal: Proposal) -> str:
    """A numbered proposal as one line."""
    ids = ", ".join(f"[{each}]" for each in proposal.ids)
    said = {
        "link": f"{ids} belongs below {', '.join(f'[{each.id}] ({each.score:.2f})' for each in proposal.candidates)}",
        "concept": f"a new concept {proposal.name!r} above {ids}",
        "contradiction": f"{ids} contradict each other in {proposal.differs}",
    }[proposal.kind]
    state = "" if proposal.state == "open" else f" ({proposal.state})"
    reason = f" - {proposal.reason}" if proposal.reason else ""
    return f"{proposal.number}. {said}{state}{reason}"
