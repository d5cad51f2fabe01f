"""Files on JetStream, in the form of its object store, so that `nats object get KGSERVE` finds them, too."""

from __future__ import annotations

import base64
import hashlib
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

import msgspec

from kgserve.cluster.jetstream.connection import Connection
from kgserve.cluster.jetstream.stream import Stream
from kgserve.decoding import decode_json
from kgserve.errors import Fenced, LogTorn, NotFound
from kgserve.journal.files import storing

_BUCKET = "KGSERVE"
_CHUNKS = f"$O.{_BUCKET}.C."
_INFOS = f"$O.{_BUCKET}.M."
CHUNK_BYTES = 1 << 19
_encode = msgspec.json.Encoder().encode


class _Info(msgspec.Struct, frozen=True):
    """A file, as the object store describes one: its chunks are the messages of the subject with its ``nuid``."""

    name: str
    bucket: str
    nuid: str
    size: int
    chunks: int
    digest: str
    mtime: str


class JetStreamBlobs:
    """See `Blobs`."""

    def __init__(self, connection: Connection) -> None:
        """Make the stream if it is not there. Raises Conflict and Unavailable."""
        self._stream = Stream(connection, f"OBJ_{_BUCKET}", [f"{_CHUNKS}>", f"{_INFOS}>"])

    def put(self, name: str, path: Path) -> bool:
        """See `Blobs.put`. What a broken one leaves behind is chunks that no file names."""
        if self._stream.last(_subject(name)) is not None:
            return False
        info = self._put_chunks(name, path)
        with suppress(Fenced):
            self._stream.put(_subject(name), _encode(info), 0)
            return True
        self._stream.forget(_CHUNKS + info.nuid)
        return False

    def get(self, name: str, path: Path) -> None:
        """See `Blobs.get`."""
        if (found := self._stream.last(_subject(name))) is None:
            raise NotFound(f"the cluster has no file {name!r}")
        info, digest, size = decode_json(found.data, _Info), hashlib.sha256(), 0
        with storing(f"fetching {name!r} from the cluster"), path.open("wb") as file:
            for chunk in self._stream.walk(_CHUNKS + info.nuid):
                digest.update(chunk.data)
                size += file.write(chunk.data)
        if (size, _digest(digest.digest())) != (info.size, info.digest):
            path.unlink()
            raise LogTorn(f"the cluster's file {name!r} is not as it was put: {size} of {info.size} bytes are there")

    def names(self, prefix: str) -> list[str]:
        """See `Blobs.names`."""
        found = (decode_json(each.data, _Info).name for each in self._stream.walk(f"{_INFOS}>"))
        return sorted(name for name in found if name.startswith(prefix))

    def drop(self, name: str) -> None:
        """See `Blobs.drop`."""
        if (found := self._stream.last(_subject(name))) is not None:
            self._stream.forget(_subject(name))
            self._stream.forget(_CHUNKS + decode_json(found.data, _Info).nuid)

    def _put_chunks(self, name: str, path: Path) -> _Info:
        nuid, digest, size, chunks, after = token_hex(11), hashlib.sha256(), 0, 0, 0
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                after = self._stream.put(_CHUNKS + nuid, chunk, after)
                size += len(chunk)
                chunks += 1
            changed = datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, UTC).isoformat()
        return _Info(name, _BUCKET, nuid, size, chunks, _digest(digest.digest()), changed)


def _subject(name: str) -> str:
    return _INFOS + base64.urlsafe_b64encode(name.encode()).decode()


def _digest(digest: bytes) -> str:
    return "SHA-256=" + base64.urlsafe_b64encode(digest).decode()
