from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from kgserve.platform.text.text_equality import cluster_complete_linkage

PAIRS = st.dictionaries(
    st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("abcdefgh")), st.sampled_from([0.86, 0.9, 0.95, 1.0])
)


def test_complete_linkage_does_not_chain() -> None:
    assert cluster_complete_linkage({("a", "b"): 0.9, ("b", "c"): 0.89}) == [["a", "b"]]
    assert cluster_complete_linkage({("a", "b"): 0.9, ("b", "c"): 0.89, ("a", "c"): 0.86}) == [["a", "b", "c"]]


def test_nearest_pairs_are_linked_first() -> None:
    assert cluster_complete_linkage({("a", "b"): 0.87, ("b", "c"): 0.99}) == [["b", "c"]]
    square = {("a", "b"): 0.95, ("c", "d"): 0.94, ("a", "c"): 0.9, ("b", "d"): 0.9, ("a", "d"): 0.9, ("b", "c"): 0.88}
    assert cluster_complete_linkage(square) == [["a", "b", "c", "d"]]
    del square["b", "c"]
    assert cluster_complete_linkage(square) == [["a", "b"], ["c", "d"]]


def test_no_pairs_no_clusters() -> None:
    assert cluster_complete_linkage({}) == []
    assert cluster_complete_linkage({("a", "a"): 1.0}) == []


@given(PAIRS)
def test_clusters_are_complete_and_maximal(pairs: dict[tuple[str, str], float]) -> None:
    groups = cluster_complete_linkage(pairs)
    known = {frozenset(pair) for pair in pairs}
    for group in groups:
        assert all(frozenset(pair) in known for pair in combinations(group, 2))
    members = [each for group in groups for each in group]
    assert len(members) == len(set(members))
    for one, other in combinations(groups, 2):
        assert any(frozenset((a, b)) not in known for a in one for b in other)


@given(PAIRS, st.randoms())
def test_clusters_do_not_depend_on_pair_order(pairs: dict[tuple[str, str], float], random: object) -> None:
    turned = {(b, a): similarity for (a, b), similarity in reversed(pairs.items()) if (b, a) not in pairs}
    if len(turned) == len(pairs):
        assert cluster_complete_linkage(turned) == cluster_complete_linkage(pairs)
