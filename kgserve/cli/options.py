"""Command line options derived from the settings table, and the client for the server that they select.

Maps errors of the client to messages and exit codes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

import click
import msgspec

from kgserve.errors import InvalidInput, KgserveError
from kgserve.platform.settings import ENVIRONMENT_PREFIX, Settings, list_settings_fields, load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kgserve.admin.store_admin_models import StoreListState, StoreSummary
    from kgserve.client import Client

Function = TypeVar("Function", bound=Callable[..., Any])

CLIENT_SETTINGS = frozenset({"key", "call_timeout", "tools", "answers"})
"""Settings of clients rather than of the server."""

SETTINGS_WITHOUT_OPTION = frozenset(
    {
        "llm_key",
        "webhook_secret",
        *(name for name in Settings.__struct_fields__ if name.startswith("memory_")),
    }
)
"""Settings without an option: secrets, which the process list would expose, and defaults of new stores.
"""

SERVER_OPTION_FIELDS = tuple(
    name for name in Settings.__struct_fields__ if name not in CLIENT_SETTINGS | SETTINGS_WITHOUT_OPTION
)
"""Settings of which ``kgserve serve`` has an option."""

OPTION_NAMES = {"data_dir": ("--data", "--data-dir"), "models_dir": ("--models", "--models-dir")}
"""Options that are not named after their setting."""


def setting_option_names(field: str) -> tuple[str, ...]:
    """Return the option names of a setting, the documented one first."""
    return OPTION_NAMES.get(field, (f"--{field.replace('_', '-')}",))


def setting_environment_variable(field: str) -> str:
    """Return the name of a setting's environment variable."""
    return ENVIRONMENT_PREFIX + field.upper()


def setting_description(field: msgspec.structs.FieldInfo) -> str:
    """Return the documentation of a setting."""
    return str(get_args(field.type)[1].description)


def add_setting_options(*fields: str, **more: Any) -> Callable[[Function], Function]:
    """Add an option for each of ``fields`` (default: every server setting).

    An option that was not given is passed as None.
    """
    chosen = [field for field in list_settings_fields() if field.name in (fields or SERVER_OPTION_FIELDS)]

    def add(function: Function) -> Function:
        for field in reversed(chosen):
            function = _option(field, more)(function)
        return function

    return add


def make_api_key_option(**more: Any) -> Callable[[Function], Function]:
    """Return the option ``--key`` of commands that call a server."""
    text = "API key; prefer the environment variable KGSERVE_KEY.  [default: the token of the data folder's server]"
    return click.option("--key", metavar="KEY", help=text, **more)


def save_click_option_value(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Store an option's value for `get_click_option_value`, so that commands need not pass it on. A click callback."""
    context.meta[f"kgserve.{parameter.name}"] = value
    return value


def get_click_option_value(option: str) -> Any:
    """Return the value of a stored option of the current command, or None."""
    context = click.get_current_context(silent=True)
    return context.meta.get(f"kgserve.{option}") if context else None


def require_data_folder(settings: Settings) -> None:
    """Raise ClickException when the data folder does not exist, most likely because its name was misspelt."""
    if not settings.data_dir.is_dir():
        raise click.ClickException(f"data folder {settings.data_dir} does not exist")


def _option(field: msgspec.structs.FieldInfo, more: Mapping[str, Any]) -> Callable[[Function], Function]:
    return click.option(
        *setting_option_names(field.name),
        field.name,
        type=_click_type(get_args(field.type)[0]),
        default=None,
        **_as_flag(field),
        help=f"{setting_description(field)}.  "
        f"[{setting_environment_variable(field.name)}; default: {_default_text(field.default)}]",
        **more,
    )


def _default_text(default: Any) -> str:
    if default is None or default == "":
        return "none"
    return str(default).lower() if isinstance(default, bool) else str(default)


def _as_flag(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    """Return arguments that make an option a flag if its setting is off by default."""
    return {"is_flag": False, "flag_value": "true"} if field.default is False else {}


def _click_type(kind: Any) -> click.ParamType[Any]:
    if get_origin(kind) is Literal:
        return click.Choice([str(choice) for choice in get_args(kind)])
    if kind is bool:
        return click.Choice(["true", "false"])
    return {int: click.INT, float: click.FLOAT, Path: click.Path()}.get(kind, click.STRING)


_CONTEXT_OPTION: dict[str, Any] = {"expose_value": False, "callback": save_click_option_value}


class ServerUnreachable(click.ClickException):
    """No server could be reached."""

    exit_code = 3


class RequestFailedOnServer(click.ClickException):
    """The server answered with an error."""


def add_server_options(function: Function) -> Function:
    """Add the options ``--server``, ``--data`` and ``--key``, which select the server for `connect`."""
    named = click.option(
        "--server",
        metavar="URL",
        **_CONTEXT_OPTION,
        help="Address of the server.  [default: the data folder's; without --data, the one at KGSERVE_PORT]",
    )
    return named(add_setting_options("data_dir", **_CONTEXT_OPTION)(make_api_key_option(**_CONTEXT_OPTION)(function)))


@contextmanager
def open_server_client(data_dir: Path | None = None, *, timeout: float | None = None) -> Generator[Client]:
    """Yield a client of ``data_dir``'s server, of the one that the options select, or of the configured port's.

    ``timeout`` is the time limit of an answer in seconds. Errors of the server are raised as RequestFailedOnServer.

    Raises ServerUnreachable when no server answers, or when no server has opened the named data folder.
    """
    from kgserve.client import Client

    server, folder = (
        (None, str(data_dir)) if data_dir else (get_click_option_value("server"), get_click_option_value("data_dir"))
    )
    _require_server(server, folder)
    with Client(server, data=folder, key=get_click_option_value("key"), timeout=timeout, retries=0) as client:
        try:
            yield client
        except KgserveError as error:
            raise translate_client_error_for_cli(error, get_connected_server_url(client)) from error


def iterate_server_stores(
    client: Client, *, prefix: str = "", state: StoreListState | None = None, kind: str | None = None
) -> Iterator[StoreSummary]:
    """Yield the stores of a server by name, page by page."""
    page = client.stores(prefix=prefix, state=state, kind=kind)
    yield from page.stores
    while page.next_after is not None:
        page = client.stores(after=page.next_after, prefix=prefix, state=state, kind=kind)
        yield from page.stores


def translate_client_error_for_cli(error: Exception, url: str) -> Exception:
    """Translate a client's error into a command's error. Errors raised on this side are returned unchanged."""
    from http.client import responses

    from kgserve import client

    answered = bool(getattr(error, "__notes__", ()))  # the note names the request that the server rejected
    match error:
        case client.Interrupted():
            return error
        case client.Unreachable():
            return ServerUnreachable(_describe_unreachable_server(error.url or url, url))
        case client.Unintelligible():
            return RequestFailedOnServer(
                f"the answer of {urlsplit(url).hostname} is not from kgserve: {error.__cause__}"
            )
        case client.Refused() if not answered:
            reason = responses.get(error.status, "")
            return RequestFailedOnServer(f"the server at {urlsplit(url).hostname} answered {error.status} {reason}")
        case InvalidInput() if answered:
            return RequestFailedOnServer(format_invalid_input(error))
        case _:
            return error


def _describe_unreachable_server(url: str, asked: str) -> str:
    if url == asked:
        return f"no server answers at {url}; start one with `kgserve serve`, or specify one with --server"
    return (
        f"the node at {url}, which serves the store, does not answer; another node takes its stores over within about "
        "20 seconds. Try again"
    )


def get_connected_server_url(client: Client) -> str:
    """Return the address of the client's server."""
    return client.http.target.address.url


def format_invalid_input(error: InvalidInput) -> str:
    """Return the message, followed by a line for each invalid field."""
    faults = [f"{fault.path}: {fault.message}" for fault in error.errors]
    return "\n".join([error.message, *(f"  {fault}" for fault in faults if faults != [error.message])])


def _require_server(server: str | None, data_dir: str | None) -> None:
    from kgserve.platform.server_discovery import find_running_server_of_data_folder

    if server is not None or data_dir is None:
        return
    folder = load_settings({"data_dir": data_dir}).data_dir
    if not folder.is_dir():
        raise ServerUnreachable(f"data folder {folder} does not exist")
    if find_running_server_of_data_folder(folder) is None:
        hint = f"start one with `kgserve serve --data {folder}`, or specify one with --server"
        raise ServerUnreachable(f"no server has opened {folder}; {hint}")
