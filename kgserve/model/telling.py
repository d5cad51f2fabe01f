"""Memories and proposals as lines of text, for agents and for a terminal."""

from __future__ import annotations

from kgserve.model.memories import Memory, RecalledMemory
from kgserve.model.reflection import Proposal
from kgserve.model.times import time_of

_UNITS = ((365 * 86_400, "y"), (86_400, "d"), (3_600, "h"), (60, "min"))
_MOST = 1_000


def memory_line(memory: Memory, now: float, most: int = _MOST) -> str:
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
    return next((f"{int(seconds // length):,} {unit} ago" for length, unit in _UNITS if seconds >= length), "just now")


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
