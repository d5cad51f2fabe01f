"""Replication target in object storage, by obstore: one wheel without dependencies that can create conditionally.

Credentials, region and endpoint come from the environment, for S3 as ``AWS_ACCESS_KEY_ID`` and ``AWS_ENDPOINT_URL``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import from_url
from typing_extensions import override

from kgserve.errors import InvalidInput, Unavailable
from kgserve.stores.replication.target_storage import TargetObjectExists, TargetStorage

DELETE_BATCH_OBJECTS = 500


class ObjectTargetStorage(TargetStorage):
    """Target below a URL such as ``s3://bucket/folder``, ``gs://…`` or ``az://…``."""

    def __init__(self, url: str) -> None:
        """Open the storage. Raises InvalidInput for a URL that it does not understand."""
        self.url = url
        try:
            self._store = from_url(url)
        except (BaseError, ValueError) as error:
            raise InvalidInput(f"{url} is not object storage that can be opened: {error}") from error

    @contextmanager
    def _translated(self, doing: str) -> Generator[None]:
        try:
            yield
        except BaseError as error:
            raise Unavailable(f"{self.url}: {doing} failed: {error}", retry_after=5) from error

    @override
    def create(self, key: str, content: bytes) -> None:
        with self._translated(f"writing {key}"):
            try:
                obstore.put(self._store, key, content, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError) as error:
                raise TargetObjectExists(key) from error

    @override
    def upload(self, key: str, path: Path) -> None:
        with self._translated(f"writing {key}"):
            obstore.put(self._store, key, path)

    @override
    def read(self, key: str) -> bytes | None:
        with self._translated(f"reading {key}"):
            try:
                return obstore.get(self._store, key).bytes().to_bytes()
            except FileNotFoundError:
                return None

    @override
    def download(self, key: str, path: Path) -> bool:
        with self._translated(f"reading {key}"):
            try:
                found = obstore.get(self._store, key)
            except FileNotFoundError:
                return False
            with path.open("wb") as file:
                for block in found:
                    file.write(block)
        return True

    @override
    def delete(self, keys: Iterable[str]) -> None:
        names = list(keys)
        with self._translated("deleting objects"):
            for start in range(0, len(names), DELETE_BATCH_OBJECTS):
                try:
                    obstore.delete(self._store, names[start : start + DELETE_BATCH_OBJECTS])
                except FileNotFoundError:
                    continue

    @override
    def names(self, prefix: str) -> list[str]:
        with self._translated(f"listing {prefix}"):
            return sorted(each["path"] for page in obstore.list(self._store, prefix) for each in page)
