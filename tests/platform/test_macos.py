"""Serving where the system is like macOS: no pidfd, no /proc, no fdatasync, a full sync by fcntl."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kgserve.platform import durable_files
from tests.cli.running import environment
from tests.project.reading import TOP

DIFFERENCES = """
import fcntl, io, os, signal

for module, name in ((os, "pidfd_open"), (os, "fdatasync"), (signal, "pidfd_send_signal")):
    delattr(module, name)
fcntl.F_FULLFSYNC = 51  # Linux refuses it as a file system without it does


def without_proc(function):
    def call(path, *arguments, **options):
        if str(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *arguments, **options)
    return call


io.open = without_proc(io.open)
os.listdir, os.stat, os.scandir = map(without_proc, (os.listdir, os.stat, os.scandir))
"""

PROGRAM = """
import os, sys, time
import kgserve
from kgserve.projections.cypher_engine.engine import engine_handle, process_monitor

with kgserve.open(sys.argv[1]) as client:
    store = client.store("shop")
    store.inject(nodes=[{"id": "a", "type": "person"}, {"id": "b", "type": "person"}],
                 edges=[{"from": "a", "to": "b", "relation_type": "KNOWS"}])
    count = "MATCH (n:Entity) RETURN count(n) AS nodes"
    assert store.cypher(count).rows == [[2]], store.cypher(count)
    engine = next(iter(made))
    monitor = engine._monitor
    assert isinstance(monitor, process_monitor.PortableProcessMonitor)
    assert monitor.private_memory_bytes() > 1 << 20
    assert monitor.thread_states() and monitor.cpu_seconds() >= 0
    assert engine.is_responsive()
    os.kill(engine.number, 19)
    assert not engine.is_responsive()
    os.kill(engine.number, 9)
    monitor.await_end(10)
    assert engine.has_died and monitor.private_memory_bytes() == 0
    store.inject(nodes=[{"id": "c", "type": "person"}])
    for _ in range(100):
        try:
            assert store.cypher(count).rows == [[3]]
            break
        except kgserve.Unavailable:
            time.sleep(0.1)
with kgserve.open(sys.argv[1]) as client:
    assert client.store("shop").get_nodes(["c"])
"""


def test_a_store_works_with_the_differences_of_macos(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(DIFFERENCES)
    program = tmp_path / "program.py"
    watched = (
        "from kgserve.projections.cypher_engine.engine import process\n"
        "made, create = [], process.EngineProcess.__init__\n"
        "process.EngineProcess.__init__ = lambda self, *given: (create(self, *given), made.append(self))[0]\n"
    )
    program.write_text(watched + PROGRAM)
    variables = environment() | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(TOP)])}
    done = subprocess.run(
        [sys.executable, program, tmp_path / "data"], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_failed_full_sync_is_an_error_and_an_unknown_one_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(OSError, match="Invalid argument"):  # of fsync, which follows; a pipe cannot be synced
        durable_files.sync_descriptor(writing)
    os.close(writing)
    with pytest.raises(OSError, match="Bad file descriptor"):
        durable_files.sync_descriptor(writing)
