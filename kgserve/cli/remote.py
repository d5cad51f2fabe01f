"""Talking to a running server: which one is meant, and its refusals as messages and exit codes."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

from kgserve.cli.options import given, keep, key_option, settings_options
from kgserve.errors import InvalidInput, KgserveError
from kgserve.settings import load

if TYPE_CHECKING:
    from kgserve.client import Client

Function = TypeVar("Function", bound=Callable[..., Any])

_KEPT: dict[str, Any] = {"expose_value": False, "callback": keep}


class Unreachable(click.ClickException):
    """No server answers."""

    exit_code = 3


class Refused(click.ClickException):
    """The server answered with an error."""


def server_options(function: Function) -> Function:
    """Add the options that say which server is meant: ``--server``, ``--data`` and ``--key``, for `connect`."""
    named = click.option(
        "--server",
        metavar="URL",
        **_KEPT,
        help="The server to talk to.  [default: that of the data folder; without --data else that at KGSERVE_PORT]",
    )
    return named(settings_options("data_dir", **_KEPT)(key_option(**_KEPT)(function)))


@contextmanager
def connect(data_dir: Path | None = None, *, timeout: float | None = None) -> Generator[Client]:
    """A client of the data folder's server, else of the one that the options name, or that is at the configured port.

    Raises Unreachable when no server answers, also when a data folder was named and nobody serves it: another server
    holds other stores. What the server refuses inside becomes Refused. An answer may take ``timeout`` seconds.
    """
    from kgserve.client import Client

    server, folder = (None, str(data_dir)) if data_dir else (given("server"), given("data_dir"))
    _require_server(server, folder)
    with Client(server, data=folder, key=given("key"), timeout=timeout, retries=0) as client:
        try:
            yield client
        except KgserveError as error:
            raise failure(error, url_of(client)) from error


def failure(error: Exception, url: str) -> Exception:
    """What the client raised, as a command says it; what this side has raised stays as it is."""
    from http.client import responses

    from kgserve import client

    answered = bool(getattr(error, "__notes__", ()))  # the note names the request that the server has refused
    match error:
        case client.Interrupted():
            return error
        case client.Unreachable():
            return Unreachable(f"no server answers at {url}; start one with `kgserve serve`, or name one with --server")
        case client.Unintelligible():
            return Refused(f"what {urlsplit(url).hostname} sent is no answer of kgserve: {error.__cause__}")
        case client.Refused() if not answered:
            reason = responses.get(error.status, "")
            return Refused(f"the server at {urlsplit(url).hostname} answered {error.status} {reason}")
        case InvalidInput() if answered:
            return Refused(in_words(error))
        case _:
            return error


def url_of(client: Client) -> str:
    """Where the client's server is."""
    return client.http.target.address.url


def in_words(error: InvalidInput) -> str:
    """The message, and a line for each place that is wrong."""
    return "\n".join([error.message, *(f"  {fault.path}: {fault.message}" for fault in error.errors)])


def _require_server(server: str | None, data_dir: str | None) -> None:
    from kgserve.reach import find

    if server is not None or data_dir is None:
        return
    folder = load({"data_dir": data_dir}).data_dir
    if not folder.is_dir():
        raise Unreachable(f"there is no data folder {folder}")
    if find(folder) is None:
        hint = f"start one with `kgserve serve --data {folder}`, or name one with --server"
        raise Unreachable(f"no server serves {folder}; {hint}")
