from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench import wordnet

NOUN = (
    "00001930 03 n 02 physical_entity 0 thing 1 003 @ 00001740 n 0000 ~ 00002452 n 0000 + 00002452 a 0101"
    " | a gloss; an example\n"
)
SATELLITE = "00003131 00 s 01 adducent 0 002 & 00003000 a 0000 \\ 00001930 n 0101 | bringing | together\n"


def test_a_synset_with_its_words_and_pointers() -> None:
    synset, pointers = wordnet.parse_synset(NOUN)
    assert synset.id == "n00001930"
    assert synset.type == "noun"
    assert synset.content == "physical entity, thing: a gloss; an example"
    assert synset.attributes == {"pos": "n", "lexicographer_file": "noun.Tops"}
    assert pointers == [
        ("n00001930", "n00001740", "hypernym"),
        ("n00001930", "n00002452", "hyponym"),
        ("n00001930", "a00002452", "derivationally_related"),
    ]


def test_a_satellite_adjective_is_numbered_with_the_adjectives() -> None:
    synset, pointers = wordnet.parse_synset(SATELLITE)
    assert (synset.id, synset.type) == ("a00003131", "adjective_satellite")
    assert synset.content == "adducent: bringing | together"
    assert [pointer.target for pointer in pointers] == ["a00003000", "n00001930"]


def test_a_pointer_between_several_word_pairs_is_one_edge(tmp_path: Path) -> None:
    for name in wordnet.FILES:
        (tmp_path / f"data.{name}").write_text("  1 licence\n", encoding="latin-1")
    twice = NOUN.replace("003 @", "004 @ 00001740 n 0102 @")
    (tmp_path / "data.noun").write_text("  1 licence\n" + twice, encoding="latin-1")
    graph = wordnet.read(tmp_path)
    assert len(graph.nodes) == 1
    assert len(graph.edges) == 3
    records = [msgspec.json.decode(line) for line in wordnet.lines(graph)]
    assert [record["kind"] for record in records] == ["node", "edge", "edge", "edge"]


def test_missing_apt_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(wordnet.Unavailable, match="apt-get and dpkg are not installed"):
        wordnet.folder(tmp_path)


def test_every_lexicographer_file_has_its_number() -> None:
    assert len(wordnet.LEXICOGRAPHER_FILES) == 45
    assert wordnet.LEXICOGRAPHER_FILES[3] == "noun.Tops"
    assert wordnet.LEXICOGRAPHER_FILES[29] == "verb.body"
    assert wordnet.LEXICOGRAPHER_FILES[44] == "adj.ppl"
