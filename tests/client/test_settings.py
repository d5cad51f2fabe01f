"""Store settings and pruning of history through the client."""

from __future__ import annotations

import anyio
import pytest

from kgserve.client import AsyncClient, Client
from kgserve.errors import Conflict, InvalidInput, NotFound
from kgserve.graph.request_bodies import NodeInput
from tests.server.http.serving import RunningServer


def versions(client: Client, store: str, count: int) -> None:
    for number in range(count):
        client.store(store).inject([NodeInput(id="a/b", type="t", content=f"{number}")])


def test_settings_are_set_and_changed(client: Client, store: str) -> None:
    made = client.create(store, display_name="The shop", kind_whitelist=["a", "b"], history=30)
    assert made.created
    of = client.store(store)
    found = of.settings()
    assert (found.store, found.name, found.kind_whitelist, found.history) == (store, "The shop", ["a", "b"], 30)
    changed = of.update_settings(kind_whitelist=(), metadata={"n": 1}, conflict_policy="manual")
    assert changed == of.settings()
    assert (changed.name, changed.kind_whitelist, changed.metadata) == ("The shop", [], {"n": 1})
    assert not client.create(store, history="none").created
    assert of.settings() == changed
    with pytest.raises(InvalidInput) as caught:
        of.update_settings(history=0)
    assert caught.value.errors[0].path == "history"
    with pytest.raises(NotFound):
        client.store(f"{store}-not-there").settings()


def test_the_versions_of_an_entity(client: Client, store: str) -> None:
    versions(client, store, 3)
    found = client.store(store).entity_history("a/b")
    assert [(each.id, each.content) for each in found] == [("a/b@1", "0"), ("a/b@2", "1"), ("a/b@3", "2")]
    assert client.store(store).entity_history("a/b", limit=1, after_sequence=1) == [found[1]]


@pytest.mark.parametrize("before", [2, "2"], ids=["number", "text"])
def test_pruning_of_previous_states(client: Client, store: str, before: int | str) -> None:
    versions(client, store, 3)
    of = client.store(store)
    assert of.prune_history().pruned == 0
    done = of.prune_history(before)
    assert (done.pruned, done.oldest, done.sequence) == (1, 2, 3)
    of.update_settings(history="none")
    with pytest.raises(Conflict, match="turned off"):
        of.prune_history()


def test_settings_through_the_asynchronous_client(served: RunningServer, store: str) -> None:
    async def run() -> None:
        async with AsyncClient(served.url) as client:
            await client.create(store, metadata={"n": 1})
            of = client.store(store)
            await of.inject([NodeInput(id="a", type="t")])
            assert (await of.settings()).metadata == {"n": 1}
            assert (await of.update_settings(name="x")).name == "x"
            assert (await of.prune_history("0d")).pruned == 0
            assert len(await of.entity_history("a")) == 1

    anyio.run(run)
