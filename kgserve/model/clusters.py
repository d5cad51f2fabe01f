"""Groups of what is alike in pairs: everything in a group is alike to everything else in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def complete_linkage(pairs: Mapping[tuple[str, str], float]) -> list[list[str]]:
    """Groups of at least two, in which each two are one of the pairs; the same for the same pairs in any order.

    The most similar come together first, so that a chain of pairs does not drift: a group takes in another once the
    least similar pair between the two has been met. Members and groups are in order.
    """
    group_of: dict[str, str] = {}
    members: dict[str, list[str]] = {}
    met: dict[str, dict[str, int]] = {}
    for first, second in _best_first(pairs):
        one, other = (_group(each, group_of, members, met) for each in (first, second))
        if one == other:
            continue
        met[one][other] = met[other][one] = met[one].get(other, 0) + 1
        if met[one][other] == len(members[one]) * len(members[other]):
            _join(one, other, group_of, members, met)
    return sorted(sorted(group) for group in members.values() if len(group) > 1)


def _best_first(pairs: Mapping[tuple[str, str], float]) -> Iterable[tuple[str, str]]:
    ordered = {(min(pair), max(pair)): similarity for pair, similarity in pairs.items() if pair[0] != pair[1]}
    return sorted(ordered, key=lambda pair: (-ordered[pair], pair))


def _group(each: str, group_of: dict[str, str], members: dict[str, list[str]], met: dict[str, dict[str, int]]) -> str:
    if each not in group_of:
        group_of[each], members[each], met[each] = each, [each], {}
    return group_of[each]


def _join(
    one: str, other: str, group_of: dict[str, str], members: dict[str, list[str]], met: dict[str, dict[str, int]]
) -> None:
    """The smaller of two groups goes into the other, with what it has met."""
    into, gone = (one, other) if len(members[one]) >= len(members[other]) else (other, one)
    for each in members.pop(gone):
        group_of[each] = into
        members[into].append(each)
    for third, count in met.pop(gone).items():
        del met[third][gone]
        if third != into:
            met[into][third] = met[third][into] = met[into].get(third, 0) + count
