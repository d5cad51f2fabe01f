"""Use in notebooks and scripts: no closing, abrupt exits, and no output."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kgserve
from tests.client.embedded.running import OPENING, Program

PYTHON = (sys.executable,)
"""For programs that must import kgserve themselves."""

WRITING = """
for number in range(20):
    done = store.inject([{"id": f"n{number}", "type": "t"}])
    print(done.sequence, flush=True)
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("1 / 0", 1),
        ("threading.Thread(target=store.events().__next__, daemon=True).start()", 0),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_acknowledged_writes_survive_any_exit(folder: Path, end: str, code: int) -> None:
    with Program(folder, WRITING + end) as program:
        done = program.end()
    assert done.code == code
    assert done.out.split() == [str(number) for number in range(1, 21)]
    assert ("ZeroDivisionError" in done.err) == (end == "1 / 0")
    with kgserve.open(folder, embedding_provider="hashing") as library:
        store = library.store("s")
        assert len(list(store.nodes())) == 20
        assert store.search("n7", mode="keyword", at_least=20).index_sequence == 20
        assert store.stats().sequence == 20
        assert store.cypher("MATCH (n:Entity) RETURN count(n)").rows == [[20]]


def test_control_c_ends_a_write_statement(folder: Path) -> None:
    program = """
        store.inject([{"id": f"n{number}", "type": "t"} for number in range(60)])
        nodes = ", ".join(f"({name}:Entity)" for name in "abcdef")
        many = "a.version + b.version + c.version + d.version + e.version + f.version > 6"
        print("begins", flush=True)
        store.cypher(f"MATCH {nodes} WHERE {many} SET a.content = f.id", mode="write")
    """
    opening = f"os.environ['KGSERVE_QUERY_TIMEOUT'] = '600'\n{OPENING}"
    with Program(folder, program, opening=opening) as run:
        assert run.line() == "begins"
        time.sleep(0.5)
        run.signal(signal.SIGINT)
        done = run.end()
    assert (done.code, done.err.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt"), done.err
    with kgserve.open(folder, embedding_provider="hashing") as library:
        stats = library.store("s").stats()
        assert (stats.sequence, stats.engine_rebuilds) == (1, 0)


def test_the_host_program_is_not_affected(folder: Path) -> None:
    program = """
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), gc.get_threshold()
        library = kgserve.open(FOLDER, embedding_provider="hashing")
        library.store("s").inject([{"id": "a", "type": "t"}])
        library.store("s").search("a", at_least=1)
        assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), gc.get_threshold())
        assert not logging.root.handlers
        assert all(each.daemon for each in threading.enumerate() if each is not threading.main_thread())
        logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
        library.close()
        assert threading.enumerate() == [threading.main_thread()]
    """
    with Program(folder, program, opening="import gc, logging\n", python=PYTHON) as run:
        done = run.end()
    assert (done.code, done.out) == (0, "")
    # The library logs through logging, once the program has configured it.
    assert done.err.startswith("kgserve.stores.open_store event='store_closed' store='s' sequence=1 clean=True")


def test_only_warnings_are_shown(folder: Path) -> None:
    with Program(folder, "kgserve.open(FOLDER).store('s').inject([])", opening="", python=PYTHON) as run:
        done = run.end()
    assert (done.code, done.out) == (0, "")
    assert done.err.count("\n") == 1
    assert "embedding_degraded" in done.err


def test_slow_operations_are_shown_on_request(folder: Path) -> None:
    node = "{'id': 'a', 'type': 't', 'content': str(time.time_ns()) + 'x' * 1_000_000}"
    program = f"import time\nkgserve.open(FOLDER, indexes=False).store('s').inject([{node}])"
    shown = ["import os\nos.environ['KGSERVE_SLOW_MS'] = '1'\n", "import logging\nlogging.basicConfig()\n"]
    with Program(folder, program, opening=shown[0]) as run:
        done = run.end()
    assert (done.code, done.out, done.err) == (0, "", "")
    with Program(folder, program, opening="".join(shown)) as run:
        done = run.end()
    assert done.code == 0
    assert "event='slow_operation'" in done.err


def test_a_configuration_of_structlog_is_kept(folder: Path) -> None:
    opening = "import structlog\nstructlog.configure(processors=[structlog.processors.JSONRenderer()])\n"
    program = "with kgserve.open(FOLDER, indexes=False) as library: library.create('s')"
    with Program(folder, program, opening=opening, python=PYTHON) as run:
        done = run.end()
    assert '"event": "store_opened"' in done.out


def test_importing_kgserve_imports_nothing_else() -> None:
    program = "import sys; before = set(sys.modules); import kgserve; print(sorted(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert run.stdout == "['__future__', 'kgserve', 'kgserve.platform', 'kgserve.platform.version']\n"
