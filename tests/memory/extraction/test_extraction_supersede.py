"""Near memories that a model is shown and may supersede, with the real embedding model."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.embedding.prepared import model_settings
from tests.memory.extraction.chat_service import Service, says
from tests.memory.extraction.memory_client import memories, retain, settled
from tests.server.http.serving import RunningServer, accepted, serving

OLD, NEW = "The web shop uses Postgres 16.", "The web shop uses Postgres 17."
MOVED = "Last night we moved the web shop over to Postgres 17."


@pytest.fixture(scope="module")
def there(model: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    options = {**model.options, "memory_extract": True, "embedding_provider": "local"}
    data = tmp_path_factory.mktemp("extracted") / "data"
    with serving(data, **options, models_dir=model_settings().models_dir) as found:
        yield found


def known(http: httpx.Client, content: str, **more: object) -> str:
    done = retain(http, content, extract=False, created_at="2026-01-01T00:00:00Z", **more)
    return done["operations"][0]["memory_id"]


def test_fact_supersedes_shown_memory_and_keeps_former_version(service: Service, http: httpx.Client) -> None:
    old = known(http, OLD, tags=["mine"])
    known(http, "The web shop is pinned to one region.", importance=1)
    service.usually = says(
        facts=[{"content": NEW, "supersedes": "m1"}, {"content": "A second one.", "supersedes": "m1"}]
    )
    retain(http, MOVED, created_at="2026-02-01T00:00:00Z")
    assert settled(http)["items"] == 2
    # Pinned memories are not shown and cannot be superseded.
    assert service.materials[0]["known_memories"] == {"m1": OLD}
    now = accepted(http.get(f"/api/memories/{old}"))
    assert (now["content"], now["valid_from"], now["tags"]) == (NEW, "2026-02-01T00:00:00.000000Z", ["mine"])
    assert "A second one." in memories(http)
    history = http.get(f"/api/v1/entities/{old}/history").json()
    assert [each["content"] for each in history] == [OLD, NEW]
    at = {"valid_at": "2026-01-15T00:00:00Z"}
    assert OLD in memories(http, **at)
    # A superseded memory is not a new text, nor is it when its statement is repeated.
    assert service.texts == [MOVED]
    undone = retain(http, OLD, entity_id=old, extract=False)
    assert [each["type"] for each in undone["operations"]] == ["update"]
    assert accepted(http.get(f"/api/memories/{old}"))["content"] == OLD


def test_changed_memory_is_not_superseded(service: Service, http: httpx.Client) -> None:
    old = known(http, OLD)

    def late(handler: object, question: object) -> None:
        accepted(http.put(f"/api/memories/{old}", json={"tags": ["seen"]}))
        says(facts=[{"content": NEW, "supersedes": "m1"}])(handler, question)  # pyright: ignore[reportArgumentType]

    service.usually = late
    retain(http, MOVED)
    settled(http)
    assert accepted(http.get(f"/api/memories/{old}"))["content"] == OLD
    assert memories(http).keys() == {OLD, MOVED, NEW}


def test_older_text_does_not_supersede_newer_memory(service: Service, http: httpx.Client) -> None:
    known(http, OLD)
    retain(http, MOVED, created_at="2025-02-01T00:00:00Z")
    settled(http)
    assert "known_memories" not in service.materials[0]


def test_known_fact_is_deduplicated(service: Service, http: httpx.Client) -> None:
    known(http, OLD)
    service.usually = says(facts=[{"content": "The web shop uses Postgres 16"}])
    retain(http, MOVED)
    settled(http)
    assert memories(http).keys() == {OLD, MOVED}
