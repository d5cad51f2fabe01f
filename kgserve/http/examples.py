"""The examples of the API description: one small story of requirements and the code that meets them.

Requests are written as a caller would write them; answers are Structs, so that they cannot fall behind the types.
"""

from __future__ import annotations

from typing import Any

from kgserve.model.answers import (
    DeleteEdgeAnswer,
    DeleteNodeAnswer,
    DropAnswer,
    Edge,
    Health,
    ImportAnswer,
    InjectAnswer,
    Node,
    NodeAnswer,
    NodePage,
    ReachedNode,
    Ready,
    StoreAnswer,
    StoreList,
    StoreStats,
    StoreSummary,
    TraverseAnswer,
)

_TIME = "2025-07-15T12:00:00.000000Z"
_LOGIN = "User must log in with email and password"

INJECT: dict[str, Any] = {
    "nodes": [
        {"id": "req-001", "type": "requirement", "content": _LOGIN, "attributes": {"priority": "high", "sprint": 3}},
        {"id": "feat-jwt", "type": "code_symbol", "content": "JWT handler"},
    ],
    "edges": [{"from": "req-001", "to": "feat-jwt", "relation_type": "IMPLEMENTED_BY", "weight": 1.0}],
}
EDGE_KEY: dict[str, Any] = {"from": "req-001", "to": "feat-jwt", "relation_type": "IMPLEMENTED_BY"}
TRAVERSE: dict[str, Any] = {"start_id": "req-001", "depth": 2}
NDJSON_LINES = (
    '{"kind":"node","id":"req-001","type":"requirement","content":"User must log in"}\n'
    '{"kind":"node","id":"feat-jwt","type":"code_symbol"}\n'
    '{"kind":"edge","from":"req-001","to":"feat-jwt","relation_type":"IMPLEMENTED_BY","weight":1.0}\n'
)

_ATTRIBUTES = {"priority": "high", "sprint": 3}
_NODE = Node(
    id="req-001",
    type="requirement",
    content=_LOGIN,
    attributes=_ATTRIBUTES,
    version=1,
    sequence=1,
    created_at=_TIME,
    updated_at=_TIME,
)
_EDGE = Edge(
    source="req-001",
    target="feat-jwt",
    relation_type="IMPLEMENTED_BY",
    weight=1.0,
    attributes={"created_at": _TIME, "updated_at": _TIME},
    version=1,
    sequence=1,
)

INJECTED = InjectAnswer(
    nodes_sent=2,
    edges_sent=1,
    nodes_created=2,
    nodes_updated=0,
    nodes_unchanged=0,
    edges_created=1,
    edges_updated=0,
    edges_unchanged=0,
    edges_skipped=[],
    edges_skipped_count=0,
    sequence=1,
)
NODE_DELETED = DeleteNodeAnswer(deleted_id="req-001", existed=True, edges_deleted=1, sequence=2)
EDGE_DELETED = DeleteEdgeAnswer(existed=True, sequence=2)
TRAVERSED = TraverseAnswer(
    nodes=[
        ReachedNode(
            id="req-001",
            type="requirement",
            content=_LOGIN,
            attributes=_ATTRIBUTES,
            version=1,
            sequence=1,
            created_at=_TIME,
            updated_at=_TIME,
            depth=0,
        ),
        ReachedNode(
            id="feat-jwt",
            type="code_symbol",
            content="JWT handler",
            attributes={},
            version=1,
            sequence=1,
            created_at=_TIME,
            updated_at=_TIME,
            depth=1,
        ),
    ],
    edges=[_EDGE],
    count=2,
    truncated=False,
    sequence=1,
)
NODE = NodeAnswer(node=_NODE, outgoing=[_EDGE], incoming=[], edges_truncated=False)
PAGE = NodePage(nodes=[_NODE], next_cursor=None)
STORES = StoreList(
    stores=[
        StoreSummary(
            name="project",
            state="open",
            nodes=2,
            edges=1,
            sequence=1,
            journal_bytes=612,
            engine_bytes=3_149_824,
            created_at=_TIME,
        )
    ],
    count=1,
)
STORE = StoreAnswer(name="project", created=True, sequence=0)
DROPPED = DropAnswer(dropped="project")
STATS = StoreStats(
    name="project",
    nodes=2,
    edges=1,
    sequence=1,
    types={"requirement": 1, "code_symbol": 1},
    relation_types={"IMPLEMENTED_BY": 1},
    journal_bytes=612,
    journal_segments=1,
    snapshot_sequence=None,
    engine_bytes=3_149_824,
    engine_log_bytes=1_024,
    engine_rebuilds=0,
    compactions=0,
    queued_writes=0,
    last_check=None,
    last_check_ok=None,
    digest="3f1d0c5a9be84276a2b7c6d1e0f94853",
    created_at=_TIME,
)
IMPORTED = ImportAnswer(
    ok=True,
    lines=3,
    nodes_sent=2,
    edges_sent=1,
    nodes_created=2,
    nodes_updated=0,
    nodes_unchanged=0,
    edges_created=1,
    edges_updated=0,
    edges_unchanged=0,
    edges_skipped=[],
    edges_skipped_count=0,
    errors=[],
    error_count=0,
    sequence=1,
)
HEALTHY = Health(version="0.1.0")
READY = Ready(open_stores=1, free_bytes=52_613_349_376)
