from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.http.serving import accepted, refusal

MODES = ("hybrid", "keyword", "semantic", "graph")
FARM: dict[str, Any] = {
    "nodes": [
        {"id": "animal/fox", "type": "animal", "content": "the quick brown fox"},
        {"id": "animal/hen", "type": "animal", "content": "a hen that fears the fox"},
        {"id": "place/barn", "type": "place", "content": "the barn where the hens sleep"},
        {"id": "place/mill", "type": "place", "content": "an old mill by the river"},
        {"id": "silent", "type": "place"},
    ],
    "edges": [
        {"from": "animal/hen", "to": "place/barn", "relation_type": "LIVES_IN"},
        {"from": "place/barn", "to": "place/mill", "relation_type": "NEAR", "weight": 0.5},
    ],
}


@pytest.fixture
def farm(http: httpx.Client, api: str) -> str:
    sequence = accepted(http.post(f"{api}/inject", json=FARM))["sequence"]
    ask(http, api, "fox", at_least=sequence)
    return api


def ask(http: httpx.Client, api: str, query: str, **fields: Any) -> dict[str, Any]:
    return accepted(http.post(f"{api}/search", json={"query": query, **fields}))


def ids(answer: dict[str, Any]) -> list[str]:
    return [hit["node"]["id"] for hit in answer["hits"]]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_finds_the_best_node_first(http: httpx.Client, farm: str, mode: str) -> None:
    answer = ask(http, farm, "quick brown fox", mode=mode)
    assert ids(answer)[0] == "animal/fox"
    assert "silent" not in ids(answer)
    assert answer["degraded"] is True
    assert answer["index_sequence"] == 1
    scores = [hit["score"] for hit in answer["hits"]]
    assert scores == sorted(scores, reverse=True)


def test_search_score_components(http: httpx.Client, farm: str) -> None:
    [keyword] = ask(http, farm, "quick", mode="keyword")["hits"]
    assert keyword["keyword_score"] == keyword["score"] > 0
    assert "semantic_score" not in keyword
    semantic = ask(http, farm, "quick", mode="semantic")["hits"][0]
    assert semantic["semantic_score"] == semantic["score"]
    assert "keyword_score" not in semantic


@pytest.mark.parametrize("mode", MODES)
def test_filters(http: httpx.Client, farm: str, mode: str) -> None:
    assert set(ids(ask(http, farm, "hen barn fox", mode=mode, types=["place"]))) <= {"place/barn", "place/mill"}
    assert set(ids(ask(http, farm, "hen barn fox", mode=mode, id_prefix="animal/"))) == {"animal/fox", "animal/hen"}
    none: dict[str, Any] = {"types": [], "kinds": [], "tags": [], "attributes": {}}
    assert ids(ask(http, farm, "hen barn fox", mode=mode, **none)) == ids(ask(http, farm, "hen barn fox", mode=mode))


@pytest.mark.parametrize(
    ("path", "body", "none"),
    [
        ("{}/traverse", {"start_id": "animal/hen"}, {"relation_types": [], "edge_kinds": []}),
        ("{}/graph", {"ids": ["animal/hen"], "depth": 1}, {"relation_types": [], "types": []}),
        ("{}/context", {"query": "fox"}, {"types": []}),
        ("/api/memories/search", {"query": "fox", "mode": "keyword"}, {"types": [], "tags": []}),
    ],
)
def test_empty_lists_filter_nothing(http: httpx.Client, farm: str, path: str, body: Any, none: Any) -> None:
    store = {"store": farm.rpartition("/")[2]}
    made = accepted(http.post("/api/memories", params=store, json={"content": "A fox likes hens."}), 201)
    ask(http, farm, "fox", at_least=made["sequence"])
    params = store if path.startswith("/api/memories") else {}
    found = [accepted(http.post(path.format(farm), params=params, json=body | more)) for more in ({}, none)]
    for each in found:
        each.pop("took_ms", None)
    # A search counts as an access to its hits.
    shown = [[hit["id"] for hit in each["hits"]] if "hits" in each else each for each in found]
    assert shown[0] == shown[1] != []


def test_min_similarity(http: httpx.Client, farm: str) -> None:
    assert len(ask(http, farm, "quick brown fox", mode="semantic")["hits"]) == 4
    near = ask(http, farm, "quick brown fox", mode="semantic", min_similarity=0.5)["hits"]
    assert [hit["node"]["id"] for hit in near] == ["animal/fox"]


@pytest.mark.parametrize(("limit", "wanted"), [(-5, 1), (0, 1), (3, 3), (100, 100), (1000, 100)])
def test_limits_are_brought_into_range(http: httpx.Client, api: str, limit: int, wanted: int) -> None:
    many(http, api, 120)
    assert len(ids(ask(http, api, "fox", at_least=1, limit=limit, neighbours=False))) == wanted


@pytest.mark.parametrize("mode", ["hybrid", "keyword", "semantic"])
def test_search_pages_are_disjoint_and_complete(http: httpx.Client, api: str, mode: str) -> None:
    many(http, api, 330)
    pages = [ids(ask(http, api, "fox", at_least=1, mode=mode, limit=30, offset=at)) for at in range(0, 360, 30)]
    found = [each for page in pages for each in page]
    assert len(found) == 330
    assert set(found) == {f"n{i}" for i in range(330)}
    assert pages[-1] == []


def many(http: httpx.Client, api: str, count: int) -> None:
    nodes = [{"id": f"n{i}", "type": "t", "content": f"fox {'den ' * (i % 7)} {i // 3}"} for i in range(count)]
    edges = [{"from": f"n{i}", "to": f"n{i + 1}", "relation_type": "next"} for i in range(0, count - 1, 2)]
    accepted(http.post(f"{api}/inject", json={"nodes": nodes, "edges": edges}))


@pytest.mark.parametrize("mode", ["hybrid", "keyword"])
@pytest.mark.parametrize("field", ["summary", "name", "id"])
def test_a_node_with_the_query_as_its_title_is_first(http: httpx.Client, api: str, mode: str, field: str) -> None:
    text = "Accounts of the department for goods and wages. " * 30
    titled = {"id": "p", "type": "topic", "content": text, field: "Office Payments"}
    sentences = [f"Office payments: the office payments of week {number}" for number in range(15)]
    others = [{"id": f"s{number}", "type": "note", "content": each} for number, each in enumerate(sentences)]
    wrote = accepted(http.post(f"{api}/inject", json={"nodes": [titled, *others]}))["sequence"]

    def found(query: str, **options: Any) -> list[Any]:
        asked = {"query": query, "mode": mode, "at_least": wrote, "explain": True, **options}
        return accepted(http.post(f"{api}/search", json=asked))["hits"]

    [first, *_] = hits = found("office payments")
    assert first["node"]["id"] == titled["id"]
    assert first["score"] == max(each["score"] for each in hits)
    assert first["why"].startswith("title")
    pages = [
        each["node"]["id"] for offset in range(0, 16, 5) for each in found("OFFICE payments ", limit=5, offset=offset)
    ]
    assert pages == [each["node"]["id"] for each in hits]
    assert not any(each["why"].startswith("title") for each in found("payments of the office"))


def test_own_writes_are_read(http: httpx.Client, farm: str) -> None:
    for number in range(10):
        node = {"id": "new", "type": "t", "content": f"word{number}"}
        sequence = accepted(http.post(f"{farm}/inject", json={"nodes": [node]}))["sequence"]
        for mode in ("keyword", "hybrid", "semantic"):
            answer = ask(http, farm, f"word{number}", mode=mode, at_least=sequence, limit=1)
            assert ids(answer) == ["new"]
            assert answer["index_sequence"] >= sequence
    assert "at_least" in refusal(http.post(f"{farm}/search", json={"query": "x", "at_least": 999}), 400)["detail"]


def test_deleted_nodes_are_never_found(http: httpx.Client, farm: str) -> None:
    for name in ("animal%2Ffox", "animal%2Fhen"):
        accepted(http.delete(f"{farm}/nodes/{name}"))
        for mode in MODES:
            assert name.replace("%2F", "/") not in ids(ask(http, farm, "the fox and the hen", mode=mode))


def test_explain(http: httpx.Client, farm: str) -> None:
    hits = ask(http, farm, "fox", explain=True)["hits"]
    assert hits[0]["why"].startswith("words ")
    assert all("why" in hit for hit in hits)
    assert not any("why" in hit for hit in ask(http, farm, "fox")["hits"])


def test_alpha_weighs_words_against_meaning(http: httpx.Client, farm: str) -> None:
    def scores(alpha: float) -> list[tuple[float, float, float]]:
        hits = ask(http, farm, "hen fox", alpha=alpha, neighbours=False)["hits"]
        return [(hit["score"], hit.get("keyword_score", 0.0), hit.get("semantic_score", 0.0)) for hit in hits]

    words, meaning = scores(1.0), scores(0.0)
    top = max(keyword for _, keyword, _ in words)
    assert all(score == pytest.approx(keyword / top) for score, keyword, _ in words)
    assert all(score == pytest.approx(max(similarity, 0.0), abs=1e-5) for score, _, similarity in meaning)
    refusal(http.post(f"{farm}/search", json={"query": "x", "alpha": 1.5}), 400)


def test_reciprocal_rank_fusion(http: httpx.Client, farm: str) -> None:
    hits = ask(http, farm, "quick brown fox", fusion="rrf", neighbours=False)["hits"]
    assert hits[0]["node"]["id"] == "animal/fox"
    assert hits[0]["score"] == pytest.approx(1.0)


def test_graph_search_from_a_start_node(http: httpx.Client, farm: str) -> None:
    answer = ask(http, farm, "mill barn", mode="graph", start_id="animal/hen")
    assert {hit["node"]["id"]: hit["hops"] for hit in answer["hits"]} == {
        "animal/hen": 0,
        "place/barn": 1,
        "place/mill": 2,
    }
    near = ask(http, farm, "mill barn", mode="graph", start_id="animal/hen", depth=1)
    assert "place/mill" not in ids(near)
    wrong = refusal(http.post(f"{farm}/search", json={"query": "x", "mode": "graph", "start_id": "nobody"}), 400)
    assert wrong["errors"][0]["path"] == "start_id"


def test_search_syntax_is_opt_in(http: httpx.Client, farm: str) -> None:
    assert ids(ask(http, farm, '+fox -"brown fox"', mode="keyword", syntax=True)) == ["animal/hen"]
    assert len(ids(ask(http, farm, '+fox -"brown fox" ((', mode="keyword"))) == 2
    for query in ("((", "id:*"):
        refusal(http.post(f"{farm}/search", json={"query": query, "syntax": True}), 400)


@pytest.mark.parametrize("path", ["search", "search/batch", "context"])
def test_search_in_a_missing_store(http: httpx.Client, api: str, path: str) -> None:
    body = {"queries": [{"query": "x"}]} if path == "search/batch" else {"query": "x"}
    refusal(http.post(f"{api}/{path}", json=body), 404)


def test_search_batches_merge_by_reciprocal_rank(http: httpx.Client, farm: str) -> None:
    queries = [
        {"query": "fox", "mode": "keyword"},
        {"query": "hen", "mode": "keyword"},
        {"query": "zebra", "mode": "keyword"},
    ]
    answer = accepted(http.post(f"{farm}/search/batch", json={"queries": queries}))
    ranks: dict[str, list[tuple[int, int]]] = {}
    for place, query in enumerate(queries):
        for rank, each in enumerate(ids(ask(http, farm, **query)), 1):
            ranks.setdefault(each, []).append((place, rank))
    for hit in answer["hits"]:
        mine = ranks[hit["node"]["id"]]
        assert hit["score"] == pytest.approx(sum(1 / (60 + rank) for _, rank in mine))
        assert hit["queries_matched"] == [place for place, _ in mine]
    assert (answer["query_count"], answer["unique_hits"], answer["per_query_hits"]) == (3, 3, [2, 2, 0])
    assert ids(answer)[0] == "animal/hen"


def test_batch_limits(http: httpx.Client, api: str) -> None:
    many(http, api, 150)

    def batch(total: int | None, each: int | None, variants: int = 1) -> tuple[int, list[int]]:
        query = {"query": "fox", "mode": "keyword"} | ({} if each is None else {"limit": each})
        body: dict[str, Any] = {"queries": [query] * variants, "at_least": 1}
        answer = accepted(http.post(f"{api}/search/batch", json=body | ({} if total is None else {"limit": total})))
        return len(answer["hits"]), answer["per_query_hits"]

    assert batch(None, None) == (20, [20])
    assert batch(0, -1, 8) == (20, [20] * 8)
    assert batch(500, 500) == (50, [50])
    assert batch(1, 1, 2) == (1, [1, 1])
    for count in (0, 9):
        refusal(http.post(f"{api}/search/batch", json={"queries": [{"query": "fox"}] * count}), 400)


def test_ties_of_a_batch_keep_the_order_of_appearance(http: httpx.Client, farm: str) -> None:
    for one, other in (("mill", "quick"), ("quick", "mill")):
        queries = [{"query": word, "mode": "keyword"} for word in (one, other)]
        answer = accepted(http.post(f"{farm}/search/batch", json={"queries": queries}))
        assert ids(answer) == [{"mill": "place/mill", "quick": "animal/fox"}[word] for word in (one, other)]


@pytest.mark.parametrize("shape", ["markdown", "json"])
def test_context_stays_within_its_budget(http: httpx.Client, farm: str, shape: str) -> None:
    whole = accepted(http.post(f"{farm}/context", json={"query": "hen barn", "format": shape}))
    assert "LIVES_IN" in whole["text"]
    assert not whole["truncated"]
    assert all(each in whole["text"] for each in whole["ids"])
    for budget in (1, 10, 20, 40, 80):
        part = accepted(http.post(f"{farm}/context", json={"query": "hen barn", "format": shape, "budget": budget}))
        assert part["tokens"] <= budget
        assert part["ids"] == whole["ids"][: len(part["ids"])]
