"""Composition root: opens the stores of a data folder with all services that follow them, as configured."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from secrets import token_hex
from socket import gethostname
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
import structlog

from kgserve.embedding.embedder import create_indexing_embedder, load_embedder
from kgserve.errors import InvalidInput
from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.memory.erasure import StoreErasureManager
from kgserve.memory.maintenance import MemoryMaintenance
from kgserve.platform.network_addresses import is_wildcard_address
from kgserve.platform.settings import Settings
from kgserve.projections.history_follower import HistoryWorker
from kgserve.projections.text_index_worker import TextIndexWorker
from kgserve.stores.local_placement import StorePlacement
from kgserve.stores.pool import PlacementFactory, StorePool

if TYPE_CHECKING:
    from kgserve.memory.extraction.background_llm_extractor import BackgroundLlmExtractor
    from kgserve.projections.connectors.sink_delivery import SinkDeliveryObserver
    from kgserve.projections.connectors.sinks import SinkImplementation

log = structlog.get_logger()


class DataFolderServices(msgspec.Struct, frozen=True):
    """Services of an open data folder; optional ones are None if turned off.

    ``indexer``: search. ``historian``: history. ``extractor``: fact extraction with a language model. ``syncers``:
    connectors.
    """

    pool: StorePool
    indexer: TextIndexWorker | None
    historian: HistoryWorker | None
    keeper: MemoryMaintenance
    extractor: BackgroundLlmExtractor | None
    syncers: SinkDeliveryObserver | None

    def graphs(self, *, confined: bool = True) -> CallerStoreHandles:
        """Return access to all stores without restrictions by caller."""
        return CallerStoreHandles(
            self.pool,
            self.indexer,
            self.historian,
            confined=confined,
            extractor=self.extractor,
            syncers=self.syncers,
        )


def open_data_folder_services(
    settings: Settings,
    stack: ExitStack,
    plugged: Mapping[str, SinkImplementation] | None = None,
    *,
    url: str = "",
    token: str = "",
) -> DataFolderServices:
    """Open the stores of a data folder, to be closed by ``stack``. The caller holds the folder's lock.

    plugged: connectors in addition to those in the settings.

    url, token: address of this server, and a token for all stores. With them, the server joins the configured cluster.

    Raises InvalidInput for an unusable data folder, and for an invalid address of an embedding service, language model,
    webhook or cluster. Raises Conflict for a folder or name of another node.
    """
    # Opened first and closed last, because closing a store saves its indexes.
    indexer = stack.enter_context(closing(create_search_index_worker(settings))) if settings.indexes != "none" else None
    historian = stack.enter_context(closing(HistoryWorker())) if settings.history else None
    keeper = stack.enter_context(closing(MemoryMaintenance(indexer)))
    extractor = create_fact_extraction_worker(settings, indexer)
    if extractor is not None:
        stack.enter_context(closing(extractor))
    syncers = create_configured_connectors_worker(settings, plugged)
    if syncers is not None:
        stack.enter_context(closing(syncers))
    placed = join_cluster(settings, stack, url, token) if settings.cluster and url else StorePlacement
    pool = stack.enter_context(StorePool(settings, placed))
    # Last in the list, because it asks the other services to release purged data.
    erasers = StoreErasureManager(indexer, historian)
    others = (indexer, historian, keeper, extractor, syncers, erasers)
    pool.companions += [each for each in others if each is not None]
    if syncers is not None:
        syncers.catch_up(pool)
    return DataFolderServices(pool, indexer, historian, keeper, extractor, syncers)


def join_cluster(settings: Settings, stack: ExitStack, url: str, token: str) -> PlacementFactory:
    """Join the cluster until ``stack`` ends; return the factory of the placement of stores.

    url: address at which other nodes reach this one. token: grants them access.

    Raises InvalidInput, Conflict and Unavailable.
    """
    url = settings.advertise_url or url
    if is_wildcard_address(urlsplit(url).hostname or ""):
        raise InvalidInput(f"Other nodes cannot reach this node at {url}. Set --advertise-url.")
    try:
        from kgserve.cluster.jetstream.nats_connection import NatsConnection  # noqa: PLC0415 - needed in clusters only
    except ModuleNotFoundError as error:
        raise InvalidInput("A cluster node needs an optional dependency: pip install 'kgserve[cluster]'") from error
    from kgserve.cluster.audit_and_api_key_sync import ApiKeySync, ClusterAuditLogWriter  # noqa: PLC0415 - as above
    from kgserve.cluster.backend import ClusterNodeHeartbeat  # noqa: PLC0415 - as above
    from kgserve.cluster.cluster_placement import ClusterStorePlacement  # noqa: PLC0415 - as above
    from kgserve.cluster.jetstream.jetstream_backend import (  # noqa: PLC0415 - as above
        JetStreamBlobStorage,
        JetStreamClusterRegistry,
        JetStreamReplicatedLog,
    )
    from kgserve.cluster.membership import ClusterHeartbeatExchange  # noqa: PLC0415 - as above
    from kgserve.cluster.replicated_log_records import RECORD_FORMAT  # noqa: PLC0415 - as above

    connection = stack.enter_context(closing(NatsConnection(settings.cluster)))
    logs, registry, blobs = (
        JetStreamReplicatedLog(connection),
        JetStreamClusterRegistry(connection),
        JetStreamBlobStorage(connection),
    )
    membership = ClusterHeartbeatExchange(
        registry,
        ClusterNodeHeartbeat(settings.node_name or gethostname(), token_hex(8), url, token, format=RECORD_FORMAT),
    )
    stack.enter_context(membership)
    stack.enter_context(ClusterAuditLogWriter(logs, membership.beat.node, settings.data_dir))
    keys = ApiKeySync(registry, settings.data_dir)
    keys.look()
    membership.after_each_round(keys.look)
    return partial(ClusterStorePlacement, logs=logs, registry=registry, blobs=blobs, membership=membership)


def create_search_index_worker(settings: Settings) -> TextIndexWorker:
    """Return a search index worker with one model for queries, and a second copy for bulk indexing."""
    embedder = load_embedder(settings)
    return TextIndexWorker(embedder, create_indexing_embedder(settings, embedder))


def create_fact_extraction_worker(settings: Settings, indexer: TextIndexWorker | None) -> BackgroundLlmExtractor | None:
    """Return the extraction worker if a language model is set. Raises InvalidInput for an invalid address."""
    if not (settings.llm_url and settings.llm_model):
        if settings.llm_url or settings.llm_model:
            log.warning("no_language_model", reason="both llm_url and llm_model have to be set")
        return None
    # Modules for language models are imported only if one is set.
    from kgserve.memory.extraction.background_llm_extractor import BackgroundLlmExtractor  # noqa: PLC0415
    from kgserve.memory.extraction.fact_extraction import extract_facts  # noqa: PLC0415
    from kgserve.memory.extraction.llm.chat_completions_client import ChatClient  # noqa: PLC0415

    chat = ChatClient(settings.llm_url, settings.llm_model, settings.llm_key, settings.llm_timeout)
    return BackgroundLlmExtractor(chat, partial(extract_facts, indexer), settings.llm_daily_tokens)


def create_configured_connectors_worker(
    settings: Settings, plugged: Mapping[str, SinkImplementation] | None = None
) -> SinkDeliveryObserver | None:
    """Return the connectors' worker if any connector is configured. Raises InvalidInput for an invalid one."""
    if not (settings.webhook_url or settings.syncers or plugged):
        return None
    from kgserve.projections.connectors.sink_delivery import SinkDeliveryObserver  # noqa: PLC0415 - as above
    from kgserve.projections.connectors.sinks import load_configured_connector_sinks  # noqa: PLC0415 - as above

    return SinkDeliveryObserver(load_configured_connector_sinks(settings, plugged), settings.webhook_batch)
