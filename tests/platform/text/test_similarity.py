from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgserve.platform.text.similarity import (
    HASH_BYTES,
    MAX_COMPARED_CHARS,
    conflicts,
    differs,
    fingerprint,
    numbers,
    same,
    text_hash,
    words,
)

LISTS = Path(__file__).parent / "likeness"
PLACE = re.compile(r"\{([^{}|]*)\|([^{}]*)\}")


def pairs(name: str) -> list[tuple[str, str]]:
    """The pairs of a list: a line each, with {one|other} where its two sentences differ."""
    lines = (LISTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    written = [line for line in lines if line.strip() and not line.startswith("# ")]
    return [(PLACE.sub(r"\1", line), PLACE.sub(r"\2", line)) for line in written]


def test_the_lists_are_long_enough() -> None:
    different, alike = pairs("different"), pairs("same")
    assert len({frozenset(pair) for pair in different}) >= 400
    assert len({frozenset(pair) for pair in alike}) >= 100
    assert all(one != other for one, other in (*different, *alike))


def test_no_two_sentences_that_say_different_things_are_one() -> None:
    wrong = [pair for pair in pairs("different") if same(*pair) or not differs(*pair)]
    assert wrong == []


def test_sentences_that_say_the_same_are_one() -> None:
    apart = [pair for pair in pairs("same") if not same(*pair)]
    assert apart == []


def test_case_blanks_and_the_final_mark_are_no_part_of_the_hash() -> None:
    one = text_hash("The user prefers\tdark  mode")
    assert one == text_hash(" the USER prefers dark mode. ") == text_hash("The user prefers dark mode!")
    assert one != text_hash("User prefers dark mode")
    assert one != text_hash("The user prefers dark mode?")
    assert len(one) == HASH_BYTES


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
def test_numbers_in_words_are_those_in_digits(text: str, counted: list[str]) -> None:
    assert numbers(words(f"It holds {text} files")) == numbers(words(f"It holds {' '.join(counted)} files")) == counted


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
def test_what_keeps_two_texts_apart_is_told(one: str, other: str, reason: str) -> None:
    assert differs(one, other) == differs(other, one) == reason


def test_of_the_different_that_are_near_few_pass_the_guard_of_consolidation() -> None:
    listed = pairs("different")
    passing = [pair for pair in listed if not conflicts(*pair)]
    # Words that have nothing in their place are left to the vectors.
    assert len(passing) < len(listed) / 50
    assert [pair for pair in pairs("same") if conflicts(*pair)] == []


def test_a_sibling_in_the_place_of_a_word_is_kept_apart_and_other_words_for_it_are_not() -> None:
    siblings, reworded = pairs("siblings"), pairs("reworded")
    assert (len(siblings), len(reworded)) == (200, 100)
    assert [pair for pair in siblings if not conflicts(*pair)] == []
    # Voices and tenses that differ are kept apart, too: the guard cannot tell them from what says something else.
    assert sum(not conflicts(*pair) for pair in reworded) >= 55


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
def test_other_words_for_the_same_pass_the_guard_of_consolidation(one: str, other: str) -> None:
    assert conflicts(one, other) == conflicts(other, one) == ""
    assert differs(one, other) == "words"


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
def test_the_guard_of_consolidation_knows_what_excludes_each_other(one: str, other: str, reason: str) -> None:
    assert conflicts(one, other) == conflicts(other, one) == reason


def test_a_text_without_words_and_a_long_one_have_fingerprints_of_their_letters() -> None:
    assert fingerprint("...") != fingerprint("???")
    assert fingerprint("the") == text_hash("the")
    long = "word " * MAX_COMPARED_CHARS
    assert fingerprint(long) == text_hash(long)
    assert not same(long, long + "the word")
    assert differs(long, long + "other") in {"names", "words"}


@given(st.text(max_size=60), st.text(max_size=60))
def test_likeness_is_the_same_in_both_directions(one: str, other: str) -> None:
    assert differs(one, other) == differs(other, one)
    assert bool(conflicts(one, other)) <= bool(differs(one, other))
    assert differs(one, one) == conflicts(other, other) == ""
    assert (not differs(one, other)) == same(one, other)


PIECES = ["alice", "reads", "seven", "books", "on", "3", "trains", ",", "not", "-", "a", "the", "b2", "'s", "."]


@given(st.lists(st.sampled_from(PIECES), max_size=9))
def test_what_is_silent_changes_no_wording(chosen: list[str]) -> None:
    text = " ".join(chosen)
    assert words(text) == words(f"Please, {text}") == words(f"  {text.replace(' ', '  ')}")
