from __future__ import annotations

import fcntl
import io
import os
import resource
from pathlib import Path

import msgspec

from kgserve.cli.transfer import KEEPALIVE_BLANKS, read_upload_source_with_keepalive_blanks

NODE = b'{"kind":"node","id":"a","type":"t"}\n'


def test_a_file_and_an_object_without_a_descriptor(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(NODE * 20_000)
    with (tmp_path / "lines").open("rb") as file:
        assert b"".join(read_upload_source_with_keepalive_blanks(file)) == NODE * 20_000
    assert list(read_upload_source_with_keepalive_blanks(io.BytesIO(NODE))) == [NODE]


def test_a_silent_pipe_gets_keepalive_blanks_only_between_lines() -> None:
    low, writing = os.pipe()
    reading = _to_high_descriptor(low)
    with os.fdopen(reading, "rb") as file:
        blocks = read_upload_source_with_keepalive_blanks(file, silence=0.05)
        assert next(blocks) == KEEPALIVE_BLANKS
        os.write(writing, NODE)
        said = [next(blocks), next(blocks)]
        while said[-1] == KEEPALIVE_BLANKS and NODE not in said:
            said.append(next(blocks))
        assert NODE in said
        os.write(writing, NODE[:9])
        while (block := next(blocks)) == KEEPALIVE_BLANKS:
            pass
        assert block == NODE[:9]
        os.write(writing, NODE[9:])  # a blank within the line would have come first
        assert next(blocks) == NODE[9:]
        os.close(writing)
        assert set(blocks) <= {KEEPALIVE_BLANKS}


def _to_high_descriptor(descriptor: int) -> int:
    """Return a duplicate above the 1,023 that `select` supports, or as high as the process may have; closes it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    duplicate = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, min(1_024, limit - 64))
    os.close(descriptor)
    return duplicate


def test_keepalive_blanks_belong_to_the_following_line() -> None:
    assert msgspec.json.decode(KEEPALIVE_BLANKS + NODE)["id"] == "a"
