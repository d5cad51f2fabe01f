from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgserve.graph.answers import Edge, Node
from kgserve.graph.llm_context_text import (
    ContextNodeEntry,
    build_llm_context_entries,
    estimate_llm_token_count,
    render_llm_context_json,
    render_llm_context_markdown,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
IDS = st.lists(TEXTS.filter(bool), min_size=1, max_size=8, unique=True)


def node(node_id: str, content: str = "", kind: str = "t") -> Node:
    return Node(
        id=node_id, type=kind, content=content, attributes={}, version=1, sequence=1, created_at="", updated_at=""
    )


def edge(source: str, target: str, kind: str = "KNOWS") -> Edge:
    return Edge(
        id="-", source=source, target=target, relation_type=kind, weight=1.0, attributes={}, version=1, sequence=1
    )


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Node], list[Edge]]:
    ids = draw(IDS)
    nodes = [node(each, draw(TEXTS), draw(TEXTS)) for each in ids]
    ends = st.sampled_from([*ids, "somebody else"])
    return nodes, [edge(draw(ends), draw(ends), draw(TEXTS)) for _ in range(draw(st.integers(0, 8)))]


def decoded(text: str) -> dict[str, list[dict[str, Any]]]:
    return msgspec.json.decode(text)


@given(graphs(), st.integers(1, 300))
def test_markdown_stays_within_token_budget(graph: tuple[list[Node], list[Edge]], budget: int) -> None:
    nodes, edges = graph
    made = render_llm_context_markdown(build_llm_context_entries(nodes, edges), budget)
    assert estimate_llm_token_count(made.text) <= made.tokens <= budget
    assert all(f"[{each.id}]" in made.text for each in nodes[: made.count])
    assert made.truncated or made.count == len(nodes)


@given(graphs(), st.integers(1, 600))
def test_json_stays_within_token_budget(graph: tuple[list[Node], list[Edge]], budget: int) -> None:
    nodes, edges = graph
    made = render_llm_context_json(build_llm_context_entries(nodes, edges), budget)
    assert estimate_llm_token_count(made.text) == made.tokens <= budget
    assert made.truncated == (made.count < len(nodes))
    if made.count:
        value, told = decoded(made.text), [each.id for each in nodes[: made.count]]
        assert [each["id"] for each in value["nodes"]] == told
        inside = [each for each in edges if {each.source, each.target} <= set(told)]
        assert len(value["edges"]) == len(inside)


def test_context_includes_edges_between_its_nodes() -> None:
    edges = [edge("a", "b"), edge("b", "a", "LIKES"), edge("a", "elsewhere"), edge("c", "c", "IS")]
    made = render_llm_context_markdown(
        build_llm_context_entries([node("a", "first"), node("b", "second"), node("c")], edges), 1000
    )
    assert made.text.splitlines() == [
        "- [a] (t) first",
        "- [b] (t) second",
        "  - [a] KNOWS [b]",
        "  - [b] LIKES [a]",
        "- [c] (t)",
        "  - [c] IS [c]",
    ]
    assert (made.count, made.truncated) == (3, False)
    value = decoded(
        render_llm_context_json(build_llm_context_entries([node("a", "first"), node("b")], edges), 1000).text
    )
    assert value["nodes"][0] == {"id": "a", "type": "t", "content": "first"}
    assert value["edges"][0] == {"from": "a", "to": "b", "relation_type": "KNOWS"}
    assert len(value["edges"]) == 2


def test_context_names_store_of_each_entry() -> None:
    mixed = [
        ContextNodeEntry(node("a", "first"), (), "mine"),
        *build_llm_context_entries([node("a"), node("b")], [edge("a", "b")], "ours"),
    ]
    assert render_llm_context_markdown(mixed, 1000).text.splitlines() == [
        "- [a] (t, in mine) first",
        "- [a] (t, in ours)",
        "- [b] (t, in ours)",
        "  - [a] KNOWS [b]",
    ]
    value = decoded(render_llm_context_json(mixed, 1000).text)
    assert [each["store"] for each in value["nodes"]] == ["mine", "ours", "ours"]
    assert value["edges"][0]["store"] == "ours"


def test_long_content_is_truncated_at_word_boundary() -> None:
    made = render_llm_context_markdown(
        build_llm_context_entries([node("a", "word " * 100), node("b", "never reached")], []), 40
    )
    assert made.text.startswith("- [a] (t) word word")
    assert made.text.endswith("word …")
    assert (made.count, made.truncated) == (1, True)


def test_context_is_empty_if_budget_is_too_small() -> None:
    assert render_llm_context_markdown([ContextNodeEntry(node("a", "text"))], 1) == render_llm_context_json(
        [ContextNodeEntry(node("a", "text"))], 1
    )
    assert render_llm_context_markdown([ContextNodeEntry(node("a", "text"))], 1).truncated
    assert not render_llm_context_markdown([], 100).truncated


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("word", 1),
        ("words", 2),
        ("12", 1),
        ("123", 2),
        ("a b", 2),
        ("a  b", 3),
        ("a\nb", 3),
        ("é", 1),
        ("日", 2),
    ],
)
def test_token_estimate(text: str, tokens: int) -> None:
    assert estimate_llm_token_count(text) == tokens


@pytest.mark.parametrize("write", [render_llm_context_markdown, render_llm_context_json])
def test_context_time_is_linear_in_text_size(write: Any) -> None:
    nodes = [node(f"n{i}", "some words of it " * 500) for i in range(100)]
    edges = [edge(f"n{i}", f"n{(i + step) % 100}") for i in range(100) for step in range(1, 20)]
    started = time.thread_time()
    estimate_llm_token_count("".join(each.content for each in nodes))
    once = time.thread_time() - started
    started = time.thread_time()
    made = write(build_llm_context_entries(nodes, edges), 1_000_000)
    assert made.count == 100
    assert time.thread_time() - started < 10 * once + 1
