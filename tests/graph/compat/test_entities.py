from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgserve.graph.compat.mcp_memory_server_api import (
    EntityWithObservations,
    append_observations_to_content,
    decode_entity_observations,
    encode_entity_observations,
    remove_observations_from_content,
)
from kgserve.graph.compat.mcp_memory_server_operations import create_entities, search_nodes
from kgserve.graph.search import node_search
from kgserve.projections.text_index_base import TextIndexUpdate
from tests.fuzzing import examples
from tests.graph.transfer.formats.conversion_helpers import ADVERSARIAL_TEXTS
from tests.graphs import graph_of
from tests.projections.indexing import indexed
from tests.stores.writing import NAME, PATIENCE

texts = st.text(st.sampled_from("\t\n\\ax ")) | st.text() | st.sampled_from(ADVERSARIAL_TEXTS)
observations = st.lists(texts, max_size=6)


@given(observations, observations)
@examples(200)
def test_observations_round_trip_through_content(some: list[str], more: list[str]) -> None:
    assert decode_entity_observations(encode_entity_observations(some)) == some
    assert append_observations_to_content(encode_entity_observations(some), more) == encode_entity_observations(
        [*some, *more]
    )
    left = [each for each in some if each not in more]
    assert decode_entity_observations(remove_observations_from_content(encode_entity_observations(some), more)) == left


def test_plain_observation_is_stored_as_one_line() -> None:
    assert encode_entity_observations(["Speaks Spanish", "Graduated in 2019"]) == "Speaks Spanish\nGraduated in 2019"
    assert encode_entity_observations(["one\ntwo", "", "\tthree"]) == "one\n\ttwo\n\\\n\\\tthree"


@pytest.mark.parametrize(
    ("content", "found"),
    [("", []), ("A paragraph.\n\nAnother.\n", ["A paragraph.", "Another."]), ("\tcode\n\tmore", ["\tcode\nmore"])],
)
def test_foreign_content_is_read_as_one_observation_per_line(content: str, found: list[str]) -> None:
    assert decode_entity_observations(content) == found
    assert remove_observations_from_content(content, {"never said"}) == content
    assert decode_entity_observations(append_observations_to_content(content, ["new"])) == [*found, "new"]


def test_a_search_waits_for_words_and_says_if_they_are_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_index = threading.Event()
    monkeypatch.setattr(node_search, "LATEST_VECTORS_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(node_search, "LATEST_WORDS_TIMEOUT_SECONDS", 0.1)
    with indexed(tmp_path) as (pool, indexer), pool.lease(NAME, create=True) as store:
        graph, keyword = graph_of(pool, NAME, indexer), indexer.of(store).keyword
        assert keyword.wait(0, PATIENCE)
        follow = keyword._follow

        def follow_late(step: TextIndexUpdate) -> None:
            assert may_index.wait(PATIENCE)
            follow(step)

        monkeypatch.setattr(keyword, "_follow", follow_late)
        said = {"Ann": "drinks tea", "Bo": "writes in ink"}
        create_entities(
            graph,
            [
                EntityWithObservations(name=name, entity_type="person", observations=[text])
                for name, text in said.items()
            ],
        ).result()
        assert search_nodes(graph, "ink").more == "the indexes lag 1 commit behind; the newest entries may be missing"
        monkeypatch.setattr(node_search, "LATEST_WORDS_TIMEOUT_SECONDS", PATIENCE)
        timer = threading.Timer(0.3, may_index.set)
        timer.start()
        found = search_nodes(graph, "ink")
        timer.join()
    assert ([each.name for each in found.entities], found.more) == (["Bo"], msgspec.UNSET)
