"""A turn of a conversation is also found by what is said around it: pure, from the turns before and behind it.

Who asks with one turn is answered with the next, and few repeat the words of the other. So a turn has a part of the
score of a better turn beside it (`fusion.spread`), and of words that are said there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from kgserve.model.fusion import DECAY, Neighbours, both_ways, spread
from kgserve.model.recall import Recalled, Standing, in_order

SEEDS, REACHED = 15, 30
"""So many of the best memories, and of the turns beside them, are asked what is said before and behind them."""
ASKS = 0.9
"""What counts of a turn that asks: what is wanted is the answer."""

Worths = Mapping[str, Mapping[str, float]]
"""For each of some turns what the words of the query that it says are worth."""


def carried(words: Mapping[str, float], worths: Worths, turns: Neighbours) -> dict[str, float]:
    """BM25 scores in which a turn has of each word the most of what it says itself and what those around it say.

    What is said one turn away counts half, two turns away a quarter.
    """
    links, found = both_ways(turns), dict(words)
    for turn, own in worths.items():
        heard = dict(own)
        for other, share in _around(links, turn):
            for word, worth in worths.get(other, {}).items():
                heard[word] = max(heard.get(word, 0.0), share * worth)
        said = sum(own.values())
        score = words.get(turn, said) + sum(heard.values()) - said
        if score > 0.0:
            found[turn] = score
    return found


def _around(links: Mapping[str, Mapping[str, float]], turn: str) -> Iterator[tuple[str, float]]:
    """Those one and two turns away, and how much of their words counts."""
    for near, weight in links.get(turn, {}).items():
        yield near, DECAY * weight
        yield from ((far, DECAY * weight * DECAY * more) for far, more in links.get(near, {}).items() if far != turn)


def in_conversation(
    found: Sequence[Recalled], turns: Neighbours, standing: Mapping[str, Standing], asking: Collection[str] = ()
) -> list[Recalled]:
    """What was found, best first, each turn with what it gains from better ones around it; those that ask count less.

    Nothing comes above the turn from which it gains.
    """
    nearby = spread({each.id: each.score for each in found}, turns)
    made: list[Recalled] = []
    for each in found:
        near = nearby.get(each.id, ())
        share = ASKS if each.id in asking else 1.0
        if near or share < 1.0:
            gain = sum(one.amount for one in near)
            told = (f"{one.hops} turn{'s'[: one.hops - 1]} from {one.via}" for one in near)
            made.append(
                msgspec.structs.replace(
                    each,
                    score=share * (each.score + gain * standing[each.id].confidence),
                    match=share * (each.match + gain),
                    via=near[0].via if near else None,
                    hops=near[0].hops if near else None,
                    why=", ".join((each.why, *told, *(("asks",) if share < 1.0 else ()))),
                )
            )
        else:
            made.append(each)
    return in_order(made, standing)
