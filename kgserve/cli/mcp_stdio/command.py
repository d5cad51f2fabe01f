"""``kgserve mcp``: the bridge as a program."""

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
from kgserve.cli.mcp_stdio.connection import Servers
from kgserve.cli.mcp_stdio.forwarder import Forwarder, Output, say
from kgserve.platform.server_discovery import chosen_key, chosen_timeout, data_folder, seconds_of, wishes

LAST_ANSWERS_TIMEOUT_SECONDS = 5.0
"""Seconds in which answers may still come after the editor has closed standard input."""


_PARENT_POLL_SECONDS = 1.0


class _Leave(BaseException):
    """The editor is gone, or wants the bridge to go."""


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
"""The options, each with a value, and what they are called in `run`; click declares the same ones for the help.

They are read here: argparse would take a tenth of the bridge's memory.
"""


class _Misused(Exception):
    """The command line is wrong, for a reason that is a sentence."""


def main(arguments: Sequence[str]) -> int:
    """Run ``kgserve mcp`` with these arguments; the exit code."""
    try:
        given = read(arguments)
    except _Misused as error:
        say(str(error))
        return EXIT_WRONG_USAGE
    return run(**dict.fromkeys(BRIDGE_OPTIONS.values()) | given)


def read(arguments: Sequence[str]) -> dict[str, str]:
    """The values of a command line's options by their names in `run`; of one that comes twice the last."""
    rest, given = [*arguments], dict[str, str]()
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if option not in BRIDGE_OPTIONS:
            raise _Misused(f"there is no option or command {option!r}; `kgserve mcp --help` shows what there is")
        if not equals and not rest:
            raise _Misused(f"{option} needs a value")
        given[BRIDGE_OPTIONS[option]] = value if equals else rest.pop(0)
    return given


def run(
    data_dir: str | None,
    url: str | None,
    store: str | None,
    key: str | None,
    call_timeout: float | str | None,
    tools: str | None,
    answers: str | None,
) -> int:
    """Carry messages until the editor closes standard input, ends, or asks the bridge to. Returns the exit code.

    ``tools`` and ``answers`` are what the server shall list, and how it shall answer; the server knows what there is.
    """
    asked = wishes(store, tools, answers)
    for fault in [*faults(url, store, key, call_timeout), *_unsayable(asked)]:
        say(fault)
        return EXIT_WRONG_USAGE
    if sys.stdin.isatty():
        say("this speaks MCP with an editor over standard input and output; `kgserve mcp config` sets an editor up")
    signal.signal(signal.SIGTERM, _on_signal)
    output = Output(_protocol_output(), _interrupt)
    servers = Servers(data_folder(data_dir), url, chosen_key(key), say)
    forwarder = Forwarder(servers, output, asked, chosen_timeout(call_timeout))
    threading.Thread(target=_watch_parent, args=(os.getppid(),), name="kgserve-parent", daemon=True).start()
    try:
        for line in sys.stdin.buffer:
            if line.strip():
                forwarder.forward(line.strip())
        forwarder.close(LAST_ANSWERS_TIMEOUT_SECONDS)
    except _Leave:
        forwarder.close(0)
    except KeyboardInterrupt:
        forwarder.close(0)
        return EXIT_INTERRUPTED
    return 0


def faults(
    url: str | None, store: str | None, key: str | None = None, call_timeout: float | str | None = None
) -> list[str]:
    """What is wrong with the options, as sentences."""
    found: list[str] = []
    if url is not None and (urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname):
        found.append(f"--url {url!r} is no address of a server; it looks like http://127.0.0.1:8080")
    if store is not None and not (store.isascii() and re.fullmatch(r"[\w-]+(\.[\w-]+)*", store)):
        found.append(
            f"--store {store!r} is no name of a store: letters, digits, - and _ are allowed, and single dots inside"
        )
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        found.append("--key is no key; one looks like kgs_…, as `kgserve keys create` prints it")
    if call_timeout is not None and seconds_of(call_timeout) is None:
        found.append(f"--call-timeout {call_timeout} is no time; seconds above 0 are wanted")
    return found


def _unsayable(asked: Mapping[str, str]) -> list[str]:
    """Of what goes into headers that which cannot."""
    wrong = (name for name, value in asked.items() if not (value.isascii() and value.isprintable()))
    return [f"{name.removeprefix('Kgserve-').lower()}: only printable ASCII is allowed" for name in wrong]


def _protocol_output() -> int:
    """A descriptor of our own for standard output; whatever else prints there, prints to standard error."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    os.set_blocking(descriptor, True)
    return descriptor


def _watch_parent(parent: int) -> None:
    """Leave when the editor has died but something else keeps its end of standard input open."""
    while os.getppid() == parent:
        threading.Event().wait(_PARENT_POLL_SECONDS)
    _interrupt()


def _interrupt() -> None:
    """Wake the main thread, wherever it waits."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _on_signal(_number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Leave
