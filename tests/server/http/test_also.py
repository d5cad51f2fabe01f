"""Recall from several stores: results, and what a key for one of them sees of the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

import httpx
import pytest

from tests.platform.access.keys import audited, client, given
from tests.server.http.serving import RunningServer, accepted, refusal
from tests.server.mcp.talking import Stateless

Json = dict[str, Any]

QUERY = "which database do we use"
MINE = "We use the database heron at home."
OURS = "The web shop uses the database pelican."
SECRET = "pelican"
_numbers = count(1)


class Two(NamedTuple):
    """Two stores, a client with a key for each, and one with a key for both."""

    mine: str
    ours: str
    of_mine: httpx.Client
    of_ours: httpx.Client
    of_both: httpx.Client
    reading: httpx.Client


@pytest.fixture
def two(keyed: RunningServer, admin: httpx.Client) -> Iterator[Two]:
    number = next(_numbers)
    mine, ours = f"mine-{number}", f"ours-{number}"
    for store, content in ((mine, MINE), (ours, OURS)):
        retained(admin, store, content)
        retained(admin, store, "The bird feeder is empty.")
    clients = [client(keyed.url, given(keyed.data, "write", stores)) for stores in ([mine], [ours], [mine, ours])]
    clients.append(client(keyed.url, given(keyed.data, "read", [mine, ours])))
    yield Two(mine, ours, *clients)
    for each in clients:
        each.close()


def retained(http: httpx.Client, store: str, content: str, **more: Any) -> None:
    entities = [{"name": content.rsplit(maxsplit=1)[-1].strip("."), "entity_type": "thing"}]
    body = {"content": content, "entities": entities, **more}
    done = accepted(http.post("/api/v1/retain", params={"store": store}, json=body))
    settled = {"q": "anything", "store": store, "at_least": done["sequence"], "touch": "false"}
    assert http.get("/api/v1/recall", params=settled).status_code == 200


def recalled(http: httpx.Client, store: str, **more: Any) -> Json:
    body = {"query": QUERY, "touch": False, **more}
    return accepted(http.post("/api/memories/search", params={"store": store}, json=body))


def used(http: httpx.Client, store: str, content: str) -> int:
    page = accepted(http.get("/api/memories", params={"store": store}))
    [memory] = [each for each in page["memories"] if each["content"] == content]
    return memory["access_count"]


def test_recall_ranks_memories_of_several_stores(two: Two) -> None:
    found = recalled(two.of_both, two.mine, also=[two.ours, two.mine], mode="keyword")
    assert {(each["content"], each["store"]) for each in found["hits"]} == {(MINE, two.mine), (OURS, two.ours)}
    scores = [each["score"] for each in found["hits"]]
    assert scores == sorted(scores, reverse=True)
    one, other = (recalled(two.of_both, two.mine, also=[two.ours], limit=1, offset=each) for each in (0, 1))
    both = recalled(two.of_both, two.mine, also=[two.ours], limit=2)
    assert [each["hits"][0]["id"] for each in (one, other)] == [each["id"] for each in both["hits"]]
    assert "store" not in recalled(two.of_both, two.mine)["hits"][0]


def test_word_weights_span_all_stores(two: Two, admin: httpx.Client) -> None:
    """The best hit of a store that contains few of the words ranks below the best of all."""
    crates = [{"content": f"Crate {at} is in hall {at % 7}.", "dedup": "off"} for at in range(200)]
    for store in (two.mine, two.ours):
        # One word of a few memories has a low weight in any store.
        accepted(admin.post("/api/v1/retain/batch", params={"store": store}, json={"items": crates}))
    retained(admin, two.mine, "A spider made the web.")
    retained(admin, two.ours, "The old shop did not use a database at all.")
    both = recalled(two.of_both, two.mine, query="which database does the web shop use", alpha=1, also=[two.ours])
    assert both["hits"][0]["content"] == OURS
    assert max(each["score"] for each in both["hits"] if each["store"] == two.mine) < 0.8 * both["hits"][0]["score"]


def test_limits_apply_to_all_stores_together(two: Two, admin: httpx.Client) -> None:
    for store in (two.mine, two.ours):
        retained(admin, store, f"A faded database of {store}.", created_at="2020-01-01T00:00:00Z")
    found = recalled(two.of_both, two.mine, also=[two.ours], mode="keyword", budget=12)
    assert len(found["hits"]) == 1
    assert found["withheld"] == {"below_confidence": 2, "over_budget": 1}
    assert len(recalled(two.of_both, two.mine, also=[two.ours], limit=1)["hits"]) == 1


def test_a_hit_counts_as_used_in_its_store_if_the_key_may_write(two: Two, admin: httpx.Client) -> None:
    recalled(two.reading, two.mine, also=[two.ours], touch=True)
    assert (used(admin, two.mine, MINE), used(admin, two.ours, OURS)) == (0, 0)
    found = recalled(two.of_both, two.mine, also=[two.ours], touch=True)
    assert (used(admin, two.mine, MINE), used(admin, two.ours, OURS)) == (1, 1)
    assert all(each["access_count"] == 1 for each in found["hits"])
    recalled(two.of_both, two.mine, also=[two.ours], touch=True, limit=1)
    assert used(admin, two.mine, MINE) + used(admin, two.ours, OURS) == 3


def test_entity_filter_needs_one_store_with_the_entity(two: Two) -> None:
    found = recalled(two.of_both, two.mine, also=[two.ours], entity="pelican")
    assert [each["store"] for each in found["hits"]] == [two.ours]
    missing = two.of_both.post(
        "/api/memories/search", params={"store": two.mine}, json={"query": QUERY, "also": [two.ours], "entity": "owl"}
    )
    assert "owl" in refusal(missing, 404)["detail"]


def test_missing_default_store_is_skipped(two: Two, keyed: RunningServer) -> None:
    with client(keyed.url, given(keyed.data, "write", [two.mine, "default"])) as http:
        assert http.get("/api/v1/recall", params={"q": QUERY}).json() == []
        [found] = http.get("/api/v1/recall", params={"q": QUERY, "also": two.mine, "limit": 1}).json()
        assert found["content"] == MINE
        refusal(http.get("/api/v1/recall", params={"q": QUERY, "also": "absent"}), 404)


def test_context_of_several_stores(two: Two) -> None:
    asked = {"query": QUERY, "also": [two.ours], "types": ["fact"]}
    made = accepted(two.of_both.post(f"/api/memory/{two.mine}/context", json=asked))
    assert set(made["stores"]) == {two.mine, two.ours}
    assert len(made["stores"]) == len(made["ids"])
    assert f"in {two.ours}) The web shop" in made["text"]
    small = accepted(two.of_both.post(f"/api/memory/{two.mine}/context", json={**asked, "budget": 40}))
    assert small["truncated"]
    assert small["tokens"] <= 40


def test_options_not_allowed_for_several_stores(two: Two) -> None:
    for wrong, path in (
        ({"as_of": 1}, "as_of"),
        ({"offset": 2_000}, "offset"),
        ({"also": ["no name"]}, ""),
        ({"also": ["x"] * 16}, "also"),
    ):
        body = {"query": QUERY, "also": [two.ours], **wrong}
        answer = refusal(two.of_both.post("/api/memories/search", params={"store": two.mine}, json=body), 400)
        assert path in answer["detail"]
    then = {"as_of": "2020-01-01T00:00:00Z"}
    assert recalled(two.of_both, two.mine, also=[two.ours], **then)["hits"] == []


ABSENT = "absent-9"


def asks(two: Two, other: str) -> Iterator[httpx.Response]:
    """Send the same question about another store to every route that accepts one."""
    http, mine = two.of_mine, {"store": two.mine}
    body = {"query": QUERY, "also": [other]}
    yield http.get("/api/v1/recall", params={**mine, "q": QUERY, "also": other})
    yield http.post("/api/v1/recall", params=mine, json=body)
    yield http.get("/api/memories/search", params={**mine, "q": QUERY, "also": other})
    yield http.post("/api/memories/search", params=mine, json=body)
    yield http.post(f"/api/memory/{two.mine}/context", json=body)


@pytest.mark.abuse(22, 23)
def test_inaccessible_store_looks_missing(two: Two, keyed: RunningServer) -> None:
    """ABUSE 22 and 23."""
    hidden, absent = ([refusal(each, 404) for each in asks(two, other)] for other in (two.ours, ABSENT))
    for one, other in zip(hidden, absent, strict=True):
        assert one["detail"] == f"there is no store {two.ours!r}"
        assert {**one, "detail": "", "instance": ""} == {**other, "detail": "", "instance": ""}
    assert any(line.get("store") == two.ours and line["outcome"] == "404" for line in audited(keyed.data))
    agent = Stateless(two.of_mine)
    for tool in ("recall", "get_context"):
        texts = [
            agent.call(tool, {"query": QUERY, "index": two.mine, "also": [other]})["content"][0]["text"]
            for other in (two.ours, ABSENT)
        ]
        assert texts[0].replace(two.ours, ABSENT) == texts[1]
        assert "there is no store" in texts[0]


def test_no_data_of_inaccessible_stores_leaks(two: Two, keyed: RunningServer) -> None:
    """In answers, lists, counts, proposals, events, tools and resources."""
    http, mine = two.of_mine, {"store": two.mine}
    told = [
        http.get(path, params=mine).text
        for path in (
            *(f"/api/{each}" for each in ("memories", "entities", "relations", "memories/consolidations")),
            *(f"/api/analytics/{each}" for each in ("overview", "growth", "types", "tags", "confidence")),
        )
    ]
    told += [http.get("/api/memory").text, http.get(f"/api/memory/{two.mine}/stats").text]
    told += [http.post("/api/v1/reflect", params=mine, json={"dry_run": dry}).text for dry in (True, False)]
    told += [http.post("/api/v1/forget", params=mine, json={"query": "database"}).text]
    told += [http.get("/api/v1/recall", params={**mine, "q": "web shop", "min_confidence": 0}).text]
    agent = Stateless(http)
    for tool, arguments in (
        ("recall", {"query": "web shop"}),
        ("get_context", {"query": "web shop"}),
        ("describe_store", {}),
        ("get_memory_stats", {}),
        ("list_entities", {}),
        ("reflect", {"dry_run": True}),
    ):
        told.append(str(agent.call(tool, {"index": two.mine, **arguments})))
    told.append(str(agent.call("list_stores", {})))
    told.append(agent.post("resources/list", {}).text)
    for uri in ("kgserve://stores", f"kgserve://{two.mine}", f"kgserve://{two.ours}"):
        told.append(
            agent.post("resources/read", {"uri": uri}, mcp_name=uri).text.replace(f"'{two.ours}'", "").replace(uri, "")
        )
    with http.stream("GET", "/api/events", headers={"last-event-id": "*:0-0"}) as stream:
        retained(two.of_ours, two.ours, f"Another {SECRET}.")
        retained(http, two.mine, "The last heron.")
        for line in stream.iter_lines():
            told.append(line)
            if "The last heron" in line:
                break
    assert any("heron" in each for each in told)
    assert not [each for each in told if SECRET in each or two.ours in each]


def test_recall_includes_recent_writes_of_others(two: Two) -> None:
    """Within a time limit, which a busy machine may reach occasionally."""
    seen = 0
    for number in range(20):
        content = f"Walrus {number} plays chess."
        answer = two.of_mine.post("/api/v1/retain", params={"store": two.mine}, json={"content": content})
        accepted(answer)
        hits = recalled(two.of_both, two.ours, query=f"walrus {number}", also=[two.mine], mode="keyword")["hits"]
        seen += any(each["content"] == content for each in hits)
    assert seen > 10


def test_query_alias_of_q(two: Two) -> None:
    http, mine = two.of_mine, {"store": two.mine, "touch": "false"}
    by_q, by_query, by_both = (
        http.get("/api/v1/recall", params={**mine, **names}).json()
        for names in ({"q": QUERY}, {"query": QUERY}, {"q": QUERY, "query": QUERY})
    )
    assert [each["id"] for each in by_q] == [each["id"] for each in by_query] == [each["id"] for each in by_both] != []
    for names, named in (({}, "q"), ({"q": QUERY, "query": "another"}, "query")):
        problem = refusal(http.get("/api/v1/recall", params={**mine, **names}), 400)
        assert [each["path"] for each in problem["errors"]] == [named]
