"""Proxy between a client and a NATS server that can drop responses or duplicate published messages."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

PUBLISHED = re.compile(rb"H?PUB [^\r\n]* (\d+)\r\n")


class Proxy:
    """A proxy that listens on its own port until closed."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._swallowing = False
        self._doubling = False
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._open: set[socket.socket] = set()
        self._clients = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, name="proxy")]
        self._threads[0].start()

    def lose_answers(self) -> None:
        self._swallowing = True

    def stop_answering(self) -> None:
        """Cut the connections, and accept new ones without ever answering."""
        self._swallowing = True
        self._hang_up()

    def count_clients(self) -> tuple[int, int]:
        """Return the number of connections that clients have opened so far, and how many are still open."""
        with self._lock:
            return self._clients, len(self._open)

    def double_requests(self) -> None:
        self._doubling = True

    def heal(self) -> None:
        """Forward everything again. A connection with dropped data is cut, since it is in the middle of a line."""
        lost, self._swallowing, self._doubling = self._swallowing, False, False
        if lost:
            self._hang_up()

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._hang_up()
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                with self._lock:
                    self._sockets += [client, server]
                    self._open.add(client)
                    self._clients += 1
                for pump in (self._up, self._down):
                    self._threads.append(threading.Thread(target=pump, args=(client, server), name="proxy"))
                    self._threads[-1].start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        waiting = b""
        with _shutting(client, server):
            while got := client.recv(1 << 16):
                waiting += got
                while piece := _first(waiting):
                    waiting = waiting[len(piece) :]
                    server.sendall(piece * 2 if self._doubling and piece.startswith(b"HPUB") else piece)
        with self._lock:
            self._open.discard(client)

    def _down(self, client: socket.socket, server: socket.socket) -> None:
        with _shutting(client, server):
            while got := server.recv(1 << 16):
                if not self._swallowing:
                    client.sendall(got)

    def _hang_up(self) -> None:
        with self._lock:
            for each in self._sockets:
                _shut(each)


@contextmanager
def _shutting(*sockets: socket.socket) -> Generator[None]:
    """Shut down both directions when either ends. Only a shutdown wakes a thread that waits on the socket."""
    with suppress(OSError):
        yield
    for each in sockets:
        _shut(each)


def _shut(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)


def _first(waiting: bytes) -> bytes:
    """Return the first complete protocol operation with its payload, or b"" if incomplete."""
    end = waiting.find(b"\r\n") + 2
    if end < 2:
        return b""
    if (published := PUBLISHED.match(waiting)) is not None:
        end += int(published[1]) + 2
    return waiting[:end] if len(waiting) >= end else b""
