"""The library and its stores: the client's methods, with the work done in this process."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, Self

import kgserve.client.backups as backups_of
import kgserve.client.operations as ask
import kgserve.client.past as past_of
import kgserve.client.settings as settings_of
import kgserve.client.versions as versions_of
import kgserve.library.backups as do_backups
import kgserve.library.listening as listen
import kgserve.library.versions as do_versions
import kgserve.library.work as do
from kgserve.client.files import complete
from kgserve.library.folder import Handle
from kgserve.library.methods import (
    asks,
    each,
    listens,
    patiently,
    store_asks,
    store_listens,
    store_pages,
    store_sends,
    store_streams,
    store_streams_sent,
    store_uploads,
)
from kgserve.library.quiet import defer_to_host
from kgserve.model.requests import (
    BatchSearchRequest,
    ContextRequest,
    CypherRequest,
    EdgeKeyRequest,
    InjectRequest,
    RestoreRequest,
    SearchRequest,
    TraverseRequest,
)
from kgserve.model.stores import PruneRequest, StoreBackupRequest, StoreSettingsRequest
from kgserve.model.versioned import PutNodeRequest, PutSubgraphRequest, RetireEdgeRequest
from kgserve.settings import load


class Library:
    """The stores of a data folder, opened in this process: the methods of `kgserve.client.Client` without a server.

    May be shared by threads. `close` it, or use it in a `with` block; what a method has answered to is on disk anyway.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        history: bool = True,
        indexes: bool = True,
        models_dir: str | os.PathLike[str] | None = None,
        embedding_provider: Literal["local", "openai", "hashing"] | None = None,
    ) -> None:
        """See `kgserve.open`."""
        defer_to_host()
        options: dict[str, Any] = {
            "data_dir": Path(path).resolve(),
            "history": history,
            "indexes": indexes,
            "models_dir": models_dir,
            "embedding_provider": embedding_provider,
        }
        self.handle = Handle(load(options))

    stores = asks(ask.stores, do.stores)
    create = asks(settings_of.create, do.create)
    drop = asks(ask.drop, do.drop)
    backup_stores = asks(backups_of.backup_stores, do_backups.backup_stores)
    restore_backup = asks(backups_of.restore_backup, do_backups.restore_backup)
    events = listens(ask.events, listen.of_stores)

    def store(self, name: str) -> Store:
        """One store, whether it exists or not: the first inject makes it."""
        return Store(self.handle, name)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self.handle.closed

    def close(self) -> None:
        """Save what is open and give the folder back; waits for calls of other threads. Does nothing a second time."""
        self.handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"kgserve.open({str(self.handle.path)!r})"


class Store:
    """One store of a library."""

    def __init__(self, handle: Handle, name: str) -> None:
        self.handle = handle
        self.name = name

    inject = store_sends(ask.inject, InjectRequest, do.inject)
    delete_node = store_asks(ask.delete_node, do.delete_node)
    delete_edge = store_sends(ask.delete_edge, EdgeKeyRequest, do.delete_edge)
    traverse = store_sends(ask.traverse, TraverseRequest, do.traverse)
    node = store_asks(ask.node, do.node)
    nodes = store_pages(ask.nodes)
    history = store_asks(past_of.history, do.history)
    revert = store_asks(past_of.revert, do.revert)
    changes = store_asks(past_of.changes, do.changes)
    restore = store_sends(past_of.restore, RestoreRequest, do.restore)
    prune_history = store_sends(past_of.prune_history, PruneRequest, do.prune_history)
    entity_history = store_asks(past_of.entity_history, do.entity_history)
    backup = store_sends(backups_of.backup, StoreBackupRequest, do_backups.backup)
    settings = store_asks(settings_of.settings, do.settings)
    update_settings = store_sends(settings_of.update_settings, StoreSettingsRequest, do.update_settings)
    put_node = store_sends(versions_of.put_node, PutNodeRequest, do_versions.put_node)
    put_subgraph = store_sends(versions_of.put_subgraph, PutSubgraphRequest, do_versions.put_subgraph)
    retire = store_asks(versions_of.retire, do_versions.retire)
    retire_edge = store_sends(versions_of.retire_edge, RetireEdgeRequest, do_versions.retire_edge)
    outgoing = store_asks(versions_of.outgoing, do_versions.outgoing)
    incoming = store_asks(versions_of.incoming, do_versions.incoming)
    edge = store_asks(versions_of.edge, do_versions.edge)
    delete_edge_by_id = store_asks(versions_of.delete_edge_by_id, do_versions.delete_edge_by_id)
    describe_schema = store_asks(versions_of.describe_schema, do_versions.describe_schema)
    list_tags = store_asks(versions_of.list_tags, do_versions.list_tags)
    search = store_sends(ask.search, SearchRequest, do.search)
    search_batch = store_sends(ask.search_batch, BatchSearchRequest, do.search_batch)
    context = store_sends(ask.context, ContextRequest, do.context)
    cypher = store_sends(ask.cypher, CypherRequest, do.cypher)
    cypher_rows = store_streams_sent(ask.cypher_rows, CypherRequest, do.cypher_rows)
    stats = store_asks(ask.stats, do.stats)
    reindex = store_asks(ask.reindex, do.reindex)
    import_ = store_uploads(ask.import_, do.import_)
    export = store_streams(ask.export, do.export)
    events = store_listens(ask.store_events, listen.of_store)

    def export_to(self, path: str | os.PathLike[str]) -> int:
        """Write an export to a file that appears when it is complete; the sequence that it shows."""
        call = ask.export(self.name).call
        with (
            closing(patiently(self.handle, call, lambda opened: do.export(opened, self.name))) as stream,
            complete(path) as file,
        ):
            file.writelines(each(self.handle, stream))
            return stream.sequence

    def __repr__(self) -> str:
        return f"<Store {self.name!r} of kgserve.open({str(self.handle.path)!r})>"
