"""What each method of the library does: the use cases of `kgserve.ops`, called where they are.

A function here takes what is open, a store's name, and then the parameters of the client's description of the same
operation, or the request that these come to.
"""

# ruff: noqa: D103 - the descriptions have the words
from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from kgserve.client.lines import Upload, json_body
from kgserve.client.operations import Paged
from kgserve.client.settings import chosen
from kgserve.decoding import decode_json
from kgserve.errors import InvalidInput
from kgserve.model import answers
from kgserve.model import stores as store_model
from kgserve.model.answers import EntityVersion
from kgserve.model.requests import (
    BatchSearchRequest,
    ContextRequest,
    CypherRequest,
    EdgeKeyRequest,
    InjectRequest,
    RestoreRequest,
    RevertRequest,
    SearchRequest,
    TraverseRequest,
    place_of,
)
from kgserve.model.stores import (
    ConflictPolicy,
    Keeping,
    PruneAnswer,
    PruneRequest,
    StoreSettingsAnswer,
    StoreSettingsRequest,
)
from kgserve.ops import batch_search as batch_ops
from kgserve.ops import context as context_ops
from kgserve.ops import cypher as cypher_ops
from kgserve.ops import delete as delete_ops
from kgserve.ops import entities as entity_ops
from kgserve.ops import history as history_ops
from kgserve.ops import inject as inject_ops
from kgserve.ops import nodes as node_ops
from kgserve.ops import past_export, transfer
from kgserve.ops import search as search_ops
from kgserve.ops import stores as store_ops
from kgserve.ops import traverse as traverse_ops
from kgserve.ops.cypher_stream import RowStream, stream
from kgserve.ops.moments import Past
from kgserve.views.companions import Opened

R = TypeVar("R", bound=msgspec.Struct)

INTERRUPT_SECONDS = 0.05
HEARING_SECONDS = 0.2
"""A wait for a statement is cut into parts: of a signal that comes as one without end begins Python does not hear."""


def read(text: bytes, kind: type[R]) -> R:
    """A request as the server would read it, so that the same is refused with the same words."""
    try:
        return decode_json(text, kind)
    except msgspec.ValidationError as error:
        fault = place_of(error)
        raise InvalidInput(f"{fault.path}: {fault.message}" if fault.path else fault.message, (fault,)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"this cannot be read as JSON again: {error}") from None


def stores(opened: Opened) -> store_model.StoreList:
    return store_ops.list_stores(opened.pool, opened.indexer, opened.historian)


def create(
    opened: Opened,
    name: str,
    *,
    display_name: str | None = None,
    conflict_policy: ConflictPolicy | None = None,
    kind_whitelist: Iterable[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    history: Keeping | None = None,
) -> store_model.StoreAnswer:
    wanted = chosen(
        name=display_name,
        conflict_policy=conflict_policy,
        kind_whitelist=kind_whitelist,
        metadata=metadata,
        history=history,
    )
    return store_ops.create_store(opened.pool, name, read(json_body(wanted), StoreSettingsRequest))


def drop(opened: Opened, name: str, *, confirm: str) -> store_model.DropAnswer:
    return store_ops.drop_store(opened.pool, name, confirm)


def settings(opened: Opened, store: str) -> StoreSettingsAnswer:
    return store_ops.store_settings(opened.pool, store)


def update_settings(opened: Opened, store: str, request: StoreSettingsRequest) -> StoreSettingsAnswer:
    return store_ops.update_store(opened.pool, store, request)


def inject(opened: Opened, store: str, request: InjectRequest) -> Future[answers.InjectAnswer]:
    return inject_ops.inject(opened.pool, store, request)


def delete_node(opened: Opened, store: str, node_id: str) -> Future[answers.DeleteNodeAnswer]:
    return delete_ops.delete_node(opened.pool, store, node_id)


def delete_edge(opened: Opened, store: str, request: EdgeKeyRequest) -> Future[answers.DeleteEdgeAnswer]:
    return delete_ops.delete_edge(opened.pool, store, request)


def traverse(opened: Opened, store: str, request: TraverseRequest) -> answers.TraverseAnswer:
    return traverse_ops.traverse(opened.pool, store, request, opened.historian)


def node(
    opened: Opened,
    store: str,
    node_id: str,
    *,
    as_of: int | str | None = None,
    valid_at: str | None = None,
    version: int | None = None,
) -> answers.NodeAnswer:
    if version is None:
        return node_ops.get_node(opened.pool, store, node_id, past(opened, as_of), valid_at)
    if as_of is not None or valid_at is not None:
        raise InvalidInput("version: goes with neither as_of nor valid_at")
    return history_ops.node_version(opened.pool, opened.historian, store, node_id, version)


def history(
    opened: Opened, store: str, node_id: str, *, limit: int = 50, before: int | None = None
) -> answers.NodeHistory:
    return history_ops.node_history(opened.pool, opened.historian, store, node_id, limit, before)


def entity_history(
    opened: Opened, store: str, entity_id: str, *, limit: int = 1000, after_sequence: int | None = None
) -> list[EntityVersion]:
    after = after_sequence or 0
    return entity_ops.entity_history(opened.pool, opened.historian, store, entity_id, limit, after).versions


def prune_history(opened: Opened, store: str, request: PruneRequest) -> PruneAnswer:
    return history_ops.prune_history(opened.pool, opened.historian, store, request)


def revert(opened: Opened, store: str, node_id: str, version: int) -> Future[answers.InjectAnswer]:
    wanted = read(json_body({"version": version}), RevertRequest)
    return history_ops.revert(opened.pool, opened.historian, store, node_id, wanted)


def changes(opened: Opened, store: str, *, since: int = 0, limit: int = 50) -> answers.ChangesPage:
    return history_ops.changes(opened.pool, store, since, limit)


def restore(opened: Opened, store: str, request: RestoreRequest) -> answers.RestoreAnswer:
    return past_export.restore(opened.pool, opened.historian, store, request)


def search(opened: Opened, store: str, request: SearchRequest) -> answers.SearchAnswer:
    return search_ops.search(opened.pool, opened.indexer, store, request, opened.historian)


def search_batch(opened: Opened, store: str, request: BatchSearchRequest) -> answers.BatchSearchAnswer:
    return batch_ops.batch_search(opened.pool, opened.indexer, store, request, opened.historian)


def context(opened: Opened, store: str, request: ContextRequest) -> answers.ContextAnswer:
    return context_ops.context(opened.pool, opened.indexer, store, request, opened.historian)


def cypher(opened: Opened, store: str, request: CypherRequest) -> answers.CypherAnswer:
    return cypher_ops.run(opened.pool, store, request)


def cypher_rows(opened: Opened, store: str, request: CypherRequest) -> RowStream:
    return stream(opened.pool, store, request, "ndjson")


def stats(opened: Opened, store: str) -> store_model.StoreStats:
    return store_ops.stats(opened.pool, store, opened.indexer, opened.historian)


def reindex(opened: Opened, store: str) -> answers.ReindexAnswer:
    return store_ops.reindex(opened.pool, store, opened.indexer)


def import_(opened: Opened, store: str, upload: Upload) -> answers.ImportAnswer:
    importer = transfer.Importer(opened.pool, store)
    try:
        for block in upload.blocks():
            if importer.feed(block):
                importer.flush()
        return importer.finish()
    finally:
        importer.abort()


def export(
    opened: Opened, store: str, *, as_of: int | str | None = None, valid_at: str | None = None
) -> transfer.ExportStream | past_export.PastStream:
    moment = past(opened, as_of)
    if moment is None:
        return transfer.export(opened.pool, store, valid_at)
    return past_export.export_as_of(opened.pool, store, moment, valid_at)


def page(opened: Opened, wanted: Paged, cursor: str | None) -> answers.NodePage:
    moment = past(opened, wanted.as_of)
    listed = node_ops.NodeList(
        types=(wanted.type,) if wanted.type else (),
        tags=tuple(wanted.tags),
        valid_at=wanted.valid_at,
        limit=wanted.page_size,
        cursor=cursor,
    )
    return node_ops.page_nodes(opened.pool, wanted.store, listed, moment)


def past(opened: Opened, as_of: int | str | None) -> Past | None:
    """The moment that a caller names, if one is named."""
    return None if as_of is None else Past(opened.historian, as_of)
