from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgserve.errors import InvalidInput
from kgserve.projections import folder_manifest, keyword_index
from kgserve.projections.folder_manifest import INDEX_MANIFEST_FILE
from kgserve.projections.indexed_text import EntitySearchFilter, IndexedEntityText
from kgserve.projections.keyword_index import KeywordIndex
from kgserve.projections.keyword_query import KeywordQuery
from tests.stores.writing import flip

ODD = [chr(code) for code in range(1, 128) if not chr(code).isalnum()] + [
    "–",
    "😀",
    "ü",
    "日",
    "\u2028",
    "e\u0301",
    "²",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "keyword"


@pytest.fixture
def index(folder: Path) -> KeywordIndex:
    return KeywordIndex(folder)


def text(node_id: str, content: str, node_type: str = "t") -> IndexedEntityText:
    return IndexedEntityText(node_id, node_type, content)


def found(index: KeywordIndex, query: str, only: EntitySearchFilter | None = None, *, limit: int = 50) -> list[str]:
    return [hit.id for hit in index.search(KeywordQuery(query), limit, only or EntitySearchFilter())]


def test_words_match_after_stemming(index: KeywordIndex) -> None:
    index.write([text("a", "She was running with two Dogs."), text("b", "A café in Zürich")], (), 1)
    assert found(index, "run dog") == ["a"]
    assert found(index, "CAFE zurich") == ["b"]
    assert found(index, "nothing of it") == []


def test_words_of_an_id_match(index: KeywordIndex) -> None:
    index.write([text("people/ada-lovelace", "a mathematician")], (), 1)
    assert found(index, "lovelace") == ["people/ada-lovelace"]


def test_irregular_forms_match_in_the_forms_reading(index: KeywordIndex) -> None:
    index.write([text("a", "She went to the lake"), text("b", "go now"), text("c", "two mice")], (), 1)
    assert found(index, "go") == ["b"]
    assert [hit.id for hit in index.search(KeywordQuery("go", "forms"), 9)] == ["b", "a"]
    assert [hit.id for hit in index.search(KeywordQuery("mouse", "forms"), 9)] == ["c"]


def test_term_scores_equal_those_of_the_index(index: KeywordIndex) -> None:
    texts = {"1": "a kiln for clay and clay pots", "2": "clay", "3": "the lake", "4": "she went where kilns are"}
    index.write([text(*each) for each in texts.items()], (), 1)
    query = "what clay goes into the kiln"
    scores = {hit.id: hit.score for hit in index.search(KeywordQuery(query, "forms"), 9)}
    worths = index.bm25_scores(query, texts)
    assert {key: sum(each.values()) for key, each in worths.items()} == pytest.approx(scores | {"3": scores["3"]})
    assert worths["1"]["clay"] > worths["1"]["kiln"]
    assert index.bm25_scores(query, {}) == {}


def test_function_words_weigh_less(index: KeywordIndex) -> None:
    index.write([text("a", "what did she do and where was it then"), text("b", "the violin")], (), 1)
    assert found(index, "what did she do with the violin") == ["b", "a"]
    terms = index.terms(KeywordQuery("what did she play"))
    assert terms["play"] > terms["what"]


def test_updates_and_deletes_are_searchable(index: KeywordIndex) -> None:
    index.write([text("a", "fox"), text("b", "fox")], (), 1)
    index.write([text("a", "hen")], ["b", "never there"], 2)
    assert found(index, "fox") == []
    assert found(index, "hen") == ["a"]
    assert (len(index), index.sequence) == (1, 2)


def test_type_filter_is_exact(index: KeywordIndex) -> None:
    types = ["A", "a", "a b", "a-b", "ab", ""]
    index.write([text(f"n{i}", "fox", kind) for i, kind in enumerate(types)], (), 1)
    for place, kind in enumerate(types):
        assert found(index, "fox", EntitySearchFilter(frozenset({kind}))) == [f"n{place}"]
    assert sorted(found(index, "fox", EntitySearchFilter(frozenset({"A", "a b"})))) == ["n0", "n2"]
    assert found(index, "fox", EntitySearchFilter(frozenset())) == []


def test_types_with_the_same_code_are_distinguished(index: KeywordIndex) -> None:
    codes: dict[int, str] = {}
    pairs = (
        (f"t{number}", codes.setdefault(keyword_index._type_code(f"t{number}"), f"t{number}")) for number in range(9999)
    )
    one, other = next((one, other) for one, other in pairs if one != other)
    for number in range(2):
        index.write([text(f"{kind}-{number}", "fox", kind) for kind in (one, other)], (), 1)
        kept = found(index, "fox", EntitySearchFilter(frozenset({one})))
        assert sorted(kept) == [f"{one}-{place}" for place in range(number + 1)]


def test_a_filter_returns_all_matches(index: KeywordIndex) -> None:
    index.write([text(f"n{i}", "fox", "rare" if i % 100 == 0 else "frequent") for i in range(1000)], (), 1)
    assert len(found(index, "fox", EntitySearchFilter(frozenset({"rare"})), limit=10)) == 10


def test_id_prefixes_may_contain_any_character(index: KeywordIndex) -> None:
    index.write([text(f"a{sign}b{place}", "fox") for place, sign in enumerate(ODD)], (), 1)
    for place, sign in enumerate(ODD):
        assert found(index, "fox", EntitySearchFilter(None, f"a{sign}"), limit=500) == [f"a{sign}b{place}"]
    assert len(found(index, "fox", EntitySearchFilter(None, "a"), limit=500)) == len(ODD)


@pytest.mark.parametrize("prefix", ["x" * 1024, "ü" * 512, "(" * 1024])
def test_long_id_prefixes(index: KeywordIndex, prefix: str) -> None:
    index.write([text(prefix, "fox"), text(prefix[:-1], "fox"), text(prefix[:-1] + "~", "fox")], (), 1)
    assert found(index, "fox", EntitySearchFilter(None, prefix)) == [prefix]


def test_id_prefix_excludes_the_next_prefix(index: KeywordIndex) -> None:
    index.write([text(name, "fox") for name in ("a", "ab", "ab\U0010ffff", "abc", "ac", "b", "Ab")], (), 1)
    assert sorted(found(index, "fox", EntitySearchFilter(None, "ab"))) == ["ab", "abc", "ab\U0010ffff"]


def test_filters_do_not_change_scores(index: KeywordIndex) -> None:
    index.write([text("a", "fox fox hen"), text("b", "fox")], (), 1)
    free = {hit.id: hit.score for hit in index.search(KeywordQuery("fox"), 9)}
    narrow = {
        hit.id: hit.score for hit in index.search(KeywordQuery("fox"), 9, EntitySearchFilter(frozenset({"t"}), "a"))
    }
    assert narrow["a"] == pytest.approx(free["a"])


SYNTAX = ['"', "(((", "a AND", "nofield:x", "content:/a.*/", "id:*", "\\", "-fox", "a^", "> 3", '"a b"~']


@pytest.mark.parametrize("query", SYNTAX)
def test_plain_text_is_never_parsed_as_syntax(index: KeywordIndex, query: str) -> None:
    index.write([text("a", "fox")], (), 1)
    index.search(KeywordQuery(query), 10)
    with pytest.raises(InvalidInput, match="query"):
        index.search(KeywordQuery(query, "syntax"), 10)


def test_syntax_reading_parses_the_query(index: KeywordIndex) -> None:
    index.write([text("a", "red fox", "x"), text("b", "brown fox", "y")], (), 1)

    def asked(query: str) -> list[str]:
        return sorted(hit.id for hit in index.search(KeywordQuery(query, "syntax"), 10))

    assert asked("fox -red") == ["b"]
    assert asked('"brown fox"') == ["b"]
    assert asked("type:x") == ["a"]
    assert found(index, "fox -red") == ["a", "b"]


def test_reopening_keeps_all_texts(folder: Path) -> None:
    KeywordIndex(folder).write([text("a", "fox")], (), 7)
    again = KeywordIndex(folder)
    assert (again.fresh, again.sequence, found(again, "fox")) == (False, 7, ["a"])


def _damages(folder: Path) -> Iterator[tuple[str, Path]]:
    files = sorted(path.name for path in folder.iterdir() if not path.name.startswith(".") and path.suffix != ".lock")
    yield from itertools.product(("flipped", "truncated", "deleted"), [folder / name for name in files])


def test_damage_is_detected(tmp_path: Path) -> None:
    KeywordIndex(tmp_path / "model").write([text("a", "fox")], (), 7)
    for number in range(len(list(_damages(tmp_path / "model")))):
        folder = tmp_path / str(number)
        KeywordIndex(folder).write([text("a", "fox")], (), 7)
        kind, path = list(_damages(folder))[number]
        match kind:
            case "flipped":
                flip(path, path.stat().st_size // 2)
            case "truncated":
                path.write_bytes(path.read_bytes()[:-1])
            case _:
                path.unlink()
        again = KeywordIndex(folder)
        assert (again.fresh, again.sequence, len(again)) == (True, 0, 0), (kind, path.name)
        again.write([text("b", "fox")], (), 1)
        assert found(again, "fox") == ["b"]


def test_a_kill_before_the_seal_empties_the_index(folder: Path) -> None:
    KeywordIndex(folder).write([text("a", "fox")], (), 7)
    (folder / INDEX_MANIFEST_FILE).unlink()
    again = KeywordIndex(folder)
    assert (again.fresh, again.sequence, len(again)) == (True, 0, 0)


def test_a_failed_write_changes_nothing_and_releases_the_lock(folder: Path, index: KeywordIndex) -> None:
    def entities() -> Iterator[IndexedEntityText]:
        yield text("b", "fox")
        raise RuntimeError("the end")

    index.write([text("a", "fox")], (), 1)
    # The error keeps the frame of the write alive until the end of the block.
    with pytest.raises(RuntimeError) as caught:
        index.write(entities(), (), 2)
    assert (found(index, "fox"), index.sequence) == (["a"], 1)
    index.write([text("c", "fox")], (), 2)
    assert sorted(found(index, "fox")) == ["a", "c"]
    with pytest.raises(RuntimeError) as again:
        index.write(entities(), (), 3)
    other = KeywordIndex(folder)
    other.write([text("d", "fox")], (), 1)
    assert found(other, "fox") == ["d"]
    assert caught.value is not again.value


def test_a_retry_after_a_failed_seal_duplicates_no_text(index: KeywordIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    before = IndexedEntityText("p", "t", "foxes", 1, until=3)
    past = IndexedEntityText("p", "t", "foxes", 3, until=5)

    def raise_disk_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for each in (before, past):
        with monkeypatch.context() as patched:
            patched.setattr(folder_manifest, "write_file_atomically", raise_disk_full)
            with pytest.raises(OSError, match="No space"):
                index.write([index.merge_with_predecessor(each)], (), 1)
        index.write([index.merge_with_predecessor(each)], (), 1)
        assert len(index) == 1


def test_two_thousand_entities_are_indexed(folder: Path, index: KeywordIndex) -> None:
    index.write((text(f"n{i}", f"number {i} word{i % 40}") for i in range(2000)), (), 1, bulk=True)
    assert len(index) == 2000
    assert sorted(found(index, "word7", limit=100)) == sorted(f"n{i}" for i in range(7, 2000, 40))
    assert len(KeywordIndex(folder)) == 2000
