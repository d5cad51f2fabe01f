"""Talking to a running server: finding it, and turning its refusals into messages."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import click
import msgspec

from kgserve.cli.options import load, settings_options
from kgserve.settings import Settings

if TYPE_CHECKING:
    import httpx

Function = TypeVar("Function", bound=Callable[..., Any])
Answer = TypeVar("Answer")

CONNECT_TIMEOUT = 5.0
"""Seconds that a server may take to accept a connection; its answers may take as long as the work does."""


class Unreachable(click.ClickException):
    """No server answers."""

    exit_code = 3


class Refused(click.ClickException):
    """The server answered with an error, or the connection broke."""


class Address(msgspec.Struct, frozen=True):
    """Where the server is, and the token that local clients send it, if any."""

    url: str
    token: str | None = None


class _Problem(msgspec.Struct):
    title: str = ""
    detail: str = ""
    errors: list[dict[str, str]] = []


def server_options(function: Function) -> Function:
    """Add the options that say which server is meant: ``--server`` and ``--data``."""
    named = click.option(
        "--server",
        metavar="URL",
        help="The server to talk to.  [default: the one that serves the data folder, else the configured port]",
    )
    return named(settings_options("data_dir")(function))


def find(server: str | None, data_dir: str | None) -> Address:
    """The server that was named, else the one that serves the data folder, else the one at the configured port."""
    if server is not None:
        return Address(_with_scheme(server))
    settings = load({"data_dir": data_dir})
    from kgserve.server_file import read_server_file

    running = read_server_file(settings.data_dir)
    return Address(running.url.rstrip("/"), running.token) if running else Address(_configured(settings))


def store_path(store: str, *rest: str) -> str:
    """The path of a store's resource, with every part escaped."""
    return "/".join(["/api/memory", *(quote(part, safe="") for part in (store, *rest))])


@contextmanager
def connect(address: Address) -> Generator[httpx.Client]:
    """A client of the server; what goes wrong with the connection inside becomes Unreachable or Refused."""
    import httpx

    headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}
    timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT)
    try:
        # A proxy from the environment would be asked for 127.0.0.1, hence trust_env=False.
        with httpx.Client(base_url=address.url, headers=headers, timeout=timeout, trust_env=False) as client:
            yield client
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise click.BadParameter(
            f"{address.url!r} is no address of a server: {error}", param_hint="--server"
        ) from error
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        message = f"no server answers at {address.url}; start one with `kgserve serve`, or name one with --server"
        raise Unreachable(message) from error
    except httpx.TransportError as error:
        raise Refused(f"the connection to {address.url} broke: {error or type(error).__name__}") from error


def decode(response: httpx.Response, kind: type[Answer]) -> Answer:
    """The answer's JSON as ``kind``. Raises Refused as `check` does, and when something else than kgserve answered."""
    check(response)
    try:
        return msgspec.json.decode(response.content, type=kind)
    except msgspec.DecodeError as error:
        raise Refused(f"what {response.url.host} sent is no answer of kgserve: {error}") from error


def check(response: httpx.Response) -> None:
    """Raise Refused with the server's own words unless it answered with success."""
    if response.is_success:
        return
    response.read()
    raise Refused(_refusal(response))


def _refusal(response: httpx.Response) -> str:
    try:
        problem = msgspec.json.decode(response.content, type=_Problem)
    except msgspec.DecodeError:
        problem = _Problem()
    if not (problem.detail or problem.title):
        return f"the server at {response.url.host} answered {response.status_code} {response.reason_phrase}"
    places = [f"  {place.get('path', '')}: {place.get('message', '')}" for place in problem.errors]
    return "\n".join([problem.detail or problem.title, *places])


def _with_scheme(server: str) -> str:
    return (server if "://" in server else f"http://{server}").rstrip("/")


def _configured(settings: Settings) -> str:
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
    host = everywhere.get(settings.host, settings.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"
