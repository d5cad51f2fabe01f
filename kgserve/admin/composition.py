"""The stores of a data folder with everybody who follows them, wired as the settings want it."""

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

from kgserve.embedding.embedder import for_indexing, load_embedder
from kgserve.errors import InvalidInput
from kgserve.graph.handle import Graphs
from kgserve.memory.maintenance import MemoryMaintenance
from kgserve.memory.purge import Purger
from kgserve.platform.hosts import is_wildcard
from kgserve.platform.settings import Settings
from kgserve.projections.history_follower import Historian
from kgserve.projections.indexer import Indexer
from kgserve.stores.placement import Placement
from kgserve.stores.pool import Placed, StorePool

if TYPE_CHECKING:
    from kgserve.memory.extraction.worker import Extractor
    from kgserve.projections.connectors.plugs import Syncer
    from kgserve.projections.connectors.syncer import Syncers

log = structlog.get_logger()


class Services(msgspec.Struct, frozen=True):
    """What operations work on; without ``indexer`` no search, without ``historian`` no past.

    Without ``extractor`` no language model is asked, without ``syncers`` nobody is told of contents.
    """

    pool: StorePool
    indexer: Indexer | None
    historian: Historian | None
    keeper: MemoryMaintenance
    extractor: Extractor | None
    syncers: Syncers | None

    def graphs(self, *, confined: bool = True) -> Graphs:
        """The stores as those see them who may do everything."""
        return Graphs(
            self.pool,
            self.indexer,
            self.historian,
            confined=confined,
            extractor=self.extractor,
            syncers=self.syncers,
        )


def open_all(
    settings: Settings,
    stack: ExitStack,
    plugged: Mapping[str, Syncer] | None = None,
    *,
    url: str = "",
    token: str = "",
) -> Services:
    """Open the data folder's stores, to be closed with ``stack``; who calls has the folder's lock already.

    Those ``plugged`` in are told of contents beside those of the settings. Who serves them at a ``url``, where a
    ``token`` opens everything, joins the cluster, if one is set. Raises InvalidInput for a data folder that cannot be
    one, and for an embedding service, a language model, a webhook or a cluster without a usable address; Conflict for a
    folder or a name of another node.
    """
    # Built first and closed last: closing a store saves its indexes.
    indexer = stack.enter_context(closing(make_indexer(settings))) if settings.indexes != "none" else None
    historian = stack.enter_context(closing(Historian())) if settings.history else None
    keeper = stack.enter_context(closing(MemoryMaintenance(indexer)))
    extractor = make_extractor(settings, indexer)
    if extractor is not None:
        stack.enter_context(closing(extractor))
    syncers = make_syncers(settings, plugged)
    if syncers is not None:
        stack.enter_context(closing(syncers))
    placed = join(settings, stack, url, token) if settings.cluster and url else Placement
    pool = stack.enter_context(StorePool(settings, placed))
    # The last of them: it asks the others to let go of what is erased.
    erasers = Purger(indexer, historian)
    others = (indexer, historian, keeper, extractor, syncers, erasers)
    pool.companions += [each for each in others if each is not None]
    if syncers is not None:
        syncers.catch_up(pool)
    return Services(pool, indexer, historian, keeper, extractor, syncers)


def join(settings: Settings, stack: ExitStack, url: str, token: str) -> Placed:
    """Become a node of the cluster that is reached at a ``url``, until ``stack`` ends; how its stores are placed.

    Other nodes are let in there by the ``token``.

    Raises InvalidInput, Conflict and Unavailable.
    """
    url = settings.advertise_url or url
    if is_wildcard(urlsplit(url).hostname or ""):
        raise InvalidInput(f"no other node reaches this one at {url}: set --advertise-url")
    try:
        from kgserve.cluster.jetstream.connection import NatsConnection  # noqa: PLC0415 - only nodes of a cluster need it
    except ModuleNotFoundError as error:
        raise InvalidInput("a node of a cluster needs the extra: pip install 'kgserve[cluster]'") from error
    from kgserve.cluster.jetstream.kept import JetStreamBlobs, JetStreamLog, JetStreamRegistry  # noqa: PLC0415 - as above
    from kgserve.cluster.membership import Membership  # noqa: PLC0415 - as above
    from kgserve.cluster.pool import ClusterPlacement  # noqa: PLC0415 - as above
    from kgserve.cluster.protocols import Heartbeat  # noqa: PLC0415 - as above
    from kgserve.cluster.records import RECORD_FORMAT  # noqa: PLC0415 - as above
    from kgserve.cluster.shared import SharedAudit, SharedKeys  # noqa: PLC0415 - as above

    connection = stack.enter_context(closing(NatsConnection(settings.cluster)))
    logs, registry, blobs = JetStreamLog(connection), JetStreamRegistry(connection), JetStreamBlobs(connection)
    membership = Membership(
        registry, Heartbeat(settings.node_name or gethostname(), token_hex(8), url, token, format=RECORD_FORMAT)
    )
    stack.enter_context(membership)
    stack.enter_context(SharedAudit(logs, membership.beat.node, settings.data_dir))
    keys = SharedKeys(registry, settings.data_dir)
    keys.look()
    membership.after_each_round(keys.look)
    return partial(ClusterPlacement, logs=logs, registry=registry, blobs=blobs, membership=membership)


def make_indexer(settings: Settings) -> Indexer:
    """One model for queries, and for indexing another copy of it while there is much to index."""
    embedder = load_embedder(settings)
    return Indexer(embedder, for_indexing(settings, embedder))


def make_extractor(settings: Settings, indexer: Indexer | None) -> Extractor | None:
    """Who gives new memories to the language model, if one is set. Raises InvalidInput for an address that is none."""
    if not (settings.llm_url and settings.llm_model):
        if settings.llm_url or settings.llm_model:
            log.warning("no_language_model", reason="both llm_url and llm_model have to be set")
        return None
    # Of what asks a language model nothing is there where none is set.
    from kgserve.memory.extraction.apply import extract  # noqa: PLC0415
    from kgserve.memory.extraction.llm.chat import Chat  # noqa: PLC0415
    from kgserve.memory.extraction.worker import Extractor  # noqa: PLC0415

    chat = Chat(settings.llm_url, settings.llm_model, settings.llm_key, settings.llm_timeout)
    return Extractor(chat, partial(extract, indexer), settings.llm_daily_tokens)


def make_syncers(settings: Settings, plugged: Mapping[str, Syncer] | None = None) -> Syncers | None:
    """Who tells others of contents, if anybody is to be told. Raises InvalidInput for who cannot be."""
    if not (settings.webhook_url or settings.syncers or plugged):
        return None
    from kgserve.projections.connectors.plugs import plugs  # noqa: PLC0415 - as above
    from kgserve.projections.connectors.syncer import Syncers  # noqa: PLC0415 - as above

    return Syncers(plugs(settings, plugged), settings.webhook_batch)
