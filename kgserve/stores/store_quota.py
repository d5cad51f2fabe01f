"""Quotas of a store: nodes, and bytes of its files."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from kgserve.errors import QuotaExceeded
from kgserve.platform.settings import MEBIBYTE, Settings
from kgserve.storage.model.write_batch import WriteBatch

SIZE_CHECK_INTERVAL_SECONDS = 2.0
"""Time for which the size of a store's files is remembered; a store may exceed its quota by what is written in it."""


class StoreQuota:
    """Quotas of one store, and the number of writes that they refused."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._max_nodes = settings.max_store_nodes
        self._max_bytes = settings.max_store_mb * MEBIBYTE
        self._folder = folder
        self._measured_at = float("-inf")
        self._bytes = 0
        self.refusals = 0

    def check_batch(self, batch: WriteBatch, nodes: int, known: Collection[str]) -> None:
        """Raise QuotaExceeded if a batch would exceed a quota. ``nodes`` is the number of nodes before it.

        known: ids of existing nodes, of those that the batch names.
        """
        if batch.nodes and self._max_nodes:
            new = len({put.id for put in batch.nodes if put.id not in known})
            self.check_nodes(nodes, nodes + new)
        if batch.nodes or batch.edges:
            self.check_bytes()

    def check_nodes(self, before: int, after: int) -> None:
        """Raise QuotaExceeded if the number of nodes grows beyond its quota."""
        if self._max_nodes and after > max(before, self._max_nodes):
            self._refuse(
                f"the store may have {self._max_nodes} nodes and has {before}; delete some, or raise --max-store-nodes"
            )

    def check_bytes(self) -> None:
        """Raise QuotaExceeded if the store's files have reached their quota."""
        if not self._max_bytes:
            return
        if time.monotonic() - self._measured_at > SIZE_CHECK_INTERVAL_SECONDS:
            self._bytes = sum(_file_bytes(path) for path in self._folder.rglob("*"))
            self._measured_at = time.monotonic()
        if self._bytes >= self._max_bytes:
            self._refuse(
                f"the store's files may take {self._max_bytes // MEBIBYTE} MiB and take {self._bytes // MEBIBYTE}; "
                "delete data and compact the store, shorten its history, or raise --max-store-mb"
            )

    def _refuse(self, message: str) -> None:
        self.refusals += 1
        raise QuotaExceeded(message)


def _file_bytes(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0  # removed meanwhile
