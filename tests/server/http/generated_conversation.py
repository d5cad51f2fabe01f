"""Test program for a generated client, run by `make openapi` in that client's environment."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

STORE = "generated"
NODES = [
    {
        "id": "plan",
        "type": "decision",
        "content": "We ship in May.",
        "attributes": {"by": "ada"},
        "tags": ["status:open"],
    },
    {"id": "why", "type": "note", "content": "The fair is in June."},
]
EDGES = [{"from": "why", "to": "plan", "relation_type": "SUPPORTS", "weight": 0.5, "ordinal": None}]


def talk(url: str) -> None:
    """Change settings, write, read in all ways, get a refusal, and drop the store."""
    client = import_module("generated").Client(base_url=url)
    models = import_module("generated.models")

    def ask(operation: str, request: str = "", body: dict[str, Any] | None = None, **parameters: Any) -> Any:
        sent = {} if body is None else {"body": getattr(models, request).from_dict(body)}
        run = import_module(f"generated.api.{operation}").sync
        answer = run(client=client, **({"store": STORE} | parameters), **sent).to_dict()
        assert "status" not in answer or operation.startswith("service"), answer
        return answer

    settings = {"conflict_policy": "manual", "kind_whitelist": ["decision", "note"], "metadata": {"owner": "ada"}}
    assert ask("stores.create_store", "StoreSettingsRequest", settings)["created"]
    assert ask("stores.store_settings")["kind_whitelist"] == settings["kind_whitelist"]
    written = ask("graph.inject", "InjectRequest", {"nodes": NODES, "edges": EDGES})
    assert (written["nodes_created"], written["edges_created"]) == (2, 1)
    got = ask("nodes.get_node", id="plan")
    assert got["node"]["attributes"] == NODES[0]["attributes"]
    assert got["incoming"][0]["from"] == "why"
    version = {"lineage_id": "plan", "kind": "decision", "content": "We ship in June.", "based_on_version": 1}
    assert ask("versions.put_node", "PutNodeRequest", version)["node"]["version"] == 2
    assert ask("nodes.get_node", id="plan", as_of="1")["node"]["content"] == NODES[0]["content"]
    walked = ask("graph.traverse", "TraverseRequest", {"start_id": "why", "depth": 2, "relation_types": None})
    assert [node["id"] for node in walked["nodes"]] == ["why", "plan"]
    sequence = walked["sequence"]
    found = ask("search.search", "SearchRequest", {"query": "fair", "mode": "keyword", "at_least": sequence})
    assert [hit["node"]["id"] for hit in found["hits"]] == ["why"]
    states = ask("history.node_history", id="plan")["states"]
    assert [state["node"]["version"] for state in states] == [2, 1]
    listed = import_module("generated.api.stores.list_stores").sync(client=client).to_dict()
    assert listed["stores"][0]["settings"]["conflict_policy"] == "manual"
    missing = import_module("generated.api.nodes.get_node").sync(client=client, store=STORE, id="nobody")
    assert missing.to_dict()["status"] == 404
    assert ask("stores.drop_store", confirm=STORE)["dropped"] == STORE


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    talk(sys.argv[2])
    sys.stdout.write("The generated client works.\n")
