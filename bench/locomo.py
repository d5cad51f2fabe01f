"""Long conversations with questions whose evidence is known, in one store each: a node per turn, `next` edges between.

The file is a list of conversations in the format of LoCoMo (https://github.com/snap-research/locomo). It is not part of
this repository; benchmarks that need it are skipped if it is missing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

FILE = Path(__file__).parents[2] / "shared" / "data" / "locomo-dev.json"
_SESSION = re.compile(r"session_(\d+)")


class ConversationTurn(msgspec.Struct, frozen=True):
    """A message of one person."""

    speaker: str
    dia_id: str
    text: str


class Question(msgspec.Struct, frozen=True):
    """A question, and the ids of the turns that answer it."""

    question: str
    evidence: list[str]


class Conversation(msgspec.Struct, frozen=True):
    """The turns of all sessions in order, and the questions that have evidence."""

    name: str
    turns: list[ConversationTurn]
    questions: list[Question]

    def lines(self) -> Iterator[bytes]:
        """Yield the conversation in kgserve's exchange format, nodes first."""
        encode = msgspec.json.Encoder().encode
        ids = list(dict.fromkeys(turn.dia_id for turn in self.turns))
        for turn in self.turns:
            content = f"{turn.speaker}: {turn.text}"
            yield encode({"kind": "node", "id": turn.dia_id, "type": "turn", "content": content}) + b"\n"
        for one, two in pairwise(ids):
            yield encode({"kind": "edge", "from": one, "to": two, "relation_type": "next"}) + b"\n"


class _Sample(msgspec.Struct):
    sample_id: str
    conversation: dict[str, Any]
    qa: list[Question]


def read(path: Path = FILE) -> list[Conversation]:
    """Read all conversations of a file. Raises OSError, and msgspec.DecodeError for other content."""
    return [_conversation(sample) for sample in msgspec.json.decode(path.read_bytes(), type=list[_Sample])]


def _conversation(sample: _Sample) -> Conversation:
    found = ((_SESSION.fullmatch(key), turns) for key, turns in sample.conversation.items())
    sessions = sorted((int(match[1]), turns) for match, turns in found if match)
    turns = [turn for _, session in sessions for turn in msgspec.convert(session, list[ConversationTurn])]
    return Conversation(sample.sample_id, turns, [question for question in sample.qa if question.evidence])


def recall(found: Sequence[str], evidence: Collection[str], depth: int) -> float:
    """Return the share of the evidence among the first `depth` ids found."""
    wanted = set(evidence)
    return len(wanted & set(found[:depth])) / len(wanted)
