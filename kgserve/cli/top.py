"""``kgserve top``: live display of a server's metrics, computed from two successive scrapes."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import click
import msgspec

from kgserve.cli.options import (
    RequestFailedOnServer,
    add_server_options,
    get_click_option_value,
    get_connected_server_url,
    open_server_client,
    translate_client_error_for_cli,
)
from kgserve.cli.terminal import format_size
from kgserve.errors import KgserveError
from kgserve.platform.settings import load_settings

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    from kgserve.client import Client
    from kgserve.platform.metrics.exposition import MetricsScrape

Order = Literal["writes", "lag", "queue", "engine", "nodes", "journal", "name"]
ORDERS: tuple[Order, ...] = get_args(Order)

_METRICS_TIMEOUT_SECONDS = 10.0
_MIN_ERROR_STATUS = 400
_REQUESTS_METRIC = "kgserve_requests_total"
_METRICS_PATH = "/metrics"
_STORE_METRICS = {
    "nodes": "nodes",
    "edges": "edges",
    "sequence": "sequence",
    "queue": "queued_writes",
    "journal": "journal_bytes",
    "engine": "engine_process_bytes",
    "waiting": "waiting_statements",
    "lost": "engine_losses_total",
}
"""Fields of `StoreRow` and their metrics, without the prefix ``kgserve_store_``."""

_FACT_WIDTH_CHARS = 19
_OTHER_LINES = 7
_NUMBER_WIDTH_CHARS = 7
_COLUMN_GAP_CHARS = 3
_MIN_NAME_WIDTH_CHARS = 8
_UNKNOWN_VALUE = "-"


@click.command("top")
@click.option("--once", is_flag=True, help="Print one frame with the rates of one interval, and exit.")
@click.option(
    "--sort", "order", type=click.Choice(ORDERS), default="writes", show_default=True, help="Order of stores."
)
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two updates.",
)
@add_server_options
def show_live_metrics_command(*, once: bool, order: Order, interval: float) -> None:
    """Show a running server's rates, latency, memory, open stores and engine processes.

    Engine is the memory of a store's engine process, empty without one. Waiting is the number of Cypher statements in
    its queue. Lost counts processes that crashed or hung.

    Press q to quit, s to sort by the next column. If the server stops, the command waits for it.
    """
    from rich.console import Console

    with open_server_client(timeout=_METRICS_TIMEOUT_SECONDS) as client:
        watch = _ServerMonitor(
            client,
            named=get_click_option_value("server") is not None,
            folder=load_settings({"data_dir": get_click_option_value("data_dir")}).data_dir,
        )
        if once:
            watch.read()
            time.sleep(interval)
            watch.read()
            console = Console()
            console.print(render_metrics_frame(watch.frame(order, keys=False), console.width, None))
        elif not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise click.UsageError("Standard output is not a terminal; use --once to print one frame.")
        else:
            _live(watch, order, interval)


class _ServerMonitor:
    """Repeated readings of a server's metrics."""

    def __init__(self, client: Client, *, named: bool, folder: Path) -> None:
        self._client = client
        self._named, self._folder = named, folder
        self._overview: ServerMetricsOverview | None = None
        self._trouble: str | None = None
        self._before: TimedMetricsScrape | None = None

    def read(self) -> None:
        """Read the metrics. Raises the client's errors, and RequestFailedOnServer for other content."""
        from kgserve.client.wire import ClientRoute
        from kgserve.platform.metrics.exposition import MetricsScrape

        call = ClientRoute("metrics", "GET", _METRICS_PATH, bytes).call({}, headers={"Accept": "*/*"})
        with self._client.http.open(call) as response:
            text = response.read()
        try:
            reading = TimedMetricsScrape(time.monotonic(), MetricsScrape.read(text.decode()))
        except ValueError as error:
            raise RequestFailedOnServer(
                f"{get_connected_server_url(self._client)} did not send kgserve metrics: {error}"
            ) from error
        self._overview = compute_server_overview_from_scrapes(self._before or reading, reading)
        self._before, self._trouble = reading, None

    def read_patiently(self) -> None:
        """Read the metrics; on failure, record the trouble and locate the server again, as it may have moved."""
        from kgserve.platform.server_discovery import find_running_server_of_data_folder

        try:
            self.read()
        except (KgserveError, RequestFailedOnServer) as error:
            if self._trouble is None:
                reason = str(
                    translate_client_error_for_cli(error, get_connected_server_url(self._client))
                ).splitlines()[0]
                self._trouble = f"No answer since {time.strftime('%H:%M:%S')}, retrying: {reason}"
            self._before = None
            # The configured port alone could belong to another server.
            if self._named or find_running_server_of_data_folder(self._folder) is not None:
                self._client.http.target.relocate()

    def frame(self, order: Order, *, keys: bool = True) -> MetricsDisplayFrame:
        """Return the current frame."""
        return MetricsDisplayFrame(get_connected_server_url(self._client), self._overview, order, self._trouble, keys)


def _live(watch: _ServerMonitor, order: Order, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with _keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        due = 0.0
        while True:
            if time.monotonic() >= due:
                watch.read_patiently()
                due = time.monotonic() + interval
            live.update(render_metrics_frame(watch.frame(order), console.width, console.height), refresh=True)
            match _key(due - time.monotonic()):
                case "q" | "Q" | "\x04":
                    return
                case "s" | "S":
                    order = ORDERS[(ORDERS.index(order) + 1) % len(ORDERS)]
                case _:
                    pass


@contextmanager
def _keys() -> Generator[None]:
    """Deliver keys immediately and without echo within a `with` block."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _key(seconds: float) -> str:
    """Return the key that is pressed within ``seconds``, or "". Ctrl-D when the terminal has closed."""
    ready, _, _ = select.select([sys.stdin], [], [], max(seconds, 0))
    if not ready:
        return ""
    import os

    return os.read(sys.stdin.fileno(), 1).decode("latin-1") or "\x04"


class TimedMetricsScrape(msgspec.Struct, frozen=True):
    """A scrape of metrics, and its time on the monotonic clock."""

    at: float
    scrape: MetricsScrape


class StoreMetricsRow(msgspec.Struct, frozen=True):
    """Metrics of an open store. ``writes``: per second. ``lag``: in commits. ``check``: None before the first check.

    ``engine``: memory of its engine process in bytes, 0 without one. ``waiting``: statements in the process's queue.
    ``lost``: number of processes that crashed or hung.
    """

    name: str
    nodes: int
    edges: int
    sequence: int
    writes: float
    queue: int
    lag: int
    journal: int
    check: bool | None
    engine: int = 0
    waiting: int = 0
    lost: int = 0


class ServerMetricsOverview(msgspec.Struct, frozen=True):
    """Metrics of the whole server; None for those that the key may not see. Rates are per second, sizes in bytes."""

    version: str
    stores: Sequence[StoreMetricsRow]
    requests: float | None
    errors: float | None
    p95: float | None
    writes: float
    in_progress: float | None
    streams: float | None
    memory: float | None
    cpu: float | None
    threads: float | None
    started: float | None
    slow: float | None
    engines: float | None
    most_engines: float | None
    engine_memory: float


def compute_server_overview_from_scrapes(before: TimedMetricsScrape, now: TimedMetricsScrape) -> ServerMetricsOverview:
    """Return the current values, with rates and quantiles between two readings."""
    scrape = now.scrape
    stores = _stores(before, now)
    versions = scrape.by("version", "kgserve_build_info")
    return ServerMetricsOverview(
        version=next(iter(versions), "?"),
        stores=stores,
        requests=_growth_per_second(before, now, _requests),
        errors=_growth_per_second(before, now, _errors),
        p95=_p95(before, now),
        writes=sum(store.writes for store in stores),
        in_progress=scrape.value("kgserve_requests_in_progress"),
        streams=scrape.value("kgserve_event_streams"),
        memory=scrape.value("process_resident_memory_bytes"),
        cpu=_rate(before, now, "process_cpu_seconds_total"),
        threads=scrape.value("process_threads"),
        started=scrape.value("process_start_time_seconds"),
        slow=scrape.value("kgserve_slow_operations_total"),
        engines=scrape.value("kgserve_engine_processes"),
        most_engines=scrape.value("kgserve_engine_processes_limit"),
        engine_memory=sum(store.engine for store in stores),
    )


def sort_store_metrics_rows(stores: Sequence[StoreMetricsRow], order: Order) -> list[StoreMetricsRow]:
    """Return stores by name, or in descending order of another column."""
    by_name = sorted(stores, key=lambda store: store.name)
    if order == "name":
        return by_name
    return sorted(by_name, key=lambda store: getattr(store, order), reverse=True)


def _stores(before: TimedMetricsScrape, now: TimedMetricsScrape) -> list[StoreMetricsRow]:
    columns = {field: now.scrape.by("store", f"kgserve_store_{name}") for field, name in _STORE_METRICS.items()}
    written = _rates(before, now, "kgserve_store_writes_total")
    checks = now.scrape.by("store", "kgserve_store_last_check_ok")
    lags: dict[str, float] = {}
    for sample in now.scrape.samples.get("kgserve_store_view_lag_commits", ()):
        name = sample.labels["store"]
        lags[name] = max(lags.get(name, 0.0), sample.value)
    return [
        StoreMetricsRow(
            name=name,
            writes=written.get(name, 0.0),
            lag=int(lags.get(name, 0)),
            check=bool(checks[name]) if name in checks else None,
            **{field: int(values.get(name, 0)) for field, values in columns.items()},
        )
        for name in columns["nodes"]
    ]


def _rates(before: TimedMetricsScrape, now: TimedMetricsScrape, name: str) -> dict[str, float]:
    seconds = max(now.at - before.at, 1e-3)
    earlier = before.scrape.by("store", name)
    # A smaller value than before was reset: the store was reopened, or the server restarted.
    return {
        store: max(value - earlier.get(store, value), 0.0) / seconds
        for store, value in now.scrape.by("store", name).items()
    }


def _rate(before: TimedMetricsScrape, now: TimedMetricsScrape, name: str) -> float | None:
    return _growth_per_second(before, now, lambda scrape: scrape.value(name))


def _growth_per_second(
    before: TimedMetricsScrape, now: TimedMetricsScrape, count: Callable[[MetricsScrape], float | None]
) -> float | None:
    """Return the growth of a counter per second."""
    value = count(now.scrape)
    if value is None:
        return None
    return max(value - (count(before.scrape) or 0.0), 0.0) / max(now.at - before.at, 1e-3)


def _requests(scrape: MetricsScrape) -> float | None:
    """Return the number of requests, except scrapes of the metrics."""
    total = scrape.value(_REQUESTS_METRIC)
    return None if total is None else total - (scrape.value(_REQUESTS_METRIC, route=_METRICS_PATH) or 0.0)


def _errors(scrape: MetricsScrape) -> float | None:
    if _REQUESTS_METRIC not in scrape.samples:
        return None
    by_status = scrape.by("status", _REQUESTS_METRIC)
    return sum(count for status, count in by_status.items() if int(status) >= _MIN_ERROR_STATUS)


def _p95(before: TimedMetricsScrape, now: TimedMetricsScrape) -> float | None:
    """Return the 95th percentile of request durations between two readings, in seconds."""
    from kgserve.platform.metrics.exposition import estimate_histogram_quantile

    counts, earlier = _buckets(now.scrape), _buckets(before.scrape)
    grown = {bound: count - earlier.get(bound, 0.0) for bound, count in counts.items()}
    return estimate_histogram_quantile(0.95, grown) if all(count >= 0 for count in grown.values()) else None


def _buckets(scrape: MetricsScrape) -> dict[str, float]:
    """Return cumulative request counts by upper bound of duration, except scrapes of the metrics."""
    name = "kgserve_request_duration_seconds_bucket"
    own = scrape.by("le", name, route=_METRICS_PATH)
    return {bound: count - own.get(bound, 0.0) for bound, count in scrape.by("le", name).items()}


class _Column(NamedTuple):
    title: str
    width: int
    """Minimum terminal width in characters at which the column is shown."""
    text: Callable[[StoreMetricsRow], str]


_STORE_TABLE_COLUMNS = (
    _Column("Writes/s", 0, lambda store: f"{store.writes:,.1f}"),
    _Column("Lag", 0, lambda store: f"{store.lag:,}"),
    _Column("Queue", 50, lambda store: f"{store.queue:,}"),
    _Column("Engine", 65, lambda store: format_size(store.engine) if store.engine else ""),
    _Column("Nodes", 60, lambda store: f"{store.nodes:,}"),
    _Column("Edges", 80, lambda store: f"{store.edges:,}"),
    _Column("Waiting", 95, lambda store: f"{store.waiting:,}"),
    _Column("Lost", 95, lambda store: f"{store.lost:,}"),
    _Column("Sequence", 105, lambda store: f"{store.sequence:,}"),
    _Column("Journal", 115, lambda store: format_size(store.journal)),
    _Column("Check", 125, lambda store: {None: "", True: "agreed", False: "FAILED"}[store.check]),
)


class MetricsDisplayFrame(NamedTuple):
    """Frame of the live display: server address, metrics, order of stores, and the current connection error."""

    url: str
    overview: ServerMetricsOverview | None
    order: Order
    trouble: str | None = None
    keys: bool = True


def render_metrics_frame(frame: MetricsDisplayFrame, width: int, height: int | None) -> RenderableType:
    """Render a frame for a screen of ``width`` by ``height`` characters; without ``height``, include all stores."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [_title(frame)]
    if frame.trouble is not None:
        parts.append(Text(frame.trouble, style="bold red", overflow="ellipsis", no_wrap=True))
    if frame.overview is None:
        parts.append(Text("Waiting for the first answer …" if frame.trouble is None else ""))
        return Group(*parts)
    head = _head(frame.overview, max(min(width // _FACT_WIDTH_CHARS, 5), 1))
    max_rows = None if height is None else max(height - head.row_count - _OTHER_LINES, 1)
    parts += [head, _table(frame.overview.stores, frame.order, width, max_rows)]
    if frame.keys:
        parts.append(
            Text(f"q quits · s sorts by another column (now: {frame.order})", style="dim", overflow="ellipsis")
        )
    return Group(*parts)


def _title(frame: MetricsDisplayFrame) -> Text:
    from rich.text import Text

    version = f" {frame.overview.version}" if frame.overview else ""
    text = Text(f"kgserve{version} at {frame.url}", style="bold", overflow="ellipsis", no_wrap=True)
    if frame.overview and frame.overview.started:
        text.append(f", up {_span(time.time() - frame.overview.started)}", style="")
    return text


def _head(seen: ServerMetricsOverview, per_row: int) -> Table:
    """Return a grid of names and values, ``per_row`` pairs per row."""
    from rich.table import Table
    from rich.text import Text

    facts = (
        ("requests/s", _rounded(seen.requests)),
        ("errors/s", _rounded(seen.errors)),
        ("p95", _UNKNOWN_VALUE if seen.p95 is None else f"{seen.p95 * 1000:,.1f} ms"),
        ("in progress", _count(seen.in_progress)),
        ("writes/s", _rounded(seen.writes)),
        ("streams", _count(seen.streams)),
        ("memory", _UNKNOWN_VALUE if seen.memory is None else format_size(int(seen.memory))),
        ("CPU", _UNKNOWN_VALUE if seen.cpu is None else f"{seen.cpu * 100:,.0f} %"),
        ("threads", _count(seen.threads)),
        ("engines", f"{_count(seen.engines)}/{_count(seen.most_engines)}"),
        ("engine memory", format_size(int(seen.engine_memory))),
        ("slow", _count(seen.slow)),
    )
    grid = Table.grid(padding=(0, 2))
    for first in range(0, len(facts), per_row):
        row = facts[first : first + per_row]
        grid.add_row(*(Text.assemble((f"{name} ", "dim"), value, no_wrap=True) for name, value in row))
    return grid


def _table(stores: Sequence[StoreMetricsRow], order: Order, width: int, max_rows: int | None) -> Group | Table:
    """Return the table of the first ``max_rows`` stores, with the columns that fit the width."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    stores = sort_store_metrics_rows(stores, order)
    limit = len(stores) if max_rows is None else max_rows
    table = Table(box=box.SIMPLE_HEAD, expand=False)
    columns = [column for column in _STORE_TABLE_COLUMNS if width >= column.width]
    others = sum(max(len(column.title), _NUMBER_WIDTH_CHARS) + _COLUMN_GAP_CHARS for column in columns)
    table.add_column(
        "Store",
        overflow="ellipsis",
        no_wrap=True,
        max_width=max(width - others - _COLUMN_GAP_CHARS, _MIN_NAME_WIDTH_CHARS),
    )
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    for store in stores[:limit]:
        table.add_row(Text(store.name), *(Text(column.text(store)) for column in columns), style=_style(store))
    hidden = len(stores) - limit
    return Group(table, Text(f"… and {hidden} more", style="dim")) if hidden > 0 else table


def _style(store: StoreMetricsRow) -> str:
    return "bold red" if store.check is False else ""


def _rounded(value: float | None) -> str:
    return _UNKNOWN_VALUE if value is None else f"{value:,.1f}"


def _count(value: Any) -> str:
    return _UNKNOWN_VALUE if value is None else f"{value:,.0f}"


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
