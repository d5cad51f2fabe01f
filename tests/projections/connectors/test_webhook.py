"""Webhook delivery to a receiver that accepts, refuses, hangs, disconnects, or was unavailable."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kgserve.admin.composition_root import create_configured_connectors_worker
from kgserve.errors import InvalidInput
from kgserve.platform.settings import Settings
from tests.cli.running import kgserve as command
from tests.projections.connectors.receiver import (
    SECRET,
    Receiver,
    drips,
    hangs,
    receiving,
    refuses,
    takes_and_leaves,
    takes_and_pours,
)
from tests.server.http.serving import PATIENCE, RunningServer, accepted, serving

Json = dict[str, Any]


@pytest.fixture(autouse=True)
def short_retry_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the retry delay."""
    monkeypatch.setattr("kgserve.projections.update_scheduler.STEP_FIRST_RETRY_SECONDS", 0.05)


def awaited(what: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


class PostingServer:
    """Server that posts to a receiver, and the content of both."""

    def __init__(self, served: RunningServer, http: httpx.Client, receiver: Receiver) -> None:
        self.served, self.http, self.receiver = served, http, receiver

    def inject(self, store: str = "s", **texts: str) -> int:
        nodes = [{"id": key, "type": "t", "content": text} for key, text in texts.items()]
        return accepted(self.http.post(f"/api/memory/{store}/inject", json={"nodes": nodes}))["sequence"]

    def delete(self, *ids: str, store: str = "s") -> None:
        for each in ids:
            accepted(self.http.delete(f"/api/memory/{store}/nodes/{each}"))

    def texts(self, store: str = "s") -> dict[str, str]:
        page = accepted(self.http.get(f"/api/memory/{store}/nodes", params={"limit": 1000}))
        return {node["id"]: node["content"] for node in page["nodes"] if node["content"]}

    def standing(self, store: str = "s") -> Json:
        [found] = accepted(self.http.get(f"/api/memory/{store}/stats"))["syncers"]
        return found

    def settle(self, store: str = "s") -> Json:
        found = awaited(lambda: each if (each := self.standing(store))["lag"] == 0 else None)
        assert self.receiver.texts(store) == self.texts(store)
        assert found["error"] is None
        return found


@contextmanager
def telling(data: Path, receiver: Receiver, **options: Any) -> Generator[PostingServer]:
    with serving(data, **receiver.options, **options) as served, httpx.Client(base_url=served.url, timeout=30) as http:
        yield PostingServer(served, http, receiver)


def test_changes_are_delivered_in_order(tmp_path: Path) -> None:
    with receiving() as receiver, telling(tmp_path, receiver) as told:
        node = {"id": "a", "type": "note", "content": "Tea", "attributes": {"n": 1}, "tags": ["x"], "name": "A"}
        accepted(told.http.post("/api/memory/s/inject", json={"nodes": [node, {"id": "empty", "type": "t"}]}))
        told.settle()
        assert receiver.contents["s"]["a"] == {**node, "sequence": 1}
        told.inject(a="Coffee", b="Milk")
        told.inject(a="", c="Cake")
        told.delete("b")
        assert told.settle() == {**told.standing(), "sequence": 4, "failures": 0}
        assert receiver.texts("s") == {"c": "Cake"}
        assert receiver.batches[0]["anew"]
        places = [(each["after"], each["sequence"]) for each in receiver.batches[1:]]
        assert places == sorted(places)
        assert all(after < sequence for after, sequence in places)
        lag = 'kgserve_store_syncer_lag_commits{store="s",syncer="webhook"} 0.0'
        assert lag in told.http.get("/metrics").text


def test_withdrawing_a_memory_delivers_a_deletion(tmp_path: Path) -> None:
    with receiving() as receiver, telling(tmp_path, receiver) as told:
        made = accepted(told.http.post("/api/v1/retain", json={"content": "Tea is hot."}))
        memory = made["operations"][0]["memory_id"]
        awaited(lambda: receiver.texts("default") == {memory: "Tea is hot."})
        accepted(told.http.post("/api/v1/forget", json={"ids": [memory]}))
        awaited(lambda: receiver.texts("default") == {})


def test_batches_are_bounded_in_count_and_bytes(tmp_path: Path) -> None:
    with receiving() as receiver, telling(tmp_path, receiver, webhook_batch=10) as told:
        told.inject(first="one")
        told.settle()
        told.inject(**{f"n{at}": f"text {at}" for at in range(95)})
        told.settle()
        told.inject(**{f"big{at}": str(at) * 600_000 for at in range(4)})
        told.settle()
        assert max(len(each["changes"]) for each in receiver.batches) == 10
        sizes = [sum(len(change["content"]) for change in each["changes"]) for each in receiver.batches]
        assert max(sizes) < 1 << 20
        assert [each["part"] for each in receiver.batches if each["sequence"] == 2] == list(range(10))


def test_retry_after_receiver_failures_delivers_everything(tmp_path: Path) -> None:
    ways = [refuses(500), refuses(429), takes_and_leaves, takes_and_pours, hangs, drips]
    with receiving() as receiver, telling(tmp_path, receiver, webhook_timeout=0.5) as told:
        told.inject(a="one")
        told.settle()
        for at, way in enumerate(ways):
            receiver.script.append(way)
            failed = told.standing()["failures"]
            for count in range(5):
                told.inject(a=f"way {at}, {count}", **{f"n{at}": "more"})
            assert told.texts()["a"] == f"way {at}, 4"
            found = told.settle()
            assert found["failures"] == failed + (way is not takes_and_pours)


def test_status_reports_the_error_without_the_response_body(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "kgserve.projections.update_scheduler.STEP_FIRST_RETRY_SECONDS", 2.0
    )  # keeps the error visible until then
    with receiving() as receiver, telling(tmp_path, receiver) as told:
        receiver.script.append(refuses(503))
        told.inject(a="private words")
        found = awaited(lambda: each if (each := told.standing())["error"] else None)
        host = f"127.0.0.1:{receiver.server_port}"
        assert found["error"] == f"the webhook at {host} responded with status 503"
        assert 'kgserve_store_syncer_failing{store="s",syncer="webhook"} 1.0' in told.http.get("/metrics").text
        told.settle()
    logged = "".join(capfd.readouterr())
    assert not [secret for secret in (SECRET, "token=t", "private words") if secret in logged]
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path


def test_a_hanging_receiver_delays_neither_drop_nor_shutdown(tmp_path: Path) -> None:
    with receiving() as receiver:
        receiver.script.extend([hangs, hangs])
        with telling(tmp_path, receiver, webhook_timeout=600) as told:
            told.inject(a="one")
            awaited(lambda: len(receiver.script) < 2)
            accepted(told.http.delete("/api/memory/s", params={"confirm": "s"}))
            told.inject(b="two")
            awaited(lambda: not receiver.script)
        with telling(tmp_path, receiver):
            awaited(lambda: receiver.texts("s") == {"b": "two"})


def test_a_store_that_is_not_opened_is_delivered_after_a_restart(tmp_path: Path) -> None:
    with receiving() as receiver:
        with telling(tmp_path, receiver) as told:
            told.inject(a="one", gone="two")
            told.settle()
        with serving(tmp_path) as served, httpx.Client(base_url=served.url) as http:
            quiet = PostingServer(served, http, receiver)
            quiet.inject(b="three")
            quiet.delete("gone")
            quiet.inject("other", x="four")
        with telling(tmp_path, receiver) as told:
            awaited(lambda: receiver.texts("s") == {"a": "one", "b": "three"})
            awaited(lambda: receiver.texts("other") == {"x": "four"})
            first, *others = [each["anew"] for each in receiver.batches if each["store"] == "s"]
            assert first
            assert not any(others)


def test_a_new_url_store_or_truncated_journal_restarts_delivery(tmp_path: Path) -> None:
    with receiving() as first, receiving() as second:
        with telling(tmp_path, first) as told:
            told.inject(a="one", b="two")
            told.settle()
            accepted(told.http.delete("/api/memory/s", params={"confirm": "s"}))
            told.inject(c="three")
            told.settle()
        with telling(tmp_path, second) as told:
            awaited(lambda: second.texts("s") == {"c": "three"})
            assert second.batches[0]["anew"]


def test_initial_fill_resumes_after_a_failure(tmp_path: Path) -> None:
    with receiving() as receiver:
        with serving(tmp_path) as served, httpx.Client(base_url=served.url) as http:
            PostingServer(served, http, receiver).inject(**{f"n{at:03}": f"text {at}" for at in range(100)})
        receiver.script.extend([takes_and_leaves, refuses(500)])
        with telling(tmp_path, receiver, webhook_batch=30) as told:
            told.settle()
        assert [each["part"] for each in receiver.batches] == [0, 0, 1, 2, 3]


def test_random_writes_and_failures_converge(tmp_path: Path) -> None:
    chance = random.Random(3)
    ways = [refuses(500), takes_and_leaves]
    with receiving() as receiver, telling(tmp_path, receiver, webhook_batch=3) as told:
        for _ in range(60):
            ids = [f"n{chance.randrange(12)}" for _ in range(chance.randrange(1, 6))]
            store = chance.choice(["s", "t"])
            if chance.random() < 0.3:
                told.http.request("DELETE", f"/api/memory/{store}/nodes/{ids[0]}")
            else:
                told.inject(store, **{each: chance.choice(["", "x", "y"]) for each in ids})
            if chance.random() < 0.05:
                receiver.script.append(chance.choice(ways))
        told.settle("s")
        told.settle("t")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"webhook_url": "http://127.0.0.1:1/"}, "KGSERVE_WEBHOOK_SECRET"),
        ({"webhook_url": "ftp://host/", "webhook_secret": "s"}, "webhook_url"),
        ({"webhook_url": "http://", "webhook_secret": "s"}, "webhook_url"),
        ({"webhook_url": "http://u:p@host/", "webhook_secret": "s"}, "must not contain credentials"),
        ({"webhook_url": "http://host:x/", "webhook_secret": "s"}, "webhook_url"),
        ({"webhook_url": "http://host/a b", "webhook_secret": "s"}, "webhook_url"),
        ({"syncers": "nobody-has-this"}, "no installed package provides"),
        ({"syncers": "webhook"}, "not a valid syncer name"),
        ({"syncers": "../x"}, "not a valid syncer name"),
    ],
)
def test_invalid_webhook_settings_are_rejected(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        create_configured_connectors_worker(Settings(**options))


def test_no_webhook_by_default() -> None:
    assert create_configured_connectors_worker(Settings()) is None


def test_the_secret_has_no_command_line_option() -> None:
    refused = command("serve", "--webhook-secret", "secret")
    assert refused.code != 0
    assert "no such option" in refused.err.lower()
