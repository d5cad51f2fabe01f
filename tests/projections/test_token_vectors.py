"""Token vectors of turns, with the real model: which nodes have them, and what restarts, damage and erasing leave."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from kgserve.embedding.embedder import Embedder, HashingEmbedder, LocalEmbedder, load_embedder
from kgserve.embedding.token_embeddings import TokenVectors
from kgserve.graph.answers import SearchHit
from kgserve.graph.request_bodies import SearchRequest
from kgserve.graph.search.node_search import search_store_nodes
from kgserve.projections import text_indexes
from kgserve.projections.base import ProjectionEraseRequest
from kgserve.projections.text_indexes import CurrentAndPastTextIndexes
from kgserve.projections.token_vectors import conversation_turn_vectors
from kgserve.projections.token_vectors.conversation_turn_vectors import TABLE_FOLDER
from kgserve.projections.token_vectors.token_vector_table import TokenVectorTable
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.stores.open_store import OpenStore
from tests.embedding.prepared import model_settings
from tests.graphs import graph_of
from tests.projections.indexing import caught_up, indexed
from tests.stores.writing import NAME, copy_in_use, until, write

TURNS = """Ada: Did you get any rest after the move?
Ben: Barely. The boxes are everywhere and the cat hides behind them.
Ada: Four in March. They just learned to swim.
Ben: My nephew broke his wrist at the pool last summer, tell them to be careful.
Ada: I will. By the way, the physiotherapist says my knee is nearly healed.
Ben: Great news, so you can run again?
Ada: Short distances. I signed up for the five kilometres in June.
Ben: I could join you, I bought proper shoes.
Ada: Which ones?
Ben: The blue pair we saw at the market, half price.
Ada: Good choice. Did you sell the old bicycle?
Ben: Someone from Utrecht picked it up on Tuesday and paid cash.
Ada: So you have money for dinner!
Ben: Ha, yes. There is an Ethiopian place next to the library.""".splitlines()
IDS = [f"t{place}" for place in range(len(TURNS))]
QUESTION, ANSWER = "Which injury is Ada recovering from?", "t4"
NODES = WriteBatch(nodes=[NodeUpsert(place, IDS[place], "turn", text) for place, text in enumerate(TURNS)])
EDGES = WriteBatch(edges=[EdgeUpsert(place, (IDS[place], IDS[place + 1], "next")) for place in range(len(IDS) - 1)])
CONVERSATION = WriteBatch(nodes=NODES.nodes, edges=EDGES.edges)


@pytest.fixture(scope="module")
def embedder() -> Iterator[LocalEmbedder]:
    loaded = load_embedder(model_settings())
    assert isinstance(loaded, LocalEmbedder)
    yield loaded
    loaded.close()


class SharedEmbedder(HashingEmbedder):
    """The real model, which stays loaded when its indexes are closed."""

    degraded = False

    def __init__(self, embedder: LocalEmbedder) -> None:
        self.model_id, self.dimensions = embedder.model_id, embedder.dimensions
        self.token_projection = embedder.token_projection
        self.embed, self.embed_tokens = embedder.embed, embedder.embed_tokens


@contextmanager
def opened(data: Path, embedder: Embedder) -> Generator[tuple[OpenStore, CurrentAndPastTextIndexes]]:
    """Yield a store and its indexes, whose tokens are complete."""
    used = SharedEmbedder(embedder) if isinstance(embedder, LocalEmbedder) else embedder
    with indexed(data, used) as (pool, indexer), pool.lease(NAME, create=True) as store:
        yield store, indexer.of(store)


def complete(store: OpenStore, indexes: CurrentAndPastTextIndexes) -> TokenVectorTable | None:
    """Return the table once it has caught up."""
    caught_up(store, indexes)
    until(lambda: not indexes.vector.tokens.is_behind)
    return indexes.vector.tokens.table


def written(data: Path, embedder: Embedder, *batches: WriteBatch) -> None:
    with opened(data, embedder) as (store, indexes):
        write(store, *batches)
        complete(store, indexes)


def folder_of(data: Path) -> Path:
    return next(path for path in data.rglob("views") if path.is_dir()) / TABLE_FOLDER


def ids_of(table: TokenVectorTable | None) -> set[str]:
    assert table is not None
    return {*table.ids()}


def test_token_vectors_come_from_the_run_that_embeds_a_text(embedder: LocalEmbedder) -> None:
    texts = [*TURNS, "", "?!", "🦊", "word " * 400]
    found = embedder.embed_tokens(texts)
    assert np.array_equal(found.vectors, embedder.embed(texts))
    assert [len(tokens.pieces) for tokens in found.tokens[len(TURNS) :]] == [0, 0, 0, 254]
    alone = embedder.embed_tokens([TURNS[4]]).tokens[0]
    assert np.array_equal(alone.pieces, found.tokens[4].pieces)
    assert np.allclose(alone.vectors, found.tokens[4].vectors, atol=1e-3)
    assert np.allclose(np.linalg.norm(alone.vectors, axis=1), 1, atol=1e-5)


def test_codes_are_close_to_the_vectors(embedder: LocalEmbedder) -> None:
    projection = embedder.token_projection
    assert projection is not None
    vectors = np.concatenate([tokens.vectors for tokens in embedder.embed_tokens(TURNS).tokens])
    codes = projection.encode(vectors)
    assert codes.shape == (len(vectors), projection.code_bytes)
    assert codes.dtype == np.uint8
    similar = projection.similarities(vectors, codes)
    assert float(similar.diagonal().mean()) > 0.8
    assert float(np.abs(similar).max()) <= 1 + 1e-5
    assert projection.similarities(vectors, projection.encode(vectors[:0])).shape == (0, len(vectors))


@pytest.mark.parametrize("batches", [(CONVERSATION,), (NODES, EDGES)], ids=["at once", "relations later"])
def test_late_interaction_finds_the_answer(
    tmp_path: Path, embedder: LocalEmbedder, batches: tuple[WriteBatch, ...]
) -> None:
    with indexed(tmp_path, SharedEmbedder(embedder)) as (pool, indexer), pool.lease(NAME, create=True) as store:
        indexes = indexer.of(store)
        for each in batches:
            write(store, each)
            caught_up(store, indexes)
        assert ids_of(complete(store, indexes)) == {*IDS}

        def found(**options: Any) -> list[SearchHit]:
            return search_store_nodes(
                graph_of(pool, NAME, indexer), SearchRequest(query=QUESTION, explain=True, **options)
            ).hits

        first = found()[0]
        assert first.node.id == ANSWER
        assert first.why is not None
        assert "tokens " in first.why
        assert found(late=False)[0].node.id != ANSWER
        assert not any("tokens" in (hit.why or "") for hit in found(late=False))
        assert [hit.node.id for hit in found(late=True)] == [hit.node.id for hit in found()]
        pages = [hit.node.id for offset in range(0, len(IDS), 4) for hit in found(limit=4, offset=offset)]
        assert pages == [hit.node.id for hit in found()]
        assert {hit.node.id for hit in found(types=["other"])} == set()


def test_stores_without_turns_have_no_token_vectors(tmp_path: Path, embedder: LocalEmbedder) -> None:
    written(tmp_path, embedder, NODES, WriteBatch(edges=[EdgeUpsert(0, ("t0", "t1", "answers"))]))
    assert not folder_of(tmp_path).exists()


def test_tokens_survive_a_restart(tmp_path: Path, embedder: LocalEmbedder, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, embedder, CONVERSATION)
    with opened(tmp_path, embedder) as (store, indexes):
        monkeypatch.setattr(indexes.vector.tokens, "_compute", lambda *_: pytest.fail("computed again"))
        assert ids_of(complete(store, indexes)) == {*IDS}


@pytest.mark.parametrize("harm", ["remove", "truncate", "flip", "older"])
def test_damaged_or_missing_tokens_are_computed_again(tmp_path: Path, embedder: LocalEmbedder, harm: str) -> None:
    if harm == "older":
        written(tmp_path, embedder, NODES, WriteBatch(edges=EDGES.edges[:3]))
        shutil.copytree(folder_of(tmp_path), tmp_path / "older")
        written(tmp_path, embedder, WriteBatch(edges=EDGES.edges[3:]))
        shutil.rmtree(folder_of(tmp_path))
        (tmp_path / "older").rename(folder_of(tmp_path))
    else:
        written(tmp_path, embedder, CONVERSATION)
    path = folder_of(tmp_path) / "tokens.npy"
    data = path.read_bytes()
    if harm == "remove":
        shutil.rmtree(folder_of(tmp_path))
    elif harm != "older":
        path.write_bytes(data[:-5] if harm == "truncate" else data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
    with opened(tmp_path, embedder) as (store, indexes):
        table = complete(store, indexes)
        assert ids_of(table) == {*IDS}
    assert len(np.load(folder_of(tmp_path) / "tokens.npy")) > len(IDS)


def test_turns_with_an_old_text_have_tokens(
    tmp_path: Path, embedder: LocalEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation_turn_vectors, "MAX_RECENT_TEXTS", 2)
    with opened(tmp_path, embedder) as (store, indexes):
        write(store, CONVERSATION)
        complete(store, indexes)
        oldest = TURNS[-2]
        more = [NodeUpsert(0, "old", "turn", oldest), NodeUpsert(1, "new", "turn", "Ada: It is a short walk.")]
        write(store, WriteBatch(nodes=more, edges=[EdgeUpsert(0, ("old", "new", "next"))]))
        assert ids_of(complete(store, indexes)) == {*IDS, "old", "new"}


def test_turns_whose_relations_came_late_have_tokens_after_a_kill(
    tmp_path: Path, embedder: LocalEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, copied = tmp_path / "data", tmp_path / "copied"
    with opened(data, embedder) as (store, indexes):
        write(store, CONVERSATION, WriteBatch(nodes=[NodeUpsert(0, "late", "turn", "Ada: See you there.")]))
        complete(store, indexes)
        with monkeypatch.context() as patched:
            # Each step is saved, and no tokens are computed before the kill.
            patched.setattr(text_indexes, "INDEX_SAVE_INTERVAL_SECONDS", -1.0)
            patched.setattr(indexes.vector.tokens, "embed_waiting", lambda *_: None)
            answers = [NodeUpsert(0, "note", "note", "A note")]
            write(store, WriteBatch(nodes=answers, edges=[EdgeUpsert(0, (IDS[-1], "late", "next"))]))
            caught_up(store, indexes)
            copy_in_use(data, copied)
    with opened(copied, embedder) as (store, indexes):
        assert ids_of(complete(store, indexes)) == {*IDS, "late"}


def test_changed_and_deleted_turns(tmp_path: Path, embedder: LocalEmbedder) -> None:
    with opened(tmp_path, embedder) as (store, indexes):
        write(store, CONVERSATION)
        table = complete(store, indexes)
        assert table is not None
        before = table.read(["t0", "t1"])
        write(store, WriteBatch(nodes=[NodeUpsert(0, "t0", "turn", "Ada: Hello!")]))
        complete(store, indexes)
        after = table.read(["t0", "t1", "missing"])
        assert after.counts.tolist() == [2, before.counts[1], 0]
        assert np.array_equal(after.codes[2:], before.codes[before.counts[0] :])


def test_erased_turns_leave_no_tokens(tmp_path: Path, embedder: LocalEmbedder) -> None:
    with opened(tmp_path, embedder) as (store, indexes):
        write(store, CONVERSATION)
        complete(store, indexes)
        indexes.vector.erase(ProjectionEraseRequest((ANSWER,), (), store.state.sequence))
        assert ids_of(indexes.vector.tokens.table) == {*IDS} - {ANSWER}
        files = [path.read_bytes() for path in folder_of(tmp_path).iterdir()]
        assert files
        assert not any(b"\xa2" + ANSWER.encode() in data for data in files)


def test_the_setting_decides_which_nodes_have_tokens(tmp_path: Path, embedder: LocalEmbedder) -> None:
    with opened(tmp_path, embedder) as (store, indexes):
        write(store, CONVERSATION, WriteBatch(nodes=[NodeUpsert(0, "other", "note", "A note about knees")]))
        assert ids_of(complete(store, indexes)) == {*IDS}
        for setting, wanted in (("all", {*IDS, "other"}), ("turns", {*IDS}), ("none", None)):
            store.change_settings(lambda old, setting=setting: msgspec.structs.replace(old, late_interaction=setting))
            until(lambda setting=setting: not indexes.vector.tokens.has_other_setting)
            table = complete(store, indexes)
            assert (None if table is None else {*table.ids()}) == wanted
    assert not folder_of(tmp_path).exists()


def test_other_models_have_no_tokens(tmp_path: Path, embedder: LocalEmbedder) -> None:
    written(tmp_path, embedder, CONVERSATION)
    with indexed(tmp_path) as (pool, indexer), pool.lease(NAME) as store:
        indexer.reindex(store)
        assert complete(store, indexer.of(store)) is None
        hits = search_store_nodes(graph_of(pool, NAME, indexer), SearchRequest(query=QUESTION)).hits
        assert {hit.node.id for hit in hits} <= {*IDS}
    assert not folder_of(tmp_path).exists()


def test_rarity_counts_nodes_with_a_word_piece(tmp_path: Path, embedder: LocalEmbedder) -> None:
    projection = embedder.token_projection
    assert projection is not None
    table = TokenVectorTable(tmp_path / "table", projection)
    for node_id, pieces in (("a", [7, 7, 9]), ("b", [7]), ("c", [])):
        vectors = np.ones((len(pieces), projection.no_tokens.vectors.shape[1]), np.float32)
        table.put(node_id, table.encode(TokenVectors(np.array(pieces, np.uint16), vectors)))
    asked = np.array([7, 9, 11], np.uint16)
    expected = table.rarity(asked)
    assert expected[0] < expected[1] < expected[2]
    table.save(5, complete="turns")
    again = TokenVectorTable(tmp_path / "table", projection)
    assert np.array_equal(again.rarity(asked), expected)
    assert (again.sequence, again.complete, len(again)) == (5, "turns", 3)
    again.remove(["a", "unknown"])
    again.put("b", table.encode(projection.no_tokens))
    assert again.rarity(asked)[0] == again.rarity(asked)[2]
