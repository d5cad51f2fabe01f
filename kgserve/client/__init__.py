"""Python client of the REST API: `Client` is synchronous, `AsyncClient` asynchronous."""

from __future__ import annotations

from kgserve.platform.startup_imports import import_httpx_without_its_command

import_httpx_without_its_command()

from kgserve.client.answers import BatchHits, CypherResult, Hits, Traversal
from kgserve.client.asynchronous import AsyncStream
from kgserve.client.clients import AsyncClient, AsyncStore, Client, Store
from kgserve.client.errors import Interrupted, Refused, Retries, Unintelligible, Unreachable
from kgserve.client.event_stream import Event
from kgserve.client.synchronous import Stream, Subscription, WriteHandler, subscribe

__all__ = [
    "AsyncClient",
    "AsyncStore",
    "AsyncStream",
    "BatchHits",
    "Client",
    "CypherResult",
    "Event",
    "Hits",
    "Interrupted",
    "Refused",
    "Retries",
    "Store",
    "Stream",
    "Subscription",
    "Traversal",
    "Unintelligible",
    "Unreachable",
    "WriteHandler",
    "subscribe",
]
