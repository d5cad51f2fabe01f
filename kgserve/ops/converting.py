"""Exports and imports in the formats of others: made and read by way of files in the store's scratch folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import BinaryIO, Self

from kgserve.errors import TooLarge
from kgserve.formats.files import PAIRS, extract, open_parts, stream_part, write_archive, write_stream
from kgserve.formats.lines import Conversion, Part
from kgserve.journal.files import storage_error
from kgserve.model.answers import ImportAnswer
from kgserve.ops.exporting import ExportStream, PastStream
from kgserve.ops.graph import Graph
from kgserve.ops.importing import Importer
from kgserve.permissions import private_folder

MAX_UPLOAD_BYTES = 4 << 30
"""Most bytes of a body that has to be on the disk before it can be read."""
ARCHIVE = "archive"
"""The format of a body that holds CSV or Parquet."""
_PIECE = 256 << 10


class ConvertedExport:
    """An export in another format, in a file without a name; a context manager, as what it is made from."""

    def __init__(self, graph: Graph, stream: ExportStream | PastStream, kind: str) -> None:
        """Write the file; the stream is closed. Raises StorageFull."""
        self.sequence = stream.sequence
        self._stack = ExitStack()
        try:
            with stream:
                scratch = _scratch(graph)
                self._file = self._stack.enter_context(_nameless(scratch))
                if kind in PAIRS:
                    write_archive(kind, stream, self._file)
                else:
                    write_stream(kind, stream, self._file, scratch)
            self.size = self._file.tell()
            self._file.seek(0)
        except OSError as error:
            self.close()
            raise storage_error(error, "writing an export") from error
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[bytes]:
        return iter(partial(self._file.read, _PIECE), b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the file go."""
        self._stack.close()


class ConvertedImport:
    """Takes the body of an import in another format, to be read when it is there as a whole."""

    def __init__(self, graph: Graph, kind: str) -> None:
        """Lease the store, making it if needed; give it back with `finish` or `abort`."""
        self._kind = kind
        self._importer = Importer(graph)
        self._size = 0
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="import-", dir=_scratch(graph)))
            self._body = self._folder / "body"
            self._file = self._body.open("wb+")
        except OSError as error:
            self._importer.abort()
            raise storage_error(error, "taking an import") from error
        except BaseException:
            self._importer.abort()
            raise

    def write(self, data: bytes) -> None:
        """Take some bytes. Raises TooLarge and StorageFull."""
        self._size += len(data)
        if self._size > MAX_UPLOAD_BYTES:
            raise TooLarge(f"the body is over {MAX_UPLOAD_BYTES >> 30} GiB; use kgserve import, or send JSON lines")
        try:
            self._file.write(data)
        except OSError as error:
            raise storage_error(error, "taking an import") from error

    def finish(self) -> ImportAnswer:
        """Read and commit what was taken. Raises InvalidInput where the body is not what it should be."""
        try:
            with ExitStack() as stack:
                conversion = Conversion(self._parts(stack))
                for block in conversion.blocks():
                    if self._importer.feed(block):
                        self._importer.flush()
                return conversion.answered(self._importer.finish())
        except OSError as error:
            raise storage_error(error, "reading an import") from error
        finally:
            self.abort()

    def abort(self) -> None:
        """Remove the files, and give the store back."""
        self._file.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._importer.abort()

    def _parts(self, stack: ExitStack) -> list[Part]:
        self._file.flush()
        self._file.seek(0)
        if self._kind == ARCHIVE:
            kind, paths = extract(self._file, self._folder)
            return open_parts(kind, paths, stack)
        return [stream_part(self._kind, self._file, "")]


def _nameless(scratch: Path) -> BinaryIO:
    return tempfile.TemporaryFile(dir=scratch)


def _scratch(graph: Graph) -> Path:
    with graph.lease() as store:
        private_folder(store.layout.scratch)
        return store.layout.scratch
