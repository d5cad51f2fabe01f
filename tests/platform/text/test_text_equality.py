from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgserve.platform.text.text_equality import (
    MAX_COMPARED_CHARS,
    TEXT_HASH_BYTES,
    extract_meaningful_words,
    find_consolidation_conflict,
    find_numbers,
    find_text_difference_kind,
    fingerprint_wording,
    hash_normalized_text,
    is_same_text,
)

LISTS = Path(__file__).parent / "likeness"
PLACE = re.compile(r"\{([^{}|]*)\|([^{}]*)\}")


def pairs(name: str) -> list[tuple[str, str]]:
    """Return the pairs of a list: one per line, with {one|other} where the two sentences differ."""
    lines = (LISTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    written = [line for line in lines if line.strip() and not line.startswith("# ")]
    return [(PLACE.sub(r"\1", line), PLACE.sub(r"\2", line)) for line in written]


def test_the_lists_are_long_enough() -> None:
    different, alike = pairs("different"), pairs("same")
    assert len({frozenset(pair) for pair in different}) >= 400
    assert len({frozenset(pair) for pair in alike}) >= 100
    assert all(one != other for one, other in (*different, *alike))


def test_sentences_with_different_meaning_have_different_wording() -> None:
    wrong = [pair for pair in pairs("different") if is_same_text(*pair) or not find_text_difference_kind(*pair)]
    assert wrong == []


def test_sentences_with_the_same_meaning_have_the_same_wording() -> None:
    apart = [pair for pair in pairs("same") if not is_same_text(*pair)]
    assert apart == []


def test_text_hash_ignores_case_whitespace_and_final_punctuation() -> None:
    one = hash_normalized_text("The user prefers\tdark  mode")
    assert (
        one
        == hash_normalized_text(" the USER prefers dark mode. ")
        == hash_normalized_text("The user prefers dark mode!")
    )
    assert one != hash_normalized_text("User prefers dark mode")
    assert one != hash_normalized_text("The user prefers dark mode?")
    assert len(one) == TEXT_HASH_BYTES


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("two thousand five", ["2005"]),
        ("one hundred twenty-three", ["123"]),
        ("three million two thousand five hundred six", ["3002506"]),
        ("one hundred thousand", ["100000"]),
        ("thousand", ["1000"]),
        ("twelve hundred", ["1200"]),
        ("twenty one", ["21"]),
        ("twenty eleven", ["20", "11"]),
        ("nineteen eighty four", ["19", "84"]),
        ("five two", ["5", "2"]),
        ("zero", ["0"]),
    ],
)
def test_number_words_equal_digits(text: str, counted: list[str]) -> None:
    assert (
        find_numbers(extract_meaningful_words(f"It holds {text} files"))
        == find_numbers(extract_meaningful_words(f"It holds {' '.join(counted)} files"))
        == counted
    )


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        ("User prefers dark mode", "User does not prefer dark mode", "not"),
        ("The port is 5432", "The port is 5433", "numbers"),
        ("The build took three hours", "The build took 4 hours", "numbers"),
        ("Alice works at Acme", "Alice works at Globex", "names"),
        ("Alice manages Bob", "Bob manages Alice", "names"),
        ("User prefers dark mode", "The user likes dark mode", "words"),
        ("User prefers dark mode", "The user prefers dark mode.", ""),
    ],
)
def test_the_difference_of_two_texts_is_reported(one: str, other: str, reason: str) -> None:
    assert find_text_difference_kind(one, other) == find_text_difference_kind(other, one) == reason


def test_few_similar_but_different_texts_pass_the_consolidation_guard() -> None:
    listed = pairs("different")
    passing = [pair for pair in listed if not find_consolidation_conflict(*pair)]
    # Words without a counterpart are left to vector similarity.
    assert len(passing) < len(listed) / 50
    assert [pair for pair in pairs("same") if find_consolidation_conflict(*pair)] == []


def test_the_guard_rejects_sibling_terms_and_accepts_synonyms() -> None:
    siblings, reworded = pairs("siblings"), pairs("reworded")
    assert (len(siblings), len(reworded)) == (200, 100)
    assert [pair for pair in siblings if not find_consolidation_conflict(*pair)] == []
    # Different voices and tenses are rejected as well, because the guard cannot distinguish them from other meanings.
    assert sum(not find_consolidation_conflict(*pair) for pair in reworded) >= 55


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("User prefers dark mode", "The user likes dark mode"),
        ("The logs are kept for a year", "Logs are retained for a year"),
        ("He bought a car", "He purchased an automobile"),
        ("The error message is hard to read", "The error message is difficult to read"),
        ("React hooks allow state in functional components", "Hooks in React let functional components use state"),
        ("The login page is slow", "The login page loads slowly"),
        ("Alice is allergic to peanuts", "Alice has a peanut allergy"),
        ("The API rate limit is 100 requests per minute", "The API allows 100 requests per minute"),
    ],
)
def test_synonyms_pass_the_consolidation_guard(one: str, other: str) -> None:
    assert find_consolidation_conflict(one, other) == find_consolidation_conflict(other, one) == ""
    assert find_text_difference_kind(one, other) == "words"


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        ("Caching is enabled by default", "By default, caching is disabled", "words"),
        ("The backup runs on Monday night", "On Tuesday night the backup runs", "names"),
        ("the backup runs on monday night", "on tuesday night the backup runs", "words"),
        ("Copy from staging to production", "Copy from production to staging", "words"),
        ("The volume was increased", "They decreased the volume", "words"),
        ("The comment is useful", "The comment is useless", "words"),
        ("He lives in Lyon", "He lived in Lyon", "words"),
        ("He keeps bees", "He kept bees", "words"),
        ("He bought the house", "He sold the house", "words"),
        ("The living room is blue", "The kitchen is blue", "words"),
    ],
)
def test_the_consolidation_guard_rejects_exclusive_words(one: str, other: str, reason: str) -> None:
    assert find_consolidation_conflict(one, other) == find_consolidation_conflict(other, one) == reason


def test_wordless_and_long_texts_use_the_text_hash_as_fingerprint() -> None:
    assert fingerprint_wording("...") != fingerprint_wording("???")
    assert fingerprint_wording("the") == hash_normalized_text("the")
    long = "word " * MAX_COMPARED_CHARS
    assert fingerprint_wording(long) == hash_normalized_text(long)
    assert not is_same_text(long, long + "the word")
    assert find_text_difference_kind(long, long + "other") in {"names", "words"}


@given(st.text(max_size=60), st.text(max_size=60))
def test_similarity_is_symmetric(one: str, other: str) -> None:
    assert find_text_difference_kind(one, other) == find_text_difference_kind(other, one)
    assert bool(find_consolidation_conflict(one, other)) <= bool(find_text_difference_kind(one, other))
    assert find_text_difference_kind(one, one) == find_consolidation_conflict(other, other) == ""
    assert (not find_text_difference_kind(one, other)) == is_same_text(one, other)


PIECES = ["alice", "reads", "seven", "books", "on", "3", "trains", ",", "not", "-", "a", "the", "b2", "'s", "."]


@given(st.lists(st.sampled_from(PIECES), max_size=9))
def test_meaningless_words_do_not_change_the_wording(chosen: list[str]) -> None:
    text = " ".join(chosen)
    assert (
        extract_meaningful_words(text)
        == extract_meaningful_words(f"Please, {text}")
        == extract_meaningful_words(f"  {text.replace(' ', '  ')}")
    )
