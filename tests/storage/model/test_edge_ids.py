"""Edge ids: a bijection between keys and texts."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kgserve.errors import InvalidInput
from kgserve.storage.model.node_edge_rows import EdgeKey, edge_id, parse_edge_id

LABELS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(st.tuples(LABELS, LABELS, LABELS))
@example(("a~b", "~", "%7E"))
@example((".", "..", " "))
@example(("a/b", "?#&", "\0\n"))
@example(("Ünïcödé", "日本", "😀"))
def test_edge_id_roundtrip(key: EdgeKey) -> None:
    text = edge_id(key)
    assert parse_edge_id(text) == key
    assert re.fullmatch(r"[A-Za-z0-9_.%~-]+", text), "it fits into the path of a URL unescaped"
    assert urlsplit(f"http://host/edges/{text}").path == f"/edges/{text}"


@given(LABELS, LABELS, LABELS, LABELS)
def test_distinct_keys_have_distinct_ids(one: str, two: str, three: str, four: str) -> None:
    keys = {(one, two, three), (two, one, three), (one, three, two), (four, two, three), (one + two, two, three)}
    assert len({edge_id(key) for key in keys}) == len(keys)


def test_edge_id_format() -> None:
    assert edge_id(("a", "b", "knows")) == "a~knows~b"
    assert edge_id(("a b", "c~d", "is/in")) == "a%20b~is%2Fin~c%7Ed"


@pytest.mark.parametrize(
    "text",
    ["", "a", "a~b", "a~b~c~d", "~b~c", "a~~c", "a~b~", "~~", "a b~c~d", "%61~b~c", "a%2fb~c~d", "%ff~b~c", "%~b~c",
     "ü~b~c", "a+b~c~d/e"],
)  # fmt: skip
def test_invalid_edge_ids_are_rejected(text: str) -> None:
    with pytest.raises(InvalidInput, match="percent-encoded") as refused:
        parse_edge_id(text)
    assert [error.path for error in refused.value.errors] == ["id"]


@given(st.text(alphabet="ab~%7Eé2Ff", max_size=14))
def test_text_is_at_most_one_edge_id(text: str) -> None:
    try:
        key = parse_edge_id(text)
    except InvalidInput:
        return
    assert edge_id(key) == text
    assert text.count("~") == 2
    assert unquote(text).startswith(key[0])
