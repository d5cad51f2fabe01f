from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgserve.graph.compat.mcp_memory_server_api import (
    append_observations_to_content,
    decode_entity_observations,
    encode_entity_observations,
    remove_observations_from_content,
)
from tests.fuzzing import examples
from tests.graph.transfer.formats.conversion_helpers import ADVERSARIAL_TEXTS

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
