"""Requests with the header Idempotency-Key."""

from __future__ import annotations

import threading
import time
from itertools import count
from pathlib import Path

import httpx
import pytest

from kgserve.server.http import idempotent_answer_files
from kgserve.server.http.idempotent_answer_files import IdempotentAnswerFiles, IdempotentAnswerRecord
from kgserve.server.idempotent_calls import CALL_RETENTION_SECONDS
from kgserve.storage.store_folder_layout import StoreLayout
from tests.cli.running import SERVER_TIMEOUT_SECONDS
from tests.cli.running import serving as serving_process
from tests.server.http.serving import RunningServer, accepted, refusal

_keys = count()


@pytest.fixture
def key() -> dict[str, str]:
    return {"idempotency-key": f"key-{next(_keys)}"}


RETAIN = {"content": "Ada lives in London"}


def test_idempotency_key_replays_the_answer(http: httpx.Client, api: str, key: dict[str, str]) -> None:
    """Repeated by POST, PUT, PATCH and DELETE: one effect, the same bytes, and a header that says so."""
    accepted(http.put(api), 201)
    for method, path, body in (
        ("POST", "/api/v1/retain", RETAIN),
        ("PUT", f"{api}-second", None),
        ("PATCH", api, {"metadata": {"a": 1}}),
        ("DELETE", f"{api}-second?confirm={api.rpartition('/')[2]}-second", None),
    ):
        mine = {"idempotency-key": key["idempotency-key"] + method, "kgserve-store": api.rpartition("/")[2]}
        first = http.request(method, path, json=body, headers=mine)
        assert first.status_code < 300, first.text
        assert "idempotent-replayed" not in first.headers
        before = accepted(http.get(api + "/stats"))["sequence"]
        again = http.request(method, path, json=body, headers=mine)
        assert again.headers["idempotent-replayed"] == "true"
        assert (again.status_code, again.content) == (first.status_code, first.content)
        assert again.headers.get("location") == first.headers.get("location")
        assert accepted(http.get(api + "/stats"))["sequence"] == before


def test_idempotency_key_belongs_to_one_request_and_store(http: httpx.Client, api: str, key: dict[str, str]) -> None:
    body = {"nodes": [{"id": "a", "type": "t"}]}
    accepted(http.post(f"{api}/inject", json=body, headers=key))
    refused = refusal(http.post(f"{api}/inject", json={"nodes": []}, headers=key), 422)
    assert refused["type"] == "urn:kgserve:error:idempotency_key_reused"
    refusal(http.post(f"{api}/traverse", json=body, headers=key), 422)
    other = http.post(f"{api}-other/inject", json=body, headers=key)
    accepted(other)
    assert "idempotent-replayed" not in other.headers
    for wrong in ("with blank", "x" * 256):
        refusal(http.post(f"{api}/inject", json=body, headers={"idempotency-key": wrong}), 400)


def test_idempotency_key_of_a_failed_request_can_be_repeated(http: httpx.Client, api: str, key: dict[str, str]) -> None:
    refusal(http.patch(api, json={"name": "y"}, headers=key), 404)
    accepted(http.put(api), 201)
    accepted(http.patch(api, json={"name": "y"}, headers=key))


def test_concurrent_requests_with_one_idempotency_key(served: RunningServer, api: str, key: dict[str, str]) -> None:
    found: list[httpx.Response] = []
    begin, of_store = threading.Barrier(4), {"kgserve-store": api.rpartition("/")[2]}

    def ask() -> None:
        with httpx.Client(base_url=served.url) as client:
            begin.wait()
            found.append(client.post("/api/v1/retain", json=RETAIN, headers=key | of_store))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({(each.status_code, each.content) for each in found}) == 1
    assert sorted("idempotent-replayed" in each.headers for each in found) == [False, True, True, True]


def test_erasure_forgets_answers(http: httpx.Client, api: str, key: dict[str, str]) -> None:
    of_store = {"kgserve-store": api.rpartition("/")[2]}
    made = http.post("/api/memories", json=RETAIN, headers=key | of_store)
    asked = {"ids": [made.json()["id"]], "erase": True}
    accepted(http.post("/api/v1/forget", json=asked, headers=of_store))
    again = http.post("/api/memories", json=RETAIN, headers=key | of_store)
    assert "idempotent-replayed" not in again.headers


def test_idempotency_keys_end_with_their_store(http: httpx.Client, api: str, key: dict[str, str]) -> None:
    body, name = {"nodes": [{"id": "a", "type": "t"}]}, api.rpartition("/")[2]
    encoded = f"/api/memory/%{ord(name[0]):X}{name[1:]}/inject"
    drop = {"idempotency-key": key["idempotency-key"] + "drop"}
    for path in (f"{api}/inject", encoded, f"{api}/inject"):
        for is_repeated in (False, True):
            made = http.post(path, json=body, headers=key)
            assert accepted(made)["nodes_created"] == 1
            assert ("idempotent-replayed" in made.headers) is is_repeated
        accepted(http.delete(api, params={"confirm": name}, headers=drop if path == encoded else {}))
        refusal(http.get(f"{api}/stats"), 404)
    accepted(http.put(api), 201)
    again = http.delete(api, params={"confirm": name}, headers=drop)
    assert again.headers["idempotent-replayed"] == "true"
    accepted(http.get(f"{api}/stats"))


def test_a_killed_server_repeats_the_answers_that_it_gave(tmp_path: Path) -> None:
    data, keyed = tmp_path / "data", {"idempotency-key": "k", "kgserve-store": "s"}
    file = StoreLayout(data, "s").idempotent_answers
    with serving_process(data) as server:
        first = httpx.post(f"{server.url}/api/memories", json=RETAIN, headers=keyed)
        httpx.post(f"{server.url}/api/memories", json=RETAIN, headers=keyed | {"idempotency-key": "l"})
        server.process.kill()
        server.process.wait(SERVER_TIMEOUT_SECONDS)
    file.write_bytes(file.read_bytes()[:-1])
    with serving_process(data) as server:
        for expected in (first, first):
            again = httpx.post(f"{server.url}/api/memories", json=RETAIN, headers=keyed)
            assert (again.status_code, again.content) == (expected.status_code, expected.content)
            assert again.headers["idempotent-replayed"] == "true"
        refusal(httpx.post(f"{server.url}/api/memories", json={"content": "else"}, headers=keyed), 422)
        torn = httpx.post(f"{server.url}/api/memories", json=RETAIN, headers=keyed | {"idempotency-key": "l"})
        assert "idempotent-replayed" not in torn.headers
        erased = {"ids": [first.json()["id"]], "erase": True}
        httpx.post(f"{server.url}/api/v1/forget", json=erased, headers={"kgserve-store": "s"}).raise_for_status()
        assert not file.exists()


def test_a_repeated_drop_after_a_restart_keeps_the_new_store(tmp_path: Path) -> None:
    """A client that lost the answer repeats the drop when another client has created the store again."""
    data, keyed = tmp_path / "data", {"idempotency-key": "k"}
    with serving_process(data) as server:
        accepted(httpx.put(f"{server.url}/api/memory/s"), 201)
        first = httpx.delete(f"{server.url}/api/memory/s?confirm=s", headers=keyed)
        accepted(first)
        server.process.kill()
        server.process.wait(SERVER_TIMEOUT_SECONDS)
    with serving_process(data) as server:
        accepted(httpx.put(f"{server.url}/api/memory/s"), 201)
        again = httpx.delete(f"{server.url}/api/memory/s?confirm=s", headers=keyed)
        assert (again.status_code, again.content) == (first.status_code, first.content)
        assert again.headers["idempotent-replayed"] == "true"
        assert accepted(httpx.get(f"{server.url}/api/memory"))["stores"][0]["name"] == "s"


def test_saved_answers_end_after_a_day_and_at_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotent_answer_files, "MAX_ANSWER_FILE_BYTES", 1_000)
    layout = StoreLayout(tmp_path, "s")
    layout.root.mkdir()

    def record(number: int, age: float = 0.0) -> IdempotentAnswerRecord:
        return IdempotentAnswerRecord(b"%d" % number, b"f", time.time() - age, 200, [(b"a", b"b")], b"x" * 100, "/")

    files = IdempotentAnswerFiles(tmp_path)
    files.append("s", record(0))
    assert not layout.idempotent_answers.exists(), "nothing is written before the file was read"
    files.remember("s", files.load("s"))
    files.append("s", record(1, age=CALL_RETENTION_SECONDS + 1))
    for number in range(2, 40):
        files.append("s", record(number))
        assert layout.idempotent_answers.stat().st_size <= 1_200
    known = files.load("s")
    assert [files.find("s", b"%d" % number) is not None for number in (1, 2, 39)] == [False, False, True]
    assert known.keys() == IdempotentAnswerFiles(tmp_path).load("s").keys()
    files.forget_all()
    assert not layout.idempotent_answers.exists()
