from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.cli.running import serving
from tests.server.http.serving import accepted, refusal


@pytest.fixture
def written(http: httpx.Client, api: str) -> list[str]:
    """Four commits, and their times from before the first on, as the server reports them."""
    batches: list[dict[str, Any]] = [
        {"nodes": [{"id": "a/b", "type": "t", "content": "one"}, {"id": "c", "type": "u"}]},
        {"nodes": [{"id": "a/b", "content": "two"}], "edges": [{"from": "a/b", "to": "c", "relation_type": "R"}]},
        {"nodes": [{"id": "d", "type": "t"}], "edges": [{"from": "c", "to": "d", "relation_type": "R"}]},
    ]
    for batch in batches:
        accepted(http.post(f"{api}/inject", json=batch))
    accepted(http.delete(f"{api}/nodes/c"))
    page = accepted(http.get(f"{api}/changes"))
    return ["1970-01-01T00:00:00Z", *(entry["time"] for entry in page["changes"])]


def test_node_as_of_a_time(http: httpx.Client, api: str, written: list[str]) -> None:
    for number, contents in enumerate([None, "one", "two", "two", "two"]):
        for as_of in (f"{number}", written[number]):
            answer = http.get(f"{api}/nodes/a%2Fb", params={"as_of": as_of})
            if contents is None:
                assert "as of" in refusal(answer, 404)["detail"]
                continue
            found = accepted(answer)
            assert found["node"]["content"] == contents
            assert [edge["to"] for edge in found["outgoing"]] == (["c"] if number in (2, 3) else [])


def test_list_pages_as_of_a_time(http: httpx.Client, api: str, written: list[str]) -> None:
    for number, wanted in enumerate([[], ["a/b", "c"], ["a/b", "c"], ["a/b", "c", "d"], ["a/b", "d"]]):
        found: list[str] = []
        cursor = ""
        while True:
            page = accepted(
                http.get(f"{api}/nodes", params={"as_of": written[number], "limit": 1, "cursor": cursor} if cursor
                         else {"as_of": written[number], "limit": 1})
            )  # fmt: skip
            found += [node["id"] for node in page["nodes"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert found == wanted
    page = accepted(http.get(f"{api}/nodes", params={"as_of": "3", "type": "u"}))
    assert [node["id"] for node in page["nodes"]] == ["c"]


def test_traversal_as_of_a_time(http: httpx.Client, api: str, written: list[str]) -> None:
    assert len(written) == 5
    for number, wanted in enumerate([[], ["a/b"], ["a/b", "c"], ["a/b", "c", "d"], ["a/b"]]):
        for as_of in (f"{number}", number):
            body = {"start_id": "a/b", "depth": 2, "as_of": as_of}
            found = accepted(http.post(f"{api}/traverse", json=body))
            assert [node["id"] for node in found["nodes"]] == wanted
            assert found["sequence"] == number


def test_export_as_of_a_time(http: httpx.Client, api: str, written: list[str]) -> None:
    now, then = http.get(f"{api}/export"), http.get(f"{api}/export", params={"as_of": written[4]})
    assert sorted(then.content.splitlines()) == sorted(now.content.splitlines())
    assert then.headers["kgserve-sequence"] == "4"
    before = http.get(f"{api}/export", params={"as_of": "3"})
    assert before.headers["kgserve-sequence"] == "3"
    lines = [msgspec.json.decode(line) for line in before.content.splitlines()]
    assert [line.get("id") or line["from"] for line in lines] == ["a/b", "c", "d", "a/b", "c"]


def test_history_versions_and_revert(http: httpx.Client, api: str, written: list[str]) -> None:
    page = accepted(http.get(f"{api}/nodes/a%2Fb/history", params={"limit": 1}))
    (newest,) = page["states"]
    assert (page["id"], newest["from_sequence"], newest["recorded_from"]) == ("a/b", 2, written[2])
    assert newest["diff"] == [{"path": "content", "before": "one", "after": "two"}]
    rest = accepted(http.get(f"{api}/nodes/a%2Fb/history", params={"before": page["next_before"]}))
    assert ([state["node"]["content"] for state in rest["states"]], rest["next_before"]) == (["one"], None)
    assert accepted(http.get(f"{api}/nodes/a%2Fb", params={"version": 1}))["node"]["content"] == "one"
    answer = accepted(http.post(f"{api}/nodes/a%2Fb/revert", json={"version": 1}))
    assert (answer["nodes_updated"], answer["sequence"]) == (1, 5)
    assert accepted(http.get(f"{api}/nodes/a%2Fb"))["node"]["content"] == "one"
    (gone,) = accepted(http.get(f"{api}/nodes/c/history"))["states"]
    assert (gone["deleted"], gone["to_sequence"], gone["recorded_to"]) == (True, 4, written[4])


def test_revert_of_a_deleted_memory_keeps_its_age(http: httpx.Client, api: str) -> None:
    of, old = {"kgserve-store": api.rpartition("/")[2]}, {"id": "old", "content": "Zebra runs", "confidence": 0.8}
    accepted(http.post("/api/memories", json=old | {"created_at": "2020-09-30T00:00:00Z"}, headers=of), 201)
    before = accepted(http.get("/api/memories/old", headers=of))
    accepted(http.delete(f"{api}/nodes/old"))
    accepted(http.post(f"{api}/nodes/old/revert", json={"version": 1}))
    after = accepted(http.get("/api/memories/old", headers=of))
    assert after["created_at"] == before["created_at"] == "2020-09-30T00:00:00.000000Z"
    assert after["effective_confidence"] == pytest.approx(before["effective_confidence"], rel=0.01)


def test_restore_into_a_new_store(http: httpx.Client, api: str, store: str, written: list[str]) -> None:
    answer = accepted(http.post(f"{api}/restore", json={"as_of": written[3], "into": f"{store}-then"}))
    assert (answer["name"], answer["nodes"], answer["edges"], answer["from_sequence"]) == (f"{store}-then", 3, 2, 3)
    then, copy = http.get(f"{api}/export", params={"as_of": "3"}), http.get(f"{api}-then/export")
    assert sorted(copy.content.splitlines()) == sorted(then.content.splitlines())
    problem = refusal(http.post(f"{api}/restore", json={"as_of": 3, "into": f"{store}-then"}), 409)
    assert f"{store}-then" in problem["detail"]


@pytest.mark.parametrize("as_of", ["", "yesterday", "2025-07-15", "-1", "1" * 65])
def test_invalid_times_are_refused(http: httpx.Client, api: str, written: list[str], as_of: str) -> None:
    assert written
    for path in ("nodes/d", "nodes", "export"):
        assert "as_of" in str(refusal(http.get(f"{api}/{path}", params={"as_of": as_of}), 400))
    refusal(http.post(f"{api}/traverse", json={"start_id": "d", "as_of": as_of}), 400)
    refusal(http.post(f"{api}/restore", json={"as_of": as_of, "into": "never-made"}), 400)


@pytest.mark.parametrize("as_of", [-1, 1.5, True, 10**18, [1]])
def test_invalid_sequences_are_refused(http: httpx.Client, api: str, as_of: Any) -> None:
    for path, body in (("traverse", {"start_id": "d"}), ("search", {"query": "d"}), ("restore", {"into": "never"})):
        assert "as_of" in str(refusal(http.post(f"{api}/{path}", json=body | {"as_of": as_of}), 400))
    refusal(http.get("/api/memory/never-made/stats"), 404)


def test_other_refusals(http: httpx.Client, api: str, written: list[str]) -> None:
    assert written
    refusal(http.get(f"{api}/nodes/d", params={"as_of": "1", "version": 1}), 400)
    refusal(http.get(f"{api}/nodes/d", params={"version": 2}), 404)
    refusal(http.get(f"{api}/nodes/never/history"), 404)
    refusal(http.post(f"{api}/nodes/d/revert", json={"version": 9}), 404)
    for params in ({"limit": 0}, {"limit": 201}, {"before": 0}, {"other": 1}):
        refusal(http.get(f"{api}/nodes/d/history", params=params), 400)
    for params in ({"limit": 0}, {"since": -1}, {"since": "x"}):
        refusal(http.get(f"{api}/changes", params=params), 400)
    for path in ("nodes/d?as_of=1", "nodes?as_of=1", "export?as_of=1", "nodes/d/history", "changes"):
        refusal(http.get(f"/api/memory/never-made/{path}"), 404)


def test_server_without_history(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "data", variables={"KGSERVE_HISTORY": "false", "KGSERVE_INDEXES": "false"}) as running,
        httpx.Client(base_url=running.url, timeout=30) as http,
    ):
        api = "/api/memory/plain"
        accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
        for path in ("nodes/a?as_of=1", "nodes?as_of=1", "nodes/a?version=1", "nodes/a/history", "export?as_of=1"):
            assert "turned off" in refusal(http.get(f"{api}/{path}"), 409)["detail"]
        refusal(http.post(f"{api}/traverse", json={"start_id": "a", "as_of": "1"}), 409)
        refusal(http.post(f"{api}/nodes/a/revert", json={"version": 1}), 409)
        refusal(http.post(f"{api}/history/prune"), 409)
        refusal(http.get("/api/v1/entities/a/history?store=plain"), 409)
        refusal(http.post(f"{api}/restore", json={"as_of": "1", "into": "other"}), 409)
        assert len(accepted(http.get(f"{api}/changes"))["changes"]) == 1
        assert not list(tmp_path.glob("data/*/history.sqlite*"))
        assert accepted(http.get(f"{api}/nodes/a"))["node"]["version"] == 1
