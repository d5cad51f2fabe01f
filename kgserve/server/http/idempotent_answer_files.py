"""Answers to requests with an idempotency key, in one file for each store, so that a killed server still repeats them.

An answer is appended before it is sent, without a sync: it survives the end of the process, not a power failure. A
record is the length of its content, its checksum, and its content. A torn or damaged end is cut off. The file is
deleted with its store, and emptied by an erasure, because an answer may contain what is erased. Answers to drops of
stores are in a file of the data folder, because they outlive their stores.
"""

from __future__ import annotations

import os
import struct
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog
import xxhash

from kgserve.errors import InvalidInput
from kgserve.platform.codecs import msgpack_decoder
from kgserve.platform.durable_files import write_file_atomically
from kgserve.server.idempotent_calls import CALL_RETENTION_SECONDS, MAX_REMEMBERED_ANSWER_BYTES
from kgserve.storage.model.store_names import check_store_name
from kgserve.storage.store_folder_layout import IDEMPOTENT_ANSWERS_FILE, StoreLayout

log = structlog.get_logger()

MAX_ANSWER_FILE_BYTES = 16 << 20
"""Size of a store's file at which it is rewritten with the newer half of its answers."""
_MAX_STORES_IN_MEMORY = 1_000
_HEAD = struct.Struct("<I8s")


class IdempotentAnswerRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An answer: digests of caller, store and key, and of the request; its time in seconds since 1970; the response."""

    name: bytes
    fingerprint: bytes
    time: float
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    path_template: str


AnswerFile = str | None
"""Store whose answers a file contains; None for the file of the answers to drops."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(IdempotentAnswerRecord).decode


class IdempotentAnswerFiles:
    """Files of the answers of all stores in a data folder. Belongs to one thread, except for reading a file."""

    def __init__(self, data_dir: Path) -> None:
        """Initialize without reading anything."""
        self._data_dir = data_dir
        self._places: OrderedDict[AnswerFile, dict[bytes, int]] = OrderedDict()
        """Position of each answer in its file, for the stores used last."""

    def is_loaded(self, store: AnswerFile) -> bool:
        """Return whether `find` knows the answers of a store without reading its whole file."""
        return store in self._places

    def load(self, store: AnswerFile) -> dict[bytes, int]:
        """Read the file of a store, and return the position of each answer. Drops old and damaged ones. May block."""
        path = self._path(store)
        with suppress(OSError):
            content = path.read_bytes()
            kept = [*_recent_records(content, time.time() - CALL_RETENTION_SECONDS)]
            if len(content) > MAX_ANSWER_FILE_BYTES:
                kept = kept[len(kept) // 2 :]
            if sum(len(data) for _, data in kept) != len(content):
                write_file_atomically(path, b"".join(data for _, data in kept))
            places, position = dict[bytes, int](), 0
            for record, data in kept:
                places[record.name] = position
                position += len(data)
            return places
        return {}

    def remember(self, store: AnswerFile, places: dict[bytes, int]) -> None:
        """Keep the positions that `load` returned."""
        self._places[store] = places
        if len(self._places) > _MAX_STORES_IN_MEMORY:
            self._places.popitem(last=False)

    def find(self, store: AnswerFile, name: bytes) -> IdempotentAnswerRecord | None:
        """Return the answer of a name that is at most a day old, or None."""
        position = self._places.get(store, {}).get(name)
        if position is None:
            return None
        with suppress(OSError), self._path(store).open("rb") as file:
            file.seek(position)
            size, _ = _HEAD.unpack(file.read(_HEAD.size))
            file.seek(position)
            oldest = time.time() - CALL_RETENTION_SECONDS
            for record, _ in _recent_records(file.read(_HEAD.size + size), oldest):
                return record if record.name == name else None
        return None

    def append(self, store: AnswerFile, record: IdempotentAnswerRecord) -> None:
        """Append an answer to the file of an existing store. A failure is logged: the answer is in memory only."""
        path = self._path(store)
        places = self._places.get(store)
        if places is None or len(record.body) > MAX_REMEMBERED_ANSWER_BYTES or not path.parent.is_dir():
            return
        content = _encode(record)
        data = _HEAD.pack(len(content), xxhash.xxh3_64_digest(content)) + content
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            try:
                position = os.fstat(descriptor).st_size
                if os.write(descriptor, data) != len(data):
                    os.ftruncate(descriptor, position)
                    raise OSError("the disk is full")
            finally:
                os.close(descriptor)
        except OSError as error:
            log.warning("idempotent_answer_not_saved", store=store, reason=str(error))
            return
        places[record.name] = position
        if position + len(data) > MAX_ANSWER_FILE_BYTES:
            self.remember(store, self.load(store))

    def forget(self, store: AnswerFile) -> None:
        """Forget the positions of the answers in a file that was deleted with its store."""
        self._places.pop(store, None)

    def forget_all(self) -> None:
        """Delete the files of all stores."""
        self._places.clear()
        for path in self._data_dir.glob(f"*/{IDEMPOTENT_ANSWERS_FILE}"):
            path.unlink(missing_ok=True)

    def _path(self, store: AnswerFile) -> Path:
        if store is None:
            return self._data_dir / IDEMPOTENT_ANSWERS_FILE
        return StoreLayout(self._data_dir, store).idempotent_answers


def is_possible_store_name(store: str) -> bool:
    """Return whether a text from a request can be the name of a store."""
    try:
        check_store_name(store)
    except InvalidInput:
        return False
    return True


def _recent_records(content: bytes, oldest: float) -> Iterator[tuple[IdempotentAnswerRecord, bytes]]:
    """Yield the intact records of a file since a time, each with its bytes, up to the first damage."""
    position = 0
    while position + _HEAD.size <= len(content):
        size, checksum = _HEAD.unpack_from(content, position)
        end = position + _HEAD.size + size
        body = content[position + _HEAD.size : end]
        if end > len(content) or xxhash.xxh3_64_digest(body) != checksum:
            return
        try:
            record = _decode(body)
        except msgspec.MsgspecError:
            return
        if record.time >= oldest:
            yield record, content[position:end]
        position = end
