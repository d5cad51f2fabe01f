"""``kgserve top``."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from kgserve.cli.options import load
from kgserve.cli.remote import Address, Refused, Unreachable, check, connect, find, server_options

if TYPE_CHECKING:
    from rich.console import Console

    from kgserve.cli.top_numbers import Order, Overview, Reading

_ANSWER_SECONDS = 10.0
_ORDERS = ("writes", "lag", "queue", "engine", "nodes", "journal", "name")


@click.command()
@click.option("--once", is_flag=True, help="Print one frame with the rates of one interval, and end.")
@click.option(
    "--sort", "order", type=click.Choice(_ORDERS), default="writes", show_default=True, help="Order of stores."
)
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@server_options
def top(*, once: bool, order: Order, interval: float, server: str | None, data_dir: str | None) -> None:
    """Watch a running server: rates, latency, memory, its open stores and the engines' processes of those.

    Engine is the memory of a store's engine's process, empty while it has none; Waiting are the Cypher statements that
    wait for it, and Lost counts the processes that crashed or hung.

    q quits, s sorts by the next column. A server that goes away is waited for.
    """
    from rich.console import Console

    watch = _Watch(server, data_dir)
    if once:
        watch.look()
        time.sleep(interval)
        watch.look()
        _print(Console(), watch, order)
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("top draws on a terminal, and this is none; --once prints one frame")
    _live(watch, order, interval)


class _Watch:
    """The server as it is looked at again and again."""

    def __init__(self, server: str | None, data_dir: str | None) -> None:
        self._server, self._data_dir = server, data_dir
        self.address: Address = find(server, data_dir)
        self.overview: Overview | None = None
        self.trouble: str | None = None
        self._before: Reading | None = None

    def look(self) -> None:
        """Take the numbers in. Raises Unreachable and Refused."""
        from kgserve.cli.top_numbers import Reading, overview
        from kgserve.metrics.exposition import Scrape

        with connect(self.address) as client:
            response = client.get("/metrics", timeout=_ANSWER_SECONDS)
            check(response)
        try:
            reading = Reading(time.monotonic(), Scrape.read(response.text))
        except ValueError as error:
            raise Refused(f"what {self.address.url} sent is no metrics of kgserve: {error}") from error
        self.overview = overview(self._before or reading, reading)
        self._before = reading
        self.trouble = None

    def look_patiently(self) -> None:
        """The same; a server that does not answer is looked for again the next time, as it may have moved."""
        try:
            self.look()
        except (Unreachable, Refused) as error:
            if self.trouble is None:
                since, reason = time.strftime("%H:%M:%S"), error.format_message().splitlines()[0]
                self.trouble = f"No answer since {since}, trying again: {reason}"
            self._before = None
            if self._is_anywhere():
                self.address = find(self._server, self._data_dir)

    def _is_anywhere(self) -> bool:
        """Whether it is known where to look: the configured port alone might be another server's."""
        from kgserve.server_file import read_server_file

        return self._server is not None or read_server_file(load({"data_dir": self._data_dir}).data_dir) is not None


def _print(console: Console, watch: _Watch, order: Order) -> None:
    from kgserve.cli.top_view import Shown, frame

    console.print(frame(Shown(watch.address.url, watch.overview, order, keys=False), console.width, None))


def _live(watch: _Watch, order: Order, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from kgserve.cli.top_view import Shown, frame

    console = Console()
    with _keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        due = 0.0
        while True:
            if time.monotonic() >= due:
                watch.look_patiently()
                due = time.monotonic() + interval
            shown = Shown(watch.address.url, watch.overview, order, watch.trouble)
            live.update(frame(shown, console.width, console.height), refresh=True)
            match _key(due - time.monotonic()):
                case "q" | "Q" | "\x04":
                    return
                case "s" | "S":
                    order = _ORDERS[(_ORDERS.index(order) + 1) % len(_ORDERS)]
                case _:
                    pass


@contextmanager
def _keys() -> Generator[None]:
    """While inside, keys arrive at once and are not shown."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _key(seconds: float) -> str:
    """The key that is pressed within a time, "" for none. Ctrl-D when the terminal has gone."""
    ready, _, _ = select.select([sys.stdin], [], [], max(seconds, 0))
    if not ready:
        return ""
    import os

    return os.read(sys.stdin.fileno(), 1).decode("latin-1") or "\x04"
