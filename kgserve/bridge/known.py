"""What every server of this version answers to the questions that editors begin with, for when one has to be started.

The editor has its list of tools while the server is on its way. known_answers.jsonl is written by `make docs`.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

from kgserve.bridge.message import INITIALIZE, Message

FILE = Path(__file__).with_name("known_answers.jsonl")
"""First a line that says which of the others holds the result for which version and method."""

METHODS = (INITIALIZE, "server/discover", "ping", "tools/list", "prompts/list", "resources/templates/list")
"""What is asked before anything is wanted of a store, and does not depend on one."""

TOOLS = "tools/list"
TOOLSETS = ("", "memory")
"""The wishes whose lists of tools are known: none, and what `kgserve mcp config` writes."""

BEGINNINGS = frozenset({INITIALIZE, "server/discover"})


def answer_to(message: Message, version: str | None, tools: str = "") -> bytes | None:
    """The answer to a request, if it is known. ``version`` is the protocol's, as the editor speaks it.

    ``tools`` is what it wishes to see listed.
    """
    if message.method not in METHODS or message.params.get("cursor") is not None or tools not in TOOLSETS:
        return None
    with FILE.open("rb") as lines:
        contents: dict[str, dict[str, int]] = json.loads(next(lines))
        number = contents.get(version or "", {}).get(named(message.method, tools))
        if number is None:
            return None
        # As it stands: decoded, the list of tools would take a megabyte.
        result = next(islice(lines, number, None)).rstrip()
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (json.dumps(message.id).encode(), result)


def named(method: str, tools: str) -> str:
    """What the answer to a method is called: only the list of tools differs by wish."""
    return f"{method} {tools}" if method == TOOLS and tools else method


def version_of(message: Message) -> str | None:
    """The protocol's version that a first message names."""
    if message.method != INITIALIZE:
        return message.version
    asked = message.params.get("protocolVersion")
    return asked if isinstance(asked, str) else None
