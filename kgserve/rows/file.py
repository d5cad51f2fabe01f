"""Writing the files of a base, with a sum for each block of what goes by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

import msgspec
import numpy as np
import xxhash

from kgserve.journal.files import write_all
from kgserve.model.change import StoreState
from kgserve.model.digest import to_text
from kgserve.rows.format import ALIGNMENT, BLOCK, COLUMNS, MAGIC, Directory, Numbers, Section

_BUFFERED = 4 << 20
_JOINED = 1_000


class SummedFile:
    """A file that is being written, from a multiple of a block's size on; syncing is the caller's."""

    def __init__(self, file: BinaryIO) -> None:
        self.offset = file.seek(0, 1)
        self._file = file
        self._pending = bytearray()
        self._hash = xxhash.xxh3_64()
        self._hashed = 0
        self.sums: list[int] = []

    def write(self, data: bytes | memoryview) -> None:
        """Add to it."""
        self.offset += len(data)
        if len(data) > _BUFFERED:
            self._flush()
            self._out(memoryview(data))
            return
        self._pending += data
        if len(self._pending) > _BUFFERED:
            self._flush()

    def end_block(self) -> None:
        """Write what is pending, and take the sum of the block that is begun."""
        self._flush()
        if self._hashed:
            self.sums.append(self._hash.intdigest())

    def _flush(self) -> None:
        pending, self._pending = self._pending, bytearray()
        self._out(memoryview(pending))

    def _out(self, data: memoryview) -> None:
        write_all(self._file.fileno(), data)
        if self._hashed:
            data = self._begin_block(data)
        whole = len(data) - len(data) % BLOCK
        self.sums += [xxhash.xxh3_64_intdigest(data[at : at + BLOCK]) for at in range(0, whole, BLOCK)]
        self._begin_block(data[whole:])

    def _begin_block(self, data: memoryview) -> memoryview:
        """Add to the sum of the block that is begun; what belongs to the next ones."""
        part = data[: BLOCK - self._hashed]
        self._hash.update(part)
        self._hashed += len(part)
        if self._hashed == BLOCK:
            self.sums.append(self._hash.intdigest())
            self._hash.reset()
            self._hashed = 0
        return data[len(part) :]


class TextsFile(SummedFile):
    """Rows at the end of a file of texts."""

    def add(self, texts: Sequence[bytes]) -> Numbers:
        """Add texts; where each of them is."""
        sizes = np.array([len(text) for text in texts], np.uint64)
        places = self.offset + np.cumsum(sizes) - sizes
        for first in range(0, len(texts), _JOINED):
            self.write(b"".join(texts[first : first + _JOINED]))
        return places

    def finish(self) -> None:
        """Fill the last block, so that the next base begins with one of its own."""
        self.write(bytes(-self.offset % BLOCK))
        self.end_block()


class RowsFile(SummedFile):
    """A file of columns that is being written. `finish` makes it whole."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._sections: dict[str, Section] = {}
        self.write(MAGIC)

    def column(self, name: str, values: Numbers) -> None:
        """A section with a column."""
        with self.text(name):
            self.write(np.ascontiguousarray(values, COLUMNS[name]).data.cast("B"))

    def text(self, name: str) -> _Section:
        """A section; what is written within it is in it."""
        self.write(bytes(-self.offset % ALIGNMENT))
        return _Section(self, name)

    def finish(self, state: StoreState, texts: str = "", texts_size: int = 0) -> None:
        """Write sums and directory; ``state`` is what the rows are, which are in so many bytes of ``texts``."""
        self.end_block()
        sums = np.array(self.sums, "<u8").tobytes()
        self._sections["sums"] = Section(self.offset, len(sums))
        digest = to_text(state.digest)
        directory = msgspec.json.encode(
            Directory(state.sequence, state.time, digest, state.nodes, state.edges, self._sections, texts, texts_size)
        )
        tail = len(directory).to_bytes(8, "little") + xxhash.xxh3_64_intdigest(directory).to_bytes(8, "little")
        write_all(self._file.fileno(), sums + directory + tail + MAGIC)

    def leave(self, name: str, start: int) -> None:
        """A section has ended."""
        self._sections[name] = Section(start, self.offset - start)


class _Section:
    def __init__(self, writer: RowsFile, name: str) -> None:
        self._writer, self._name, self._start = writer, name, writer.offset

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._writer.leave(self._name, self._start)
