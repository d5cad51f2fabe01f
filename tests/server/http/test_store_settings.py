"""Store settings over HTTP: storage, reads, events, and effects on the history."""

from __future__ import annotations

import threading
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from bench.listener import EventListener
from tests.server.http.serving import PATIENCE, RunningServer, accepted, refusal, serving
from tests.stores.writing import until

USUAL: dict[str, Any] = {
    "name": "",
    "conflict_policy": "lww",
    "kind_whitelist": [],
    "metadata": {},
    "indexed_attributes": [],
    "indexes": "default",
    "language": "auto",
    "history": "all",
}
CHOSEN: dict[str, Any] = {
    "name": "Größe",
    "conflict_policy": "manual",
    "kind_whitelist": ["person", "place"],
    "metadata": {"b": [1, True, None], "a": {"deep": 1.5}},
    "indexed_attributes": ["author", "title"],
    "indexes": "words",
    "language": "de",
    "history": 30,
}


def settings(http: httpx.Client, api: str) -> dict[str, Any]:
    found = accepted(http.get(api))
    return {name: found[name] for name in USUAL}


def test_new_store_has_default_settings(http: httpx.Client, store: str, api: str) -> None:
    assert accepted(http.put(api), 201)["created"]
    found = accepted(http.get(api))
    assert found["store"] == store
    assert found["sequence"] == 0
    assert found["created_at"].endswith("Z")
    assert settings(http, api) == USUAL


def test_settings_may_come_at_creation_and_only_then(http: httpx.Client, api: str) -> None:
    assert accepted(http.put(api, json=CHOSEN), 201)["created"]
    assert settings(http, api) == CHOSEN
    assert not accepted(http.put(api, json=USUAL | {"name": "another"}))["created"]
    assert settings(http, api) == CHOSEN


def test_store_list_includes_settings(http: httpx.Client, store: str, api: str) -> None:
    def listed() -> dict[str, Any]:
        return next(each for each in accepted(http.get("/api/memory"))["stores"] if each["name"] == store)["settings"]

    accepted(http.put(api), 201)
    assert listed() == {name: value for name, value in USUAL.items() if name not in {"history", "indexes", "language"}}
    accepted(http.patch(api, json=CHOSEN))
    assert listed() == {name: value for name, value in CHOSEN.items() if name not in {"history", "indexes", "language"}}
    accepted(http.patch(api, json={"metadata": {"long": "x" * 5_000}}))
    assert "metadata" not in listed()


def test_the_list_says_when_a_store_was_last_written_to(http: httpx.Client, store: str, api: str) -> None:
    def last_write() -> str | None:
        return next(each for each in accepted(http.get("/api/memory"))["stores"] if each["name"] == store).get(
            "last_write"
        )

    accepted(http.put(api), 201)
    assert last_write() is None
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
    written = accepted(http.get(f"{api}/nodes/a"))["node"]["updated_at"]
    assert last_write() == written


def test_omitted_settings_stay_and_empty_ones_are_cleared(http: httpx.Client, api: str) -> None:
    accepted(http.put(api, json=CHOSEN), 201)
    answer = accepted(http.patch(api, json={"name": "other", "metadata": None}))
    assert {name: answer[name] for name in USUAL} == CHOSEN | {"name": "other"}
    accepted(http.patch(api, json={"name": "", "kind_whitelist": [], "metadata": {}}))
    assert settings(http, api) == CHOSEN | {"name": "", "kind_whitelist": [], "metadata": {}}


def test_indexed_attributes_are_searchable(http: httpx.Client, store: str, api: str) -> None:
    node = {"id": "b1", "type": "book", "content": "ISBN 1", "attributes": {"title": "Moby Dick", "pages": 635}}
    accepted(http.post(f"{api}/inject", json={"nodes": [node]}))

    def found(query: str, mode: str) -> list[str]:
        wanted = {"query": query, "mode": mode, "at_least": 1}
        return [hit["node"]["id"] for hit in accepted(http.post(f"{api}/search", json=wanted))["hits"]]

    assert found("whale moby", "keyword") == []
    chosen = accepted(http.patch(api, json={"indexed_attributes": ["title", "author", "title"]}))
    assert chosen["indexed_attributes"] == ["author", "title"]
    until(lambda: found("whale moby", "keyword") == ["b1"] == found("moby dick", "semantic"))
    assert found("635", "keyword") == []


def test_words_match_in_the_language_of_the_store(http: httpx.Client, api: str) -> None:
    accepted(http.put(api, json={"language": "de"}), 201)
    nodes = [{"id": "n1", "type": "note", "content": "Die Entscheidungen sind gefallen"}]
    accepted(http.post(f"{api}/inject", json={"nodes": nodes}))

    def found(**more: Any) -> list[str]:
        wanted = {"query": "Entscheidung", "mode": "keyword", "at_least": 1, **more}
        return [hit["node"]["id"] for hit in accepted(http.post(f"{api}/search", json=wanted))["hits"]]

    assert found() == ["n1"]
    assert found(query="Ents") == []
    assert found(query="Ents", prefix=True) == ["n1"]
    assert accepted(http.get(f"{api}/stats"))["languages"] == {"de": 1}
    accepted(http.patch(api, json={"language": "fr"}))
    until(lambda: found() == [])
    accepted(http.patch(api, json={"language": "auto"}))
    until(lambda: found() == ["n1"])


def test_memory_settings_are_merged_by_field(http: httpx.Client, api: str) -> None:
    accepted(http.put(api, json={"memory": {"alpha": 0.7, "half_life_days": None}}), 201)
    found = accepted(http.patch(api, json={"memory": {"dedup": "off", "half_life_by_type": {"fact": 90}}}))["memory"]
    assert (found["alpha"], found["half_life_days"], found["dedup"]) == (0.7, None, "off")
    assert found["half_life_by_type"] == {"fact": 90}
    assert accepted(http.get(api))["memory"] == found
    assert found["prune"] == "archive"


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"name": "ü" * 257}, "name"),
        ({"conflict_policy": "none"}, "conflict_policy"),
        ({"kind_whitelist": [""]}, "kind_whitelist"),
        ({"kind_whitelist": ["a", "ü" * 257]}, "kind_whitelist"),
        ({"kind_whitelist": ["x"] * 1001}, "kind_whitelist"),
        ({"metadata": {"n": 1 << 63}}, "metadata.n"),
        ({"metadata": {"long": "x" * (256 << 10)}}, "metadata"),
        ({"metadata": []}, "metadata"),
        ({"indexed_attributes": [""]}, "indexed_attributes"),
        ({"indexed_attributes": ["x" * 257]}, "indexed_attributes"),
        ({"indexed_attributes": ["x"] * 21}, "indexed_attributes"),
        ({"language": "deutsch"}, "language"),
        ({"history": 0}, "history"),
        ({"history": 36_501}, "history"),
        ({"history": "some"}, "history"),
        ({"history": True}, "history"),
        ({"colour": "red"}, "colour"),
        ({"memory": {"alpha": 1.5}}, "memory.alpha"),
        ({"memory": {"dedup": "some"}}, "memory.dedup"),
        ({"memory": {"half_life_by_type": {"fact": 0}}}, "memory.half_life_by_type"),
        ({"memory": {"colour": "red"}}, "memory.colour"),
    ],
)
def test_invalid_settings_are_refused_by_name(http: httpx.Client, api: str, wrong: dict[str, Any], place: str) -> None:
    accepted(http.put(api), 201)
    for answer in (http.patch(api, json=wrong), http.put(f"{api}-new", json=wrong)):
        assert place in refusal(answer, 400)["detail"]
    assert settings(http, api) == USUAL
    refusal(http.get(f"{api}-new"), 404)


def test_deep_metadata_is_refused(http: httpx.Client, api: str) -> None:
    accepted(http.put(api), 201)
    deep: Any = 1
    for _ in range(65):
        deep = {"a": deep}
    assert "nested" in refusal(http.patch(api, json={"metadata": deep}), 400)["detail"]
    assert accepted(http.patch(api, json={"metadata": deep["a"]}))["metadata"] == deep["a"]


def test_settings_of_a_missing_store(http: httpx.Client, api: str) -> None:
    refusal(http.get(api), 404)
    refusal(http.patch(api, json={"name": "x"}), 404)


def test_settings_survive_a_restart_and_have_defaults(tmp_path: Path) -> None:
    with serving(tmp_path) as served, httpx.Client(base_url=served.url, timeout=PATIENCE) as http:
        accepted(http.put("/api/memory/new", json=CHOSEN), 201)
        accepted(http.put("/api/memory/old"), 201)
        created = accepted(http.get("/api/memory/old"))["created_at"]
    for record in (tmp_path / "old_memory" / "journal").glob("settings.*"):
        record.unlink()
    described = tmp_path / "old_memory" / "store.json"
    before = msgspec.json.decode(described.read_bytes())
    described.write_bytes(msgspec.json.encode({name: before[name] for name in ("format", "created_at")}))
    with serving(tmp_path) as served, httpx.Client(base_url=served.url, timeout=PATIENCE) as http:
        assert settings(http, "/api/memory/new") == CHOSEN
        assert settings(http, "/api/memory/old") == USUAL
        assert accepted(http.get("/api/memory/old"))["created_at"] == created


def test_concurrent_settings_changes_and_writes(http: httpx.Client, api: str) -> None:
    accepted(http.put(api), 201)
    failed: list[str] = []

    def change(field: str, values: list[Any]) -> None:
        for value in values:
            answer = http.patch(api, json={field: value})
            if answer.status_code != 200 or answer.json()[field] != value:
                failed.append(answer.text)

    def write() -> None:
        for number in range(30):
            accepted(http.post(f"{api}/inject", json={"nodes": [{"id": f"n{number}", "type": "t"}]}))

    fields = {"name": list("abcdefgh"), "history": list(range(1, 9)), "metadata": [{"n": n} for n in range(8)]}
    threads = [threading.Thread(target=change, args=each) for each in fields.items()]
    threads.append(threading.Thread(target=write))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    found = accepted(http.get(api))
    assert (found["name"], found["history"], found["metadata"]) == ("h", 8, {"n": 7})
    assert found["sequence"] == 30


def test_settings_events_on_changes_only(served: RunningServer, http: httpx.Client, store: str) -> None:
    api = f"/api/memory/{store}"
    accepted(http.put(api), 201)
    question = "events?kinds=store_changed"
    with (
        EventListener(served.port, f"{api}/{question}").greet() as of_one,
        EventListener(served.port, f"/api/{question}").greet() as of_all,
    ):
        accepted(http.patch(api, json={}))
        accepted(http.patch(api, json={"history": "all", "metadata": {}}))
        accepted(http.patch(api, json={"metadata": {"n": 1}}))
        accepted(http.patch(api, json={"metadata": {"n": 1}}))
        accepted(http.patch(api, json={"metadata": {"n": True}}))
        for listener in (of_one, of_all):
            told = list(islice(listener.events(), 2))
            assert [each.kind for each in told] == ["store_changed"] * 2
            first, second = (each.data for each in told)
            assert first["store"] == store
            assert {name: first[name] for name in USUAL} == USUAL | {"metadata": {"n": 1}}
            assert second["metadata"] == {"n": True}
            assert type(second["metadata"]["n"]) is bool


def ask_history(http: httpx.Client, api: str) -> httpx.Response:
    return http.get(f"{api}/nodes/a/history")


def write(http: httpx.Client, api: str, content: str) -> None:
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "a", "type": "t", "content": content}]}))


def test_disabled_history_is_deleted_and_restarts(served: RunningServer, http: httpx.Client) -> None:
    api, root = "/api/memory/quiet", served.data / "quiet_memory"
    for content in ("one", "two"):
        write(http, api, content)
    assert len(accepted(ask_history(http, api))["states"]) == 2
    accepted(http.patch(api, json={"history": "none"}))
    until(lambda: not list(root.glob("history.sqlite*")))
    write(http, api, "three")
    for path in ("nodes/a/history", "nodes/a?as_of=1", "nodes/a?version=1", "nodes?as_of=1", "export?as_of=1"):
        assert "turned off" in refusal(http.get(f"{api}/{path}"), 409)["detail"]
    refusal(http.post(f"{api}/history/prune"), 409)
    assert accepted(http.get(f"{api}/nodes/a"))["node"]["content"] == "three"
    assert not list(root.glob("history.sqlite*"))

    accepted(http.patch(api, json={"history": "all"}))
    assert [state["from_sequence"] for state in accepted(ask_history(http, api))["states"]] == [3]
    assert refusal(http.get(f"{api}/nodes/a?as_of=2"), 410)["oldest"] == 3
    write(http, api, "four")
    assert accepted(http.get(f"{api}/nodes/a?as_of=3"))["node"]["content"] == "three"


def test_history_toggled_quickly_restarts(http: httpx.Client, api: str) -> None:
    for content in ("one", "two"):
        write(http, api, content)
    assert len(accepted(ask_history(http, api))["states"]) == 2
    for history in ("none", "all"):
        accepted(http.patch(api, json={"history": history}))

    def begun_anew() -> bool:
        answer = ask_history(http, api)
        return answer.status_code == 200 and len(answer.json()["states"]) == 1

    until(begun_anew)
    assert refusal(http.get(f"{api}/nodes/a?as_of=1"), 410)["oldest"] == 2
