"""Every documented operation without a key, with a key of each role, and with a key of another store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from kgserve.platform.access.authentication import Role
from tests.platform.access.keys import client, given
from tests.server.http.serving import RunningServer, accepted, serving

PUBLIC = {"health", "ready", "docs"}
WRITES = {
    "inject",
    "deleteNode",
    "deleteEdge",
    "deleteEdgeById",
    "deleteNodes",
    "putNode",
    "putSubgraph",
    "retireNode",
    "retireEdge",
    "mergeNode",
    "unmergeNode",
    "revertNode",
    "createStore",
    "importStore",
}
ADMINISTERS = {"dropStore", "updateStore", "reindex", "pruneHistory", "restoreStore"}
ABOUT_EVERY_STORE = {"audit", "drainNode", "finishUpgrade"}
RANKS = {"read": 0, "write": 1, "admin": 2}
BATCH = {"nodes": [{"id": "n", "type": "t", "content": "unseen words"}], "edges": []}


class ExampleOperation(msgspec.Struct, frozen=True):
    """Documented operation with its example request."""

    method: str
    path: str
    described: dict[str, Any]

    @property
    def id(self) -> str:
        return self.described["operationId"]

    @property
    def role(self) -> str:
        return self.described["x-role"]

    @property
    def of_store(self) -> bool:
        return "{store}" in self.path or self.of_default

    @property
    def of_default(self) -> bool:
        return any(each["name"] == "Kgserve-Store" for each in self.described["parameters"])

    def answer(self, http: httpx.Client, store: str) -> tuple[int, bytes]:
        """Return the status and body; the request is the documented example."""
        path = self.path.replace("{store}", store).replace("{id}", "n")
        query = ({"confirm": store} if self.id == "dropStore" else {}) | ({"store": store} if self.of_default else {})
        media, content = next(iter(self.described.get("requestBody", {}).get("content", {}).items()), ("", {}))
        example = content.get("example", "")
        with http.stream(
            self.method,
            path,
            params=query,
            content=example if isinstance(example, str) else msgspec.json.encode(example),
            headers={"content-type": media} if media else {},
        ) as answer:
            streams = answer.headers.get("content-type", "").startswith("text/event-stream")
            return answer.status_code, b"" if streams else answer.read()


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    data = tmp_path_factory.mktemp("keyed") / "data"
    given(data, "read", name="the first")
    with serving(data, rate_limit=0, backup_dir=data.parent / "backups") as running:
        yield running


@pytest.fixture(scope="module")
def admin(keyed: RunningServer) -> Iterator[httpx.Client]:
    with client(keyed.url, given(keyed.data, "admin")) as http:
        yield http


@pytest.fixture(scope="module")
def operations(admin: httpx.Client) -> list[ExampleOperation]:
    document = accepted(admin.get("/openapi.json"))
    return [
        ExampleOperation(method, path, described)
        for path, methods in document["paths"].items()
        for method, described in methods.items()
    ]


def test_openapi_documents_required_roles(operations: list[ExampleOperation]) -> None:
    assert {asked.id for asked in operations} >= PUBLIC | WRITES | ADMINISTERS, "something has another name by now"
    for asked in operations:
        assert (asked.described["security"] == []) is (asked.id in PUBLIC), asked.id
        assert {"401", "403"} <= set(asked.described["responses"]), asked.id
        if asked.id in WRITES:
            assert asked.role == "write", asked.id
        if asked.id in ADMINISTERS:
            assert asked.role == "admin", asked.id


@pytest.mark.abuse(19, 28)
def test_without_a_key(keyed: RunningServer, operations: list[ExampleOperation]) -> None:
    """ABUSE 19 and 28: the API description and metrics among everything else."""
    with client(keyed.url) as nobody:
        for asked in operations:
            status, _ = asked.answer(nobody, "own")
            assert (status == 401) is (asked.id not in PUBLIC), (asked.id, status)
        for path in ("/docs/nothing", "/nothing/here", "/mcp", "/api/memory/own/nothing"):
            assert nobody.get(path).status_code == 401, path
            assert nobody.options(path).status_code == 401, path


@pytest.mark.abuse(21)
@pytest.mark.parametrize("role", ["read", "write", "admin"])
def test_operations_by_role(
    role: Role, keyed: RunningServer, operations: list[ExampleOperation], admin: httpx.Client
) -> None:
    """ABUSE 21: operations above the role of a key are refused without effect."""
    store = f"{role}-store"
    accepted(admin.post(f"/api/memory/{store}/inject", json=BATCH))
    with client(keyed.url, given(keyed.data, role, [f"{role}-*"])) as http:
        for asked in operations:
            before = admin.get(f"/api/memory/{store}/export").content
            status, _ = asked.answer(http, store)
            if role == "admin" and asked.id in ABOUT_EVERY_STORE:
                assert status == 403, (asked.id, status)
                assert asked.answer(admin, store)[0] in {200, 409}, asked.id
            elif asked.id in PUBLIC or RANKS[role] >= RANKS[asked.role]:
                assert status not in {401, 403}, (asked.id, status)
            else:
                assert status == 403, (asked.id, status)
                assert admin.get(f"/api/memory/{store}/export").content == before, asked.id


@pytest.mark.abuse(22)
def test_operations_with_a_key_of_another_store(
    keyed: RunningServer, operations: list[ExampleOperation], admin: httpx.Client
) -> None:
    """ABUSE 22: not even an administrator of other stores can see a store."""
    accepted(admin.post("/api/memory/secret-store/inject", json=BATCH))
    before = admin.get("/api/memory/secret-store/export").content
    with client(keyed.url, given(keyed.data, "admin", ["elsewhere-*"])) as http:
        for asked in operations:
            there, there_body = asked.answer(http, "secret-store")
            missing, missing_body = asked.answer(http, "missing-store")
            assert there == missing, (asked.id, there, missing)
            assert (there == 404) or not asked.of_store, (asked.id, there)
            if not asked.of_store:
                assert b"secret-store" not in there_body, asked.id
            else:
                assert detail(there_body) == detail(missing_body).replace("missing", "secret"), asked.id
    assert admin.get("/api/memory/secret-store/export").content == before


def detail(body: bytes) -> str:
    return msgspec.json.decode(body, type=dict[str, Any])["detail"]
