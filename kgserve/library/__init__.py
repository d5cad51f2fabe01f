"""A data folder opened within one process, with the methods of the client and no server."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import structlog

from kgserve.client.blocking import Answering
from kgserve.client.clients import Store
from kgserve.client.methods import StoresMethods
from kgserve.library.folder import Handle
from kgserve.library.local import LocalConnection
from kgserve.settings import Indexed, load
from kgserve.syncing import BatchSyncer, VectorSyncer

__all__ = ["Library", "Store"]


class Library(StoresMethods):
    """The stores of a data folder, opened in this process: the methods of `kgserve.client.Client` without a server.

    May be shared by threads. `close` it, or use it in a `with` block; what a method has answered to is on disk anyway.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        history: bool = True,
        indexes: Indexed | bool = True,
        models_dir: str | os.PathLike[str] | None = None,
        embedding_provider: Literal["local", "openai", "hashing"] | None = None,
        syncers: Mapping[str, VectorSyncer | BatchSyncer] | None = None,
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
        self.handle = Handle(load(options), syncers)
        self.local = LocalConnection(self.handle)
        self.connection: Answering = self.local

    def store(self, name: str) -> Store:
        """One store, whether it exists or not: the first inject makes it."""
        return Store(self.connection, name)

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


def defer_to_host() -> None:
    """Hand log lines to `logging`, under their modules' names, unless the program has configured structlog itself.

    As structlog comes it would write all of them to standard output. `logging` shows warnings on standard error, and
    nothing below them, until the program says otherwise. What was slow interests those who look after a server: of that
    it shows nothing either.
    """
    if structlog.is_configured():
        return
    _show_only_when_asked("kgserve.metrics.slow")
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _show_only_when_asked(name: str) -> None:
    """`logging` prints a warning that finds no handler, so it finds one that does nothing."""
    logger = logging.getLogger(name)
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
