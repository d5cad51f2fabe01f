"""Entry point of ``kgserve mcp``."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import NoReturn
from urllib.parse import urlsplit

from kgserve.cli.exit_codes import EXIT_INTERRUPTED, EXIT_WRONG_USAGE
from kgserve.cli.mcp_stdio.connection import McpBridgeServerFinder
from kgserve.cli.mcp_stdio.forwarder import McpMessageForwarder, ThreadSafeLineWriter, log_to_stderr_for_editor
from kgserve.platform.server_discovery import (
    build_editor_preference_headers,
    parse_positive_seconds,
    resolve_client_api_key,
    resolve_data_folder,
    resolve_mcp_tool_call_timeout,
)

LAST_ANSWERS_TIMEOUT_SECONDS = 5.0
"""Seconds to wait for outstanding answers after the editor has closed standard input."""


_PARENT_POLL_SECONDS = 1.0


class _TerminationSignal(BaseException):
    """The editor has exited, or asked the bridge to stop."""


BRIDGE_OPTIONS: Mapping[str, str] = {
    "--data": "data_dir",
    "--data-dir": "data_dir",
    "--url": "url",
    "--store": "store",
    "--key": "key",
    "--call-timeout": "call_timeout",
    "--tools": "tools",
    "--answers": "answers",
}
"""Command line options and the parameters of `run` that they set; click declares the same options for the help.

They are parsed here because importing argparse costs memory in every bridge.
"""


class _UsageError(Exception):
    """Wrong command line; the message is a full sentence."""


def run_mcp_command(arguments: Sequence[str]) -> int:
    """Run ``kgserve mcp`` and return its exit code."""
    try:
        given = parse_mcp_bridge_options(arguments)
    except _UsageError as error:
        log_to_stderr_for_editor(str(error))
        return EXIT_WRONG_USAGE
    return run_mcp_bridge(**dict.fromkeys(BRIDGE_OPTIONS.values()) | given)


def parse_mcp_bridge_options(arguments: Sequence[str]) -> dict[str, str]:
    """Parse a command line into parameters of `run`. The last occurrence of a repeated option wins."""
    rest, given = [*arguments], dict[str, str]()
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if option not in BRIDGE_OPTIONS:
            raise _UsageError(f"unknown option or command {option!r}; see `kgserve mcp --help`")
        if not equals and not rest:
            raise _UsageError(f"{option} needs a value")
        given[BRIDGE_OPTIONS[option]] = value if equals else rest.pop(0)
    return given


def run_mcp_bridge(
    data_dir: str | None,
    url: str | None,
    store: str | None,
    key: str | None,
    call_timeout: float | str | None,
    tools: str | None,
    answers: str | None,
) -> int:
    """Forward messages until the editor closes standard input, exits, or stops the bridge. Return the exit code.

    ``tools`` and ``answers`` are passed on as headers: the tools to list, and the format of answers.
    """
    asked = build_editor_preference_headers(store, tools, answers)
    for fault in [*find_mcp_bridge_option_errors(url, store, key, call_timeout), *_invalid_headers(asked)]:
        log_to_stderr_for_editor(fault)
        return EXIT_WRONG_USAGE
    if sys.stdin.isatty():
        log_to_stderr_for_editor(
            "this command speaks MCP over standard input and output; run `kgserve mcp config` to configure an editor"
        )
    signal.signal(signal.SIGTERM, _on_signal)
    output = ThreadSafeLineWriter(_protocol_output(), _interrupt)
    servers = McpBridgeServerFinder(
        resolve_data_folder(data_dir), url, resolve_client_api_key(key), log_to_stderr_for_editor
    )
    forwarder = McpMessageForwarder(servers, output, asked, resolve_mcp_tool_call_timeout(call_timeout))
    threading.Thread(target=_watch_parent, args=(os.getppid(),), name="kgserve-parent", daemon=True).start()
    try:
        for line in sys.stdin.buffer:
            if line.strip():
                forwarder.forward(line.strip())
        forwarder.close(LAST_ANSWERS_TIMEOUT_SECONDS)
    except _TerminationSignal:
        forwarder.close(0)
    except KeyboardInterrupt:
        forwarder.close(0)
        return EXIT_INTERRUPTED
    return 0


def find_mcp_bridge_option_errors(
    url: str | None, store: str | None, key: str | None = None, call_timeout: float | str | None = None
) -> list[str]:
    """Return the faults of the options, each as a message."""
    found: list[str] = []
    if url is not None and (urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname):
        found.append(f"--url {url!r} is not a server address. Example: http://127.0.0.1:8080")
    if store is not None and not (store.isascii() and re.fullmatch(r"[\w-]+(\.[\w-]+)*", store)):
        found.append(
            f"--store {store!r} is not a store name. Allowed: letters, digits, - and _, and single dots inside"
        )
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        found.append("--key is not an API key. Keys start with kgs_ and are created with `kgserve keys create`")
    if call_timeout is not None and parse_positive_seconds(call_timeout) is None:
        found.append(f"--call-timeout {call_timeout} is not a duration. Give seconds above 0")
    return found


def _invalid_headers(asked: Mapping[str, str]) -> list[str]:
    """Return a fault for each option whose value is not allowed in an HTTP header."""
    wrong = (name for name, value in asked.items() if not (value.isascii() and value.isprintable()))
    return [f"{name.removeprefix('Kgserve-').lower()}: only printable ASCII is allowed" for name in wrong]


def _protocol_output() -> int:
    """Return a private descriptor of standard output, and redirect all other prints to standard error."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    os.set_blocking(descriptor, True)
    return descriptor


def _watch_parent(parent: int) -> None:
    """Stop when the editor has died while another process keeps its end of standard input open."""
    while os.getppid() == parent:
        threading.Event().wait(_PARENT_POLL_SECONDS)
    _interrupt()


def _interrupt() -> None:
    """Interrupt the main thread."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _on_signal(_number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _TerminationSignal
