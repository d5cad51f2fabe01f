"""What stands beside the best memories is worth a part of what they are: pure, from their relations to an order.

A giver gives to its parent, its children, its siblings, what it is related to, and what is about the same. A memory
takes from one giver alone, the one that gives most, and never comes above it: it gets a part of what it lacks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from kgserve.model.recall import Recalled, Standing

GIVERS = 10
"""So many of the best memories give."""
NEAREST = 8
"""Of the children of one memory, and of those about one entity, so many take: the nearest to the query."""
MOST_ENTITIES = 20
"""So many entities are looked up, of the best memories first."""
MOST_RELATIONS = 32
"""A memory with more relations gives nothing by them: none of so many says much."""
PARENT, CHILD, SIBLING, RELATION = 0.5, 0.4, 0.3, 0.5

Kind = Literal["parent", "child", "sibling", "relation", "entity"]


_TOLD: dict[Kind, str] = {
    "parent": "parent of",
    "child": "child of",
    "sibling": "sibling of",
    "relation": "related to",
    "entity": "about the same as",
}


class Gift(NamedTuple):
    """What one memory gives to another: which part of what that lacks."""

    giver: str
    taker: str
    share: float
    kind: Kind
    hops: int


def by_entity(memories: int) -> float:
    """What memories give that are about the same, by how many are about it."""
    return 0.3 / math.log2(2 + memories)


def expanded(
    ranked: Sequence[Recalled], gifts: Iterable[Gift], own: Mapping[str, float], standing: Mapping[str, Standing]
) -> list[Recalled]:
    """What was found, best first, with what else takes from it; what takes nothing keeps its order.

    ``own`` is what those are worth by themselves that were not found. Those that do not stand are left out.
    """
    found = {each.id: each for each in ranked}
    taken: dict[str, Recalled] = {}
    for gift in gifts:
        if gift.taker not in standing or gift.taker == gift.giver or gift.giver not in found:
            continue
        self_ = found.get(gift.taker) or Recalled(gift.taker, own.get(gift.taker, 0.0), 0.0)
        gain = gift.share * standing[gift.taker].confidence * (found[gift.giver].score - self_.score)
        score = self_.score + gain
        if gain > 0.0 and (gift.taker not in taken or score > taken[gift.taker].score):
            taken[gift.taker] = _taken(self_, gift, score)
    return _among([each for each in ranked if each.id not in taken], list(taken.values()))


def _taken(before: Recalled, gift: Gift, score: float) -> Recalled:
    why = f"{before.why + ', ' if before.why else ''}{_TOLD[gift.kind]} {gift.giver}: {score - before.score:+.2f}"
    match = before.match or score
    return msgspec.structs.replace(before, score=score, match=match, via=gift.giver, hops=gift.hops, why=why)


def _among(kept: Sequence[Recalled], taken: Sequence[Recalled]) -> list[Recalled]:
    """Each that has taken comes before the first of those that have not and are worth less."""
    waiting = sorted(taken, key=lambda each: (each.score, each.id))
    order: list[Recalled] = []
    for each in kept:
        while waiting and waiting[-1].score > each.score:
            order.append(waiting.pop())
        order.append(each)
    return order + waiting[::-1]
