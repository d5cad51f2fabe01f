"""Talking to a running server: finding it, and turning its refusals into messages."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import click
import msgspec

from kgserve.cli.options import load, settings_options
from kgserve.decoding import decode_json
from kgserve.settings import Settings

if TYPE_CHECKING:
    import httpx

Function = TypeVar("Function", bound=Callable[..., Any])
Answer = TypeVar("Answer")

_KEY = "kgserve.key"
"""Where a context keeps the key that was given, so that no command needs to pass it on."""

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
    certificate: str | None = None


class _Problem(msgspec.Struct):
    title: str = ""
    detail: str = ""
    errors: list[dict[str, str]] = []


def server_options(function: Function) -> Function:
    """Add the options that say which server is meant: ``--server``, ``--data`` and ``--key``, which `find` takes."""
    named = click.option(
        "--server",
        metavar="URL",
        help="The server to talk to.  [default: that of the data folder; without --data else that at KGSERVE_PORT]",
    )
    keyed = click.option(
        "--key",
        metavar="KEY",
        expose_value=False,
        callback=_keep,
        help="Key to send; better given as the variable KGSERVE_KEY.  [default: the token of the data folder's server]",
    )
    return named(settings_options("data_dir")(keyed(function)))


def find(server: str | None, data_dir: str | None) -> Address:
    """The server that was named, else the one that serves the data folder, else the one at the configured port.

    Raises Unreachable when a data folder was named and nobody serves it: another server holds other stores.
    """
    context = click.get_current_context(silent=True)
    settings = load({"data_dir": data_dir, "key": context.meta.get(_KEY) if context else None})
    from kgserve.server_file import read_server_file

    running, key = read_server_file(settings.data_dir), settings.key or None
    if server is None and data_dir is not None and running is None:
        raise Unreachable(_nobody_serves(settings.data_dir))
    local = running.url.rstrip("/") if running else None
    url = _with_scheme(server) if server is not None else local or _configured(settings)
    known = running if running and url == local else None
    return Address(url, key or (known.token if known else None), known.certificate if known else None)


def _nobody_serves(data_dir: Path) -> str:
    if not data_dir.is_dir():
        return f"there is no data folder {data_dir}"
    return f"no server serves {data_dir}; start one with `kgserve serve --data {data_dir}`, or name one with --server"


def _keep(context: click.Context, _: click.Parameter, value: str | None) -> str | None:
    context.meta[_KEY] = value
    return value


def store_path(store: str, *rest: str) -> str:
    """The path of a store's resource, with every part escaped."""
    return "/".join(["/api/memory", *(quote(part, safe="") for part in (store, *rest))])


@contextmanager
def connect(address: Address) -> Generator[httpx.Client]:
    """A client of the server; what goes wrong with the connection inside becomes Unreachable or Refused."""
    import httpx

    from kgserve.server_file import trust

    headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}
    timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT)
    try:
        # A proxy from the environment would be asked for 127.0.0.1, hence trust_env=False.
        trusted = trust(address.certificate) if address.certificate else True
        with httpx.Client(
            base_url=address.url, headers=headers, timeout=timeout, trust_env=False, verify=trusted
        ) as client:
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
        return decode_json(response.content, kind)
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
        problem = decode_json(response.content, _Problem)
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
    scheme = "https" if settings.tls_cert else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.port}"
