"""Request and answer examples of the OpenAPI description.

Requests are written as a caller would write them. Answers are Structs, so that type checks keep them up to date.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kgserve.admin.store_admin_models import (
    CreateStoreAnswer,
    DropStoreAnswer,
    LinkedStoreEdgeCount,
    LinkedStoresAnswer,
    PruneHistoryAnswer,
    StoreList,
    StoreSettingsAnswer,
    StoreSettingsSummary,
    StoreStats,
    StoreSummary,
)
from kgserve.graph.answers import (
    BatchSearchAnswer,
    BatchSearchHit,
    BrowserApiKey,
    CallerInfo,
    ChangesPage,
    CommitChangeEntry,
    CountNodesAnswer,
    CypherAnswer,
    CypherVocabulary,
    DeleteEdgeAnswer,
    DeleteNodeAnswer,
    DeleteNodesAnswer,
    Edge,
    EntityVersion,
    FieldChange,
    HealthStatus,
    ImportAnswer,
    InjectAnswer,
    LlmContextAnswer,
    Node,
    NodeHistory,
    NodeHistoryState,
    NodePage,
    NodesByIdAnswer,
    NodeWithEdgesAnswer,
    PointInTimeRestoreAnswer,
    ReachedNode,
    ReadinessStatus,
    ReindexAnswer,
    SearchAnswer,
    SearchHit,
    StoreCypherVocabulary,
    StoreTypesAndTags,
    TagList,
    TraverseAnswer,
)
from kgserve.graph.compat.versioned_nodes_api import (
    EdgeAnswer,
    EdgeList,
    PutNodeAnswer,
    PutNodeRequest,
    PutSubgraphAnswer,
    PutSubgraphNodeResult,
    PutSubgraphRequest,
    RetireEdgeRequest,
    RetireNodeOrEdgeAnswer,
    RetireVersionedNodeRequest,
    SubgraphEdgeInput,
    SubgraphEdgeResult,
    SubgraphNodeInput,
)
from kgserve.graph.node_merge_models import MergeIntoRequest, NodeMergeAnswer, UnmergeAnswer, UnmergeRequest
from kgserve.graph.visualization_models import CommitTimeline, DrawnEdgeColumns, DrawnNodeColumns, GraphDrawingAnswer
from kgserve.platform.access.audit_api import AuditAnswer, AuditRecord
from kgserve.storage.model.projection_statuses import HistoryStatus, IndexStatus
from kgserve.storage.model.store_settings import MemorySettings
from kgserve.storage.model.type_and_tag_frequency_models import NodeTypeFrequency, TagFrequency, TagPrefixFrequency
from kgserve.stores.backup.api import BackupAnswer, RestoreBackupAnswer, RestoredStore, StoreBackupAnswer
from kgserve.stores.cluster_models import (
    ClusterFormatUpgradeAnswer,
    ClusterNode,
    ClusterStatus,
    DrainAnswer,
    StoreLogRepairAnswer,
    StoreMoveAnswer,
)

EXAMPLE_TIME = "2025-07-15T12:00:00.000000Z"
_LOGIN_CONTENT = "User must log in with email and password"

INJECT_REQUEST_EXAMPLE: dict[str, Any] = {
    "nodes": [
        {
            "id": "req-001",
            "type": "requirement",
            "content": _LOGIN_CONTENT,
            "attributes": {"priority": "high", "sprint": 3},
        },
        {"id": "feat-jwt", "type": "code_symbol", "content": "JWT handler"},
    ],
    "edges": [{"from": "req-001", "to": "feat-jwt", "relation_type": "IMPLEMENTED_BY", "weight": 1.0}],
}
EDGE_KEY_EXAMPLE: dict[str, Any] = {"from": "req-001", "to": "feat-jwt", "relation_type": "IMPLEMENTED_BY"}
TRAVERSE_REQUEST_EXAMPLE: dict[str, Any] = {"start_id": "req-001", "depth": 2}
NDJSON_LINES_EXAMPLE = (
    '{"kind":"node","id":"req-001","type":"requirement","content":"User must log in"}\n'
    '{"kind":"node","id":"feat-jwt","type":"code_symbol"}\n'
    '{"kind":"edge","from":"req-001","to":"feat-jwt","relation_type":"IMPLEMENTED_BY","weight":1.0}\n'
)
METRICS_EXAMPLE = (
    "# HELP kgserve_store_sequence Number of the last commit\n# TYPE kgserve_store_sequence gauge\n"
    'kgserve_store_sequence{store="project"} 42.0\n'
)
OPENMETRICS_EXAMPLE = METRICS_EXAMPLE + "# EOF\n"
STORE_EVENTS_EXAMPLE = (
    "retry: 1000\nid: 0\n\n"
    'id: 1-0\nevent: node_created\ndata: {"store":"project","time":"2025-07-15T12:00:00.000000Z","sequence":1,'
    '"id":"feat-jwt","type":"code_symbol","content":"JWT handler","attributes":{},"version":1,'
    '"created_at":"2025-07-15T12:00:00.000000Z","updated_at":"2025-07-15T12:00:00.000000Z"}\n\n'
    ": heartbeat\nid: 1\n\n"
)
ALL_EVENTS_EXAMPLE = (
    "retry: 1000\nid: project:1,*:0\n\n"
    "id: notes:0-0,project:1,*:0\nevent: store_created\n"
    'data: {"store":"notes","time":"2025-07-15T12:00:00.000000Z","sequence":0}\n\n'
)

_NODE_ATTRIBUTES_EXAMPLE = {"priority": "high", "sprint": 3}
_NODE_EXAMPLE = Node(
    id="req-001",
    type="requirement",
    content=_LOGIN_CONTENT,
    attributes=_NODE_ATTRIBUTES_EXAMPLE,
    version=1,
    sequence=1,
    created_at=EXAMPLE_TIME,
    updated_at=EXAMPLE_TIME,
)
_EDGE_EXAMPLE = Edge(
    id="req-001~IMPLEMENTED_BY~feat-jwt",
    source="req-001",
    target="feat-jwt",
    relation_type="IMPLEMENTED_BY",
    weight=1.0,
    attributes={"created_at": EXAMPLE_TIME, "updated_at": EXAMPLE_TIME},
    version=1,
    sequence=1,
)

INJECT_ANSWER_EXAMPLE = InjectAnswer(
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
DELETE_NODE_ANSWER_EXAMPLE = DeleteNodeAnswer(deleted_id="req-001", existed=True, edges_deleted=1, sequence=2)
DELETE_EDGE_ANSWER_EXAMPLE = DeleteEdgeAnswer(existed=True, sequence=2)
TRAVERSE_ANSWER_EXAMPLE = TraverseAnswer(
    nodes=[
        ReachedNode(
            id="req-001",
            type="requirement",
            content=_LOGIN_CONTENT,
            attributes=_NODE_ATTRIBUTES_EXAMPLE,
            version=1,
            sequence=1,
            created_at=EXAMPLE_TIME,
            updated_at=EXAMPLE_TIME,
            depth=0,
        ),
        ReachedNode(
            id="feat-jwt",
            type="code_symbol",
            content="JWT handler",
            attributes={},
            version=1,
            sequence=1,
            created_at=EXAMPLE_TIME,
            updated_at=EXAMPLE_TIME,
            depth=1,
        ),
    ],
    edges=[_EDGE_EXAMPLE],
    count=2,
    truncated=False,
    sequence=1,
)
NODE_ANSWER_EXAMPLE = NodeWithEdgesAnswer(
    node=_NODE_EXAMPLE, outgoing=[_EDGE_EXAMPLE], incoming=[], edges_truncated=False
)
NODE_PAGE_EXAMPLE = NodePage(nodes=[_NODE_EXAMPLE], next_cursor=None)
GET_NODES_REQUEST_EXAMPLE: dict[str, Any] = {"ids": ["req-001", "req-002"]}
GET_NODES_ANSWER_EXAMPLE = NodesByIdAnswer(nodes=[_NODE_EXAMPLE], missing=["req-002"])
COUNT_REQUEST_EXAMPLE: dict[str, Any] = {"types": ["requirement"], "attributes": {"status": "open"}}
COUNT_ANSWER_EXAMPLE = CountNodesAnswer(count=1, exact=True, sequence=1)
DELETE_NODES_REQUEST_EXAMPLE: dict[str, Any] = {"attributes": {"status": "dropped"}, "dry_run": True}
DELETE_NODES_ANSWER_EXAMPLE = DeleteNodesAnswer(
    dry_run=True, count=1, ids=["req-007"], edges_deleted=2, missing=[], more=False, sequence=1
)
_TAG_COUNTS_EXAMPLE = [TagFrequency(tag="status:open", count=1), TagFrequency(tag="security", count=1)]
TAG_LIST_EXAMPLE = TagList(tags=_TAG_COUNTS_EXAMPLE)
SCHEMA_EXAMPLE = StoreTypesAndTags(
    store="project",
    node_count=2,
    kinds=[
        NodeTypeFrequency(kind="code_symbol", count=1, examples=["JWT handler"]),
        NodeTypeFrequency(kind="requirement", count=1, examples=[_LOGIN_CONTENT]),
    ],
    tag_prefixes=[TagPrefixFrequency(prefix="status", count=1, values=["open"])],
    tags=_TAG_COUNTS_EXAMPLE,
)
LINK_MANIFEST_EXAMPLE = LinkedStoresAnswer(
    store="project",
    outbound=[LinkedStoreEdgeCount("standards", 3)],
    inbound=[LinkedStoreEdgeCount("team", 1)],
    inbound_seen={"team": 17},
    truncated=False,
    sequence=42,
)
STORE_LIST_EXAMPLE = StoreList(
    stores=[
        StoreSummary(
            name="project",
            state="open",
            nodes=2,
            edges=1,
            sequence=1,
            journal_bytes=612,
            engine_bytes=3_149_824,
            created_at=EXAMPLE_TIME,
            last_write=EXAMPLE_TIME,
            settings=StoreSettingsSummary(
                name="", conflict_policy="lww", kind_whitelist=[], indexed_attributes=[], metadata={}
            ),
            lag=0,
        )
    ],
    count=1,
)
CREATE_STORE_ANSWER_EXAMPLE = CreateStoreAnswer(name="project", created=True, sequence=0)
DROP_ANSWER_EXAMPLE = DropStoreAnswer(dropped="project")
STORE_STATS_EXAMPLE = StoreStats(
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
    engine_lag=0,
    engine_rebuilds=0,
    compactions=0,
    queued_writes=0,
    indexes=[
        IndexStatus(
            name="vector",
            sequence=1,
            lag=0,
            entities=2,
            pending=0,
            bytes=3_072,
            model="sentence-transformers/all-MiniLM-L6-v2",
            degraded=False,
            error=None,
        )
    ],
    languages={"en": 2},
    last_check=None,
    last_check_ok=None,
    digest="3f1d0c5a9be84276a2b7c6d1e0f94853",
    created_at=EXAMPLE_TIME,
    history_lag=0,
    history=HistoryStatus(oldest=0, bytes=61_440, gaps=[], scrubbed_bytes=0, scrubbed_at=EXAMPLE_TIME, damage=None),
)
REINDEX_ANSWER_EXAMPLE = ReindexAnswer(name="project", sequence=1)
SEARCH_REQUEST_EXAMPLE: dict[str, Any] = {
    "query": "how do users sign in?",
    "limit": 5,
    "types": ["requirement"],
    "at_least": 1,
}
SEARCH_ANSWER_EXAMPLE = SearchAnswer(
    hits=[SearchHit(node=_NODE_EXAMPLE, score=0.61, keyword_score=1.86, semantic_score=0.48, hops=0)],
    degraded=False,
    index_sequence=1,
    took_ms=6.2,
)
BATCH_SEARCH_REQUEST_EXAMPLE: dict[str, Any] = {
    "queries": [{"query": "how do users sign in?"}, {"query": "login", "mode": "keyword", "limit": 10}],
    "limit": 5,
}
BATCH_SEARCH_ANSWER_EXAMPLE = BatchSearchAnswer(
    hits=[BatchSearchHit(node=_NODE_EXAMPLE, score=0.0328, queries_matched=[0, 1])],
    query_count=2,
    unique_hits=1,
    per_query_hits=[1, 1],
    degraded=False,
    index_sequence=1,
    took_ms=9.8,
)
CONTEXT_REQUEST_EXAMPLE: dict[str, Any] = {"query": "how do users sign in?", "budget": 500}
CONTEXT_ANSWER_EXAMPLE = LlmContextAnswer(
    text=f"- [req-001] (requirement) {_LOGIN_CONTENT}",
    tokens=20,
    ids=["req-001"],
    truncated=False,
    degraded=False,
    index_sequence=1,
)
IMPORT_ANSWER_EXAMPLE = ImportAnswer(
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
HEALTH_EXAMPLE = HealthStatus(version="0.1.0")
DRAW_REQUEST_EXAMPLE: dict[str, Any] = {"around": ["req-001"], "depth": 1, "lives": True}
DRAW_ANSWER_EXAMPLE = GraphDrawingAnswer(
    sequence=7,
    truncated=False,
    types=["requirement", "code_symbol"],
    relation_types=["IMPLEMENTED_BY"],
    nodes=DrawnNodeColumns(
        id=["req-001", "sym-001"],
        type=[0, 1],
        label=["User login with JWT", "JWT handler"],
        degree=[213, 1],
        lives=[[[3, None], [1, 3]], [[1, None]]],
    ),
    edges=DrawnEdgeColumns(source=[0], target=[1], type=[0], weight=[1.0], lives=[[[1, None]]]),
    left_out=[[0, 212]],
    missing=[],
)
TIMELINE_EXAMPLE = CommitTimeline(
    sequence=7, oldest=0, buckets=[[1, 7, "2025-07-15T12:00:00.000000Z", "2025-07-15T12:05:00.000000Z", 7]]
)
CYPHER_WORDS_EXAMPLE = CypherVocabulary(
    keywords=["MATCH", "RETURN", "WHERE"],
    functions=["count", "toupper"],
    procedures=["show_tables"],
    labels={"Entity": {"id": "STRING", "type": "STRING"}, "RELATES_TO": {"weight": "DOUBLE"}},
)
STORE_WORDS_EXAMPLE = StoreCypherVocabulary(
    keywords=["MATCH", "RETURN", "WHERE"],
    functions=["count", "toUpper"],
    procedures=["db.labels"],
    labels={"requirement": ["status", "owner"], "code_symbol": ["language"]},
    relation_types={"IMPLEMENTED_BY": ["since"]},
    node_properties=["id", "type", "content"],
    relation_properties=["relation_type", "weight"],
)
BROWSER_KEY_EXAMPLE = BrowserApiKey(
    key="kgs_example0_" + "A" * 43, role="read", stores=["*"], expires="2025-07-16T00:00:00.000000Z"
)
WHOAMI_EXAMPLE = CallerInfo(
    name="ann-laptop", role="write", stores=["project", "team-*"], expires=EXAMPLE_TIME, open=False, backups=False
)
AUDIT_ANSWER_EXAMPLE = AuditAnswer(
    records=[
        AuditRecord(
            time="2026-03-01T09:30:00.000000Z",
            kind="admin",
            act="DELETE /api/memory/project",
            outcome="done",
            request="a1b2c3d4e5f60718",
            caller="ann",
            key="k7f3q2ma",
            address="10.0.0.7",
            store="project",
            node="a",
        )
    ]
)
CLUSTER_STATUS_EXAMPLE = ClusterStatus(
    node="a",
    silent=False,
    format=1,
    nodes=[
        ClusterNode(name="a", url="http://10.0.0.1:8080", state="alive", stores=12),
        ClusterNode(name="b", url="http://10.0.0.2:8080", state="alive", stores=9),
        ClusterNode(name="c", url="http://10.0.0.3:8080", state="gone", stores=3),
    ],
)
DRAIN_REQUEST_EXAMPLE: dict[str, Any] = {"undo": False}
DRAIN_ANSWER_EXAMPLE = DrainAnswer(node="a", draining=True, moved=12, failed={})
UPGRADE_ANSWER_EXAMPLE = ClusterFormatUpgradeAnswer(format=1)
REPAIR_ANSWER_EXAMPLE = StoreLogRepairAnswer(store="project", node="a", sequence=1042, found=1037)
MOVE_REQUEST_EXAMPLE: dict[str, Any] = {"to": "b"}
MOVE_ANSWER_EXAMPLE = StoreMoveAnswer(store="project", node="b", url="http://10.0.0.2:8080")
READY_EXAMPLE = ReadinessStatus(open_stores=1, free_bytes=52_613_349_376)

CYPHER_REQUEST_EXAMPLE: dict[str, Any] = {
    "query": "MATCH (r:Entity {type: $type})-[e]->(c) RETURN r.id, e.relation_type, c.id ORDER BY c.id",
    "params": {"type": "requirement"},
}

_CYPHER_COLUMNS_EXAMPLE = ["r.id", "e.relation_type", "c.id"]

CYPHER_ANSWER_EXAMPLE = CypherAnswer(
    columns=_CYPHER_COLUMNS_EXAMPLE,
    types=["STRING", "STRING", "STRING"],
    rows=[["req-001", "IMPLEMENTED_BY", "feat-jwt"]],
    row_count=1,
    truncated=False,
    took_ms=1.7,
)

CYPHER_NDJSON_EXAMPLE = (
    '{"columns":["r.id","e.relation_type","c.id"],"types":["STRING","STRING","STRING"]}\n'
    '["req-001","IMPLEMENTED_BY","feat-jwt"]\n'
    '{"row_count":1,"truncated":false,"took_ms":1.7}\n'
)

CYPHER_CSV_EXAMPLE = "r.id,e.relation_type,c.id\r\nreq-001,IMPLEMENTED_BY,feat-jwt\r\n"

REVERT_REQUEST_EXAMPLE: dict[str, Any] = {"version": 1}
RESTORE_REQUEST_EXAMPLE: dict[str, Any] = {"as_of": "2025-07-15T12:00:00Z", "into": "project-as-it-was"}
RESTORE_ANSWER_EXAMPLE = PointInTimeRestoreAnswer(
    name="project-as-it-was", nodes=2, edges=1, from_sequence=1, sequence=1
)

NODE_HISTORY_EXAMPLE = NodeHistory(
    id="req-001",
    states=[
        NodeHistoryState(
            node=msgspec.structs.replace(NODE_ANSWER_EXAMPLE.node, version=2, sequence=2),
            from_sequence=2,
            to_sequence=None,
            recorded_from=EXAMPLE_TIME,
            recorded_to=None,
            deleted=False,
            diff=[FieldChange(path="attributes.sprint", before=2, after=3)],
        )
    ],
    next_before=2,
)

CHANGES_PAGE_EXAMPLE = ChangesPage(
    changes=[
        CommitChangeEntry(
            sequence=1,
            time=EXAMPLE_TIME,
            rows=3,
            nodes_created=[NODE_ANSWER_EXAMPLE.node],
            nodes_updated=[],
            nodes_deleted=[],
            edges_created=NODE_ANSWER_EXAMPLE.outgoing,
            edges_updated=[],
            edges_deleted=[],
            truncated=False,
        )
    ],
    next_since=1,
    sequence=2,
)

SETTINGS_REQUEST_EXAMPLE: dict[str, Any] = {
    "name": "The web shop",
    "kind_whitelist": ["requirement", "code_symbol"],
    "metadata": {"team": "checkout"},
    "indexed_attributes": ["owner"],
    "indexes": "words",
    "language": "de",
    "late_interaction": "turns",
    "history": 90,
    "memory": {"half_life_by_type": {"preference": None}},
}
SETTINGS_ANSWER_EXAMPLE = StoreSettingsAnswer(
    store="project",
    name="The web shop",
    conflict_policy="lww",
    kind_whitelist=["requirement", "code_symbol"],
    metadata={"team": "checkout"},
    indexed_attributes=["owner"],
    indexes="words",
    language="de",
    late_interaction="turns",
    history=90,
    memory=MemorySettings(half_life_by_type={"preference": None}),
    created_at=EXAMPLE_TIME,
    sequence=1,
)
PRUNE_HISTORY_REQUEST_EXAMPLE: dict[str, Any] = {"before": "30d"}
PRUNE_HISTORY_ANSWER_EXAMPLE = PruneHistoryAnswer(store="project", pruned=1, oldest=2, sequence=2)
ENTITY_HISTORY_EXAMPLE = [
    EntityVersion(
        id="req-001@1",
        entity_id="req-001",
        content=_LOGIN_CONTENT,
        layer=2,
        parent_id="accounts",
        valid_from=EXAMPLE_TIME,
        valid_to=None,
        version=1,
        type="requirement",
        attributes={"layer": 2, "parent_id": "accounts"},
        sequence=1,
    )
]

PUT_NODE_REQUEST_EXAMPLE = PutNodeRequest(
    lineage_id="req-001",
    kind="requirement",
    content="Sessions last 12 hours.",
    tags=["status:open"],
    based_on_version=1,
)
PUT_NODE_ANSWER_EXAMPLE = PutNodeAnswer(node=_NODE_EXAMPLE, created=False, sequence=2)
PUT_SUBGRAPH_REQUEST_EXAMPLE = PutSubgraphRequest(
    nodes=[SubgraphNodeInput(ref="a", kind="decision", content="Use JWT.")],
    edges=[SubgraphEdgeInput(from_ref="a", to_lineage="req-001", kind="SATISFIES")],
)
PUT_SUBGRAPH_ANSWER_EXAMPLE = PutSubgraphAnswer(
    nodes=[PutSubgraphNodeResult(ref="a", lineage_id="9f1c", version=1, created=True)],
    edges=[SubgraphEdgeResult(edge_id="9f1c~SATISFIES~req-001")],
    sequence=3,
)
RETIRE_REQUEST_EXAMPLE = RetireVersionedNodeRequest(valid_to="2025-12-31T00:00:00Z")
RETIRE_EDGE_REQUEST_EXAMPLE = RetireEdgeRequest(source="req-001", target="feat-jwt", relation_type="IMPLEMENTED_BY")
RETIRE_ANSWER_EXAMPLE = RetireNodeOrEdgeAnswer(
    valid_to="2025-12-31T00:00:00.000000Z", changed=True, version=2, sequence=4
)
MERGE_REQUEST_EXAMPLE = MergeIntoRequest(into="req-001")
MERGE_ANSWER_EXAMPLE = NodeMergeAnswer(
    id="req-one",
    into="req-001",
    changed=True,
    node=_NODE_EXAMPLE,
    edges_moved=3,
    edges_dropped=1,
    loops_dropped=0,
    taken_over=["attributes.owner", "tags.status:open"],
    not_taken=["content"],
    sequence=5,
)
UNMERGE_REQUEST_EXAMPLE = UnmergeRequest(created_by="ada")
UNMERGE_ANSWER_EXAMPLE = UnmergeAnswer(
    id="req-001",
    out_of="req-002",
    changed=True,
    node=_NODE_EXAMPLE,
    edges_restored=4,
    edges_removed=3,
    edges_kept=1,
    not_restored=[],
    not_restored_count=0,
    given_back=["attributes.owner"],
    kept=[],
    sequence=6,
)
EDGE_LIST_EXAMPLE = EdgeList(edges=[_EDGE_EXAMPLE], next_offset=None)
EDGE_ANSWER_EXAMPLE = EdgeAnswer(edge=_EDGE_EXAMPLE)

_DIGEST_EXAMPLE = "3f1d0c5a9be84276a2b7c6d1e0f94853"

BACKUP_REQUEST_EXAMPLE: dict[str, Any] = {"to": "nightly", "keep": 4}
BACKUP_STORES_REQUEST_EXAMPLE: dict[str, Any] = {"to": "nightly", "stores": ["project"]}
RESTORE_BACKUP_REQUEST_EXAMPLE: dict[str, Any] = {
    "from": "nightly",
    "store": "project",
    "as": "project-before",
    "until": "41",
}
STORE_BACKUP_ANSWER_EXAMPLE = StoreBackupAnswer(
    store="project",
    sequence=42,
    first=0,
    since="2025-07-15T12:00:00.000000Z",
    taken_at="2025-07-16T03:00:00.250000Z",
    digest=_DIGEST_EXAMPLE,
    nodes=2,
    edges=1,
    new_base="",
    bytes_copied=612,
    bytes_total=25_704,
    bases=1,
    took_ms=6.1,
)
BACKUP_ANSWER_EXAMPLE = BackupAnswer(
    folder="nightly", stores=[STORE_BACKUP_ANSWER_EXAMPLE], failed=[], bytes_copied=612
)
RESTORE_BACKUP_ANSWER_EXAMPLE = RestoreBackupAnswer(
    stores=[
        RestoredStore(
            store="project-before",
            source="project",
            sequence=41,
            digest=_DIGEST_EXAMPLE,
            nodes=2,
            edges=1,
            took_ms=84.2,
        )
    ]
)
