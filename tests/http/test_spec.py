"""The examples of the specification, exactly; answers may carry more fields."""

from __future__ import annotations

import subprocess
from typing import Any

import httpx

from tests.http.serving import Served, accepted

PAYLOAD: dict[str, Any] = {
    "nodes": [
        {
            "id": "req-001",
            "type": "requirement",
            "content": "User must log in with email and password",
            "attributes": {"priority": "high", "sprint": 3},
        }
    ],
    "edges": [{"from": "req-001", "to": "feat-jwt", "relation_type": "IMPLEMENTED_BY", "weight": 1.0}],
}
TRACEABILITY = """{
  "nodes": [
    {"id": "req-login",  "type": "requirement", "content": "User login with OAuth"},
    {"id": "req-signup", "type": "requirement", "content": "User registration"},
    {"id": "sym-oauth",  "type": "code", "content": "OAuthHandler in auth/handler.go"},
    {"id": "sym-user",   "type": "code", "content": "UserRepo in db/user.go"}
  ],
  "edges": [
    {"from": "req-login",  "to": "sym-oauth", "relation_type": "IMPLEMENTED_BY"},
    {"from": "req-login",  "to": "sym-user",  "relation_type": "IMPLEMENTED_BY"},
    {"from": "req-signup", "to": "sym-user",  "relation_type": "IMPLEMENTED_BY"}
  ]
}"""


def has(answer: dict[str, Any], expected: dict[str, Any]) -> bool:
    return {name: answer.get(name) for name in expected} == expected


def test_inject_answers_with_what_was_sent(http: httpx.Client, api: str) -> None:
    answer = accepted(http.post(f"{api}/inject", json=PAYLOAD))
    assert has(answer, {"ok": True, "nodes_sent": 1, "edges_sent": 1})
    assert answer["nodes_created"] == 1
    assert answer["edges_skipped_count"] == 1  # feat-jwt does not exist yet
    assert [one["to"] for one in answer["edges_skipped"]] == ["feat-jwt"]


def test_inject_twice_changes_nothing(http: httpx.Client, api: str) -> None:
    first = accepted(http.post(f"{api}/inject", json=PAYLOAD))
    second = accepted(http.post(f"{api}/inject", json=PAYLOAD))
    assert second["nodes_unchanged"] == 1
    assert second["nodes_created"] == second["nodes_updated"] == 0
    assert second["sequence"] == first["sequence"]


def test_delete_node(http: httpx.Client, api: str) -> None:
    http.post(f"{api}/inject", json=PAYLOAD)
    assert has(accepted(http.delete(f"{api}/nodes/req-001")), {"ok": True, "deleted_id": "req-001"})
    assert has(accepted(http.delete(f"{api}/nodes/req-001")), {"ok": True, "deleted_id": "req-001"})


def test_delete_edge_leaves_other_types(http: httpx.Client, api: str) -> None:
    pair = {"from": "a", "to": "b"}
    batch = {
        "nodes": [{"id": "a", "type": "t"}, {"id": "b", "type": "t"}],
        "edges": [pair | {"relation_type": "IMPLEMENTED_BY"}, pair | {"relation_type": "DEPENDS_ON"}],
    }
    accepted(http.post(f"{api}/inject", json=batch))
    key = pair | {"relation_type": "IMPLEMENTED_BY"}
    assert accepted(http.request("DELETE", f"{api}/edges", json=key))["ok"] is True
    left = accepted(http.post(f"{api}/traverse", json={"start_id": "a"}))["edges"]
    assert [edge["relation_type"] for edge in left] == ["DEPENDS_ON"]


def test_traverse_answers_nodes_edges_and_count(http: httpx.Client, api: str) -> None:
    batch = PAYLOAD | {"nodes": [*PAYLOAD["nodes"], {"id": "feat-jwt", "type": "code_symbol"}]}
    accepted(http.post(f"{api}/inject", json=batch))
    answer = accepted(http.post(f"{api}/traverse", json={"start_id": "req-001", "depth": 2}))
    assert answer["count"] == 2
    content = PAYLOAD["nodes"][0]["content"]
    assert has(answer["nodes"][0], {"id": "req-001", "type": "requirement", "content": content})
    assert has(answer["nodes"][1], {"id": "feat-jwt", "type": "code_symbol"})
    edge = {"from": "req-001", "to": "feat-jwt", "relation_type": "IMPLEMENTED_BY", "weight": 1}
    assert has(answer["edges"][0], edge)


def test_requirement_traceability_with_curl(served: Served, store: str) -> None:
    def curl(action: str, body: str) -> str:
        url = f"localhost:{served.port}/api/memory/{store}/{action}"
        done = subprocess.run(["curl", "-s", "-X", "POST", url, "-d", body], capture_output=True, text=True, check=True)
        return done.stdout

    assert '"ok":true' in curl("inject", TRACEABILITY)
    walked = curl("traverse", '{"start_id": "req-login", "depth": 1}')
    assert '"id":"sym-oauth"' in walked
    assert '"id":"sym-user"' in walked
    assert walked.count('"relation_type":"IMPLEMENTED_BY"') == 2
