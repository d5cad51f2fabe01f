"""Latencies of one API key while another key floods the server.

`python -m bench.flood [KIND …] [--seconds 3]`. One client reads a node and injects in turn while a process of its own
floods with the other key. p95 in milliseconds: alone, with the flood, and with a control process that takes as much
processor time as the flooders but sends nothing. The clients share the machine's cores with the server, so compare the
flood with the control.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.server import ServerProcess, scratch_folder
from bench.wire import RawConnection
from kgserve.platform.access.authentication import add_api_key, create_api_key

STORE = "flood"
NODES = 2_000
THREADS = 32
_LARGE_BODY_BYTES = 9 << 20
_TOO_MANY_REQUESTS = 429
_MCP = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "flood", "version": "1"},
    },
}
_IDLE_SECONDS = 0.05
"""Most processor time of an idle server in half a second."""
KINDS: dict[str, tuple[str, str, object]] = {
    "events": ("GET", "/api/events?since=0", None),
    "walks": ("POST", f"/api/memory/{STORE}/traverse", {"start_id": "n0", "depth": 10}),
    "bodies": ("POST", f"/api/memory/{STORE}/inject", None),
    "past searches": ("POST", f"/api/memory/{STORE}/search", {"query": "words 7", "as_of": 3}),
    "searches": ("POST", f"/api/memory/{STORE}/search", {"query": "words 7"}),
    "exports": ("GET", f"/api/memory/{STORE}/export?format=parquet", None),
    "sessions": ("POST", "/mcp", _MCP),
}


class Latencies(NamedTuple):
    """p95 of both operations, in milliseconds."""

    node: float
    inject: float


def encode_request(method: str, path: str, body: bytes, key: str) -> bytes:
    """Return the bytes of a request with a key."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n"
        "Content-Type: application/json\r\nAccept: application/json, text/event-stream, */*\r\n\r\n"
    )
    return head.encode() + body


def flood(kind: str, port: int, key: str) -> None:
    """Send requests of one kind from many threads, until the process is killed. Prints a line once it has begun."""
    method, path, value = KINDS[kind]
    body = b"" if value is None else msgspec.json.encode(value)
    if kind == "bodies":
        node = {"id": "large", "type": "t", "content": "x" * 960}
        body = msgspec.json.encode({"nodes": [node] * (_LARGE_BODY_BYTES // 1_000)})
    ready = encode_request(method, path, body, key)

    def send() -> None:
        while True:
            try:
                if kind == "events":
                    _replay(port, ready)
                    continue
                with RawConnection(port, 30) as connection:
                    for _ in range(20):
                        if connection.send(ready).status == _TOO_MANY_REQUESTS:
                            time.sleep(0.1)
            except OSError:
                time.sleep(0.01)

    for _ in range(THREADS):
        threading.Thread(target=send, daemon=True).start()
    print("begun", flush=True)
    time.sleep(3600)


def _replay(port: int, ready: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(ready)
        received = 0
        while received < NODES * 100 and (block := connection.recv(1 << 16)):
            received += len(block)


def burn(share: float) -> None:
    """Take this share of a core and send nothing, until the process is killed."""
    print("begun", flush=True)
    while True:
        until = time.perf_counter() + 0.01 * min(share, 1.0)
        while time.perf_counter() < until:
            pass
        time.sleep(0.01 * max(0.0, 1.0 - share))


@contextmanager
def _child(*arguments: str) -> Generator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, "-m", "bench.flood", *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
    finally:
        child.kill()
        child.wait()


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(port: int, key: str, seconds: float) -> Latencies:
    """Return p95 of reading a node and of injecting five nodes."""
    batch = {"nodes": [{"id": f"own{number}", "type": "t", "content": f"{time.time()}"} for number in range(5)]}
    read = encode_request("GET", f"/api/memory/{STORE}/nodes/n1", b"", key)
    inject = encode_request("POST", f"/api/memory/{STORE}/inject", msgspec.json.encode(batch), key)
    took: tuple[list[float], list[float]] = [], []
    with RawConnection(port, 30) as connection:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for ready, into in zip((read, read, inject), (took[0], took[0], took[1]), strict=True):
                began = time.perf_counter()
                connection.ask(ready)
                into.append(time.perf_counter() - began)
            time.sleep(0.006)
    return Latencies(*(sorted(each)[int(len(each) * 0.95)] * 1000 for each in took))


def _wait_until_idle(server: ServerProcess) -> None:
    """Wait until the server has finished what it has received, for half a minute at most."""
    end = time.monotonic() + 30
    used = server.processor_seconds()
    while time.monotonic() < end:
        time.sleep(0.5)
        before, used = used, server.processor_seconds()
        if used - before < _IDLE_SECONDS:
            return


def compare(kind: str, server: ServerProcess, keys: tuple[str, str], seconds: float) -> str:
    """Return a line of the table: medians over three rounds."""
    rounds: list[tuple[Latencies, Latencies, Latencies]] = []
    for _ in range(3):
        alone = measure(server.port, keys[0], seconds)
        with _child("--flood", kind, str(server.port), keys[1]) as child:
            time.sleep(1.0)
            used, began = _processor_seconds(child.pid), time.perf_counter()
            flooded = measure(server.port, keys[0], seconds)
            share = (_processor_seconds(child.pid) - used) / (time.perf_counter() - began)
        _wait_until_idle(server)
        with _child("--burn", f"{share:.2f}"):
            rounds.append((alone, flooded, measure(server.port, keys[0], seconds)))
    cells = [kind]
    for which in range(2):
        alone, flooded, control = (sorted(each[part][which] for each in rounds)[1] for part in range(3))
        cells.append(f"{alone:.1f} | {control:.1f} | {flooded:.1f} | {flooded / control:.1f} x")
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str]) -> int:
    """Print a table, or do the part of a child process."""
    parser = argparse.ArgumentParser(prog="python -m bench.flood")
    parser.add_argument("kinds", nargs="*", default=[*KINDS])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--flood", nargs=3, metavar=("KIND", "PORT", "KEY"))
    parser.add_argument("--burn", type=float)
    options = parser.parse_args(arguments)
    if options.flood is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        flood(options.flood[0], int(options.flood[1]), options.flood[2])
    elif options.burn is not None:
        burn(options.burn)
    else:
        _print_table(options.kinds or [*KINDS], options.seconds)
    return 0


def _print_table(kinds: Sequence[str], seconds: float) -> None:
    with scratch_folder() as folder:
        keys: list[str] = []
        for name in ("others", "flooder"):
            key, text = create_api_key(name, "write", ("*",), time.time_ns() // 1000, None)
            (folder / "data").mkdir(exist_ok=True)
            add_api_key(folder / "data", key)
            keys.append(text)
        settings = {"embedding_provider": "hashing"}
        with ServerProcess(folder / "data", settings) as server:
            _fill(server.port, keys[0])
            print("| flood | node: alone | control | flood | x control | inject: alone | control | flood | x control |")
            print("|---|---|---|---|---|---|---|---|---|", flush=True)
            for kind in kinds:
                print(compare(kind, server, (keys[0], keys[1]), seconds), flush=True)


def _fill(port: int, key: str) -> None:
    nodes = [{"id": f"n{number}", "type": "t", "content": f"words {number} of a text"} for number in range(NODES)]
    edges = [
        {"from": f"n{number}", "to": f"n{(number * 7 + step) % NODES}", "relation_type": "R"}
        for number in range(NODES)
        for step in range(1, 4)
    ]
    with RawConnection(port, 60) as connection:
        for start in range(0, NODES, 500):
            body = {"nodes": nodes[start : start + 500]}
            connection.ask(encode_request("POST", f"/api/memory/{STORE}/inject", msgspec.json.encode(body), key))
        connection.ask(
            encode_request("POST", f"/api/memory/{STORE}/inject", msgspec.json.encode({"edges": edges}), key)
        )
        connection.ask(
            encode_request("POST", f"/api/memory/{STORE}/search", msgspec.json.encode({"query": "words 7"}), key)
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
