"""Writing the file that a base is: sections, one after the other, with a sum for each block of what goes by."""

from __future__ import annotations

from typing import BinaryIO

import msgspec
import numpy as np
import xxhash

from kgserve.journal.files import write_all
from kgserve.model.change import StoreState
from kgserve.model.digest import to_text
from kgserve.rows.format import ALIGNMENT, BLOCK, COLUMNS, MAGIC, Directory, Numbers, Section

_BUFFERED = 4 << 20


class RowsFile:
    """A file that is being written. `finish` makes it whole; syncing is the caller's."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._pending = bytearray()
        self._offset = 0
        self._hash = xxhash.xxh3_64()
        self._hashed = 0
        self._sums: list[int] = []
        self._sections: dict[str, Section] = {}
        self.write(MAGIC)

    def write(self, data: bytes | memoryview) -> None:
        """Add to the section that is open."""
        self._offset += len(data)
        if len(data) > _BUFFERED:
            self._flush()
            self._out(memoryview(data))
            return
        self._pending += data
        if len(self._pending) > _BUFFERED:
            self._flush()

    def column(self, name: str, values: Numbers) -> None:
        """A section with a column."""
        with self.text(name):
            self.write(np.ascontiguousarray(values, COLUMNS[name]).data.cast("B"))

    def text(self, name: str) -> _Section:
        """A section; what is written within it is in it."""
        self.write(bytes(-self._offset % ALIGNMENT))
        return _Section(self, name)

    def finish(self, state: StoreState) -> None:
        """Write sums and directory; ``state`` is what the rows are."""
        self._flush()
        if self._hashed:
            self._sums.append(self._hash.intdigest())
        sums = np.array(self._sums, "<u8").tobytes()
        self._sections["sums"] = Section(self._offset, len(sums))
        directory = msgspec.json.encode(
            Directory(state.sequence, state.time, to_text(state.digest), state.nodes, state.edges, self._sections)
        )
        tail = len(directory).to_bytes(8, "little") + xxhash.xxh3_64_intdigest(directory).to_bytes(8, "little")
        write_all(self._file.fileno(), sums + directory + tail + MAGIC)

    def enter(self) -> int:
        """Where a section begins."""
        return self._offset

    def leave(self, name: str, start: int) -> None:
        """A section has ended."""
        self._sections[name] = Section(start, self._offset - start)

    def _flush(self) -> None:
        pending, self._pending = self._pending, bytearray()
        self._out(memoryview(pending))

    def _out(self, data: memoryview) -> None:
        write_all(self._file.fileno(), data)
        if self._hashed:
            data = self._begin_block(data)
        whole = len(data) - len(data) % BLOCK
        self._sums += [xxhash.xxh3_64_intdigest(data[at : at + BLOCK]) for at in range(0, whole, BLOCK)]
        self._begin_block(data[whole:])

    def _begin_block(self, data: memoryview) -> memoryview:
        """Add to the sum of the block that is begun; what belongs to the next ones."""
        part = data[: BLOCK - self._hashed]
        self._hash.update(part)
        self._hashed += len(part)
        if self._hashed == BLOCK:
            self._sums.append(self._hash.intdigest())
            self._hash.reset()
            self._hashed = 0
        return data[len(part) :]


class _Section:
    def __init__(self, writer: RowsFile, name: str) -> None:
        self._writer, self._name, self._start = writer, name, writer.enter()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._writer.leave(self._name, self._start)
