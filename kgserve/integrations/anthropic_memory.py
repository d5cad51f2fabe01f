"""Anthropic's memory tool: its files are nodes of a store, so that they are searched, linked and keep their history."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError
from anthropic.types.beta import (
    BetaMemoryTool20250818CreateCommand,
    BetaMemoryTool20250818DeleteCommand,
    BetaMemoryTool20250818InsertCommand,
    BetaMemoryTool20250818RenameCommand,
    BetaMemoryTool20250818StrReplaceCommand,
    BetaMemoryTool20250818ViewCommand,
)
from typing_extensions import override

from kgserve.client import Store
from kgserve.errors import Conflict, InvalidInput, NotFound, TooLarge
from kgserve.graph.answers import Node

FILE_NODE_TYPE = "memory_file"
ROOT_PATH = "/memories"

_MAX_LISTED_DEPTH = 2
_LINE_NUMBER_WIDTH = 6
_MAX_LINES = 999_999
_SNIPPET_LINES = 2
_MAX_EDIT_ATTEMPTS = 10
_MAX_PATH_BYTES = 512
_FILES_PER_COMMIT = 1_000
_CREATE_QUERY = f"CREATE (:{FILE_NODE_TYPE} {{id: $path, content: $text}})"
_EDIT_QUERY = f"MATCH (f:{FILE_NODE_TYPE} {{id: $path}}) WHERE f.version = $version SET f.content = $text"
_RENAME_QUERY = f"""
UNWIND $moves AS move MATCH (old:{FILE_NODE_TYPE} {{id: move.old}})
CREATE (:{FILE_NODE_TYPE} {{id: move.new, content: old.content}}) DETACH DELETE old
"""


class AnthropicMemoryTool(BetaAbstractMemoryTool):
    """Memory tool whose files are nodes of ``store``; pass it to `tools` of Anthropic's tool runner.

    Commands are atomic, also while other agents edit the same files. `file_history` returns former texts.
    """

    def __init__(self, store: Store, **options: Any) -> None:
        super().__init__(**options)
        self.store = store

    @override
    def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        path = resolve_memory_path(command.path)
        if file := self._find_file(path):
            return _numbered_view(command.path, file.content, command.view_range)
        files = [*self._files_below(path)]
        if not files and path != ROOT_PATH:
            raise ToolError(f"The path {command.path} does not exist. Please provide a valid path.")
        return _directory_view(command.path, path, files)

    @override
    def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        path = resolve_memory_path(command.path)
        self._check_free(path, command.path, "File {} already exists")
        try:
            self.store.inject()  # creates the store
            self._run(_CREATE_QUERY, path=path, text=command.file_text)
        except Conflict:
            raise ToolError(f"File {command.path} already exists") from None
        return f"File created successfully at: {command.path}"

    @override
    def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        def replace(text: str) -> str:
            places = _line_numbers_of(text, command.old_str)
            if not places:
                raise ToolError(
                    f"No replacement was performed, old_str `{command.old_str}` did not appear verbatim in "
                    f"{command.path}."
                )
            if len(places) > 1:
                lines = ", ".join(map(str, places))
                raise ToolError(
                    f"No replacement was performed. Multiple occurrences of old_str `{command.old_str}` in lines: "
                    f"{lines}. Please ensure it is unique"
                )
            return text.replace(command.old_str, command.new_str, 1)

        before, after = self._edit(command.path, replace)
        place = before.index(command.old_str)
        line = before.count("\n", 0, place)
        lines = after.split("\n")
        first = max(0, line - _SNIPPET_LINES)
        snippet = _number_lines(lines[first : line + _SNIPPET_LINES + 1], first + 1)
        return (
            f"The memory file has been edited. Here is the snippet showing the change (with line numbers):\n{snippet}"
        )

    @override
    def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        def insert(text: str) -> str:
            lines = text.removesuffix("\n").split("\n") if text else []
            if not 0 <= command.insert_line <= len(lines):
                raise ToolError(
                    f"Invalid `insert_line` parameter: {command.insert_line}. "
                    f"It should be within the range [0, {len(lines)}]."
                )
            lines.insert(command.insert_line, command.insert_text.rstrip("\n"))
            return "\n".join(lines) + "\n"

        self._edit(command.path, insert)
        return f"The file {command.path} has been edited."

    @override
    def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        path = resolve_memory_path(command.path)
        if path == ROOT_PATH:
            raise ToolError(f"Cannot delete the {ROOT_PATH} directory itself")
        if not self._delete(self._paths_at(path)):
            raise ToolError(f"The path {command.path} does not exist")
        return f"Successfully deleted {command.path}"

    @override
    def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        old, new = resolve_memory_path(command.old_path), resolve_memory_path(command.new_path)
        if old == ROOT_PATH:
            raise ToolError(f"Cannot rename the {ROOT_PATH} directory itself")
        moved = self._paths_at(old)
        if not moved:
            raise ToolError(f"The path {command.old_path} does not exist")
        self._check_free(new, command.new_path, "The destination {} already exists")
        if new.startswith(f"{old}/"):
            raise ToolError(f"Cannot move {command.old_path} into itself")
        try:
            self._run(_RENAME_QUERY, moves=[{"old": each, "new": new + each.removeprefix(old)} for each in moved])
        except Conflict:
            raise ToolError(f"The destination {command.new_path} already exists") from None
        return f"Successfully renamed {command.old_path} to {command.new_path}"

    @override
    def clear_all_memory(self) -> str:
        self._delete(self._paths_at(ROOT_PATH))
        return "All memory cleared"

    def file_history(self, path: str, *, limit: int = 50) -> list[tuple[str, str]]:
        """Return the texts that a file had, newest first, each with the time since when it had it.

        The history of a deleted or renamed file stays at its path.
        """
        states = self.store.history(resolve_memory_path(path), limit=limit).states
        return [(state.recorded_from, state.node.content) for state in states]

    def _edit(self, given_path: str, change: Callable[[str], str]) -> tuple[str, str]:
        """Change the text of a file, again if another agent has changed it meanwhile; return it before and after."""
        path = resolve_memory_path(given_path)
        for _ in range(_MAX_EDIT_ATTEMPTS):
            file = self._find_file(path)
            if file is None:
                is_directory = path == ROOT_PATH or bool(self._paths_at(path))
                fault = "is not a file." if is_directory else "does not exist. Please provide a valid path."
                raise ToolError(f"The path {given_path} {fault}")
            text = change(file.content)
            if text == file.content or self._run(_EDIT_QUERY, path=path, version=file.version, text=text):
                return file.content, text
        raise ToolError(f"The file {given_path} is being changed by others; view it and try again.")

    def _run(self, query: str, **params: Any) -> int:
        """Run a Cypher write and return the number of nodes that it updated."""
        try:
            changes = self.store.cypher(query, params, mode="write").changes
        except (InvalidInput, TooLarge) as error:
            raise ToolError(f"The memory was not changed: {error}") from error
        return changes.nodes_updated if changes else 0

    def _find_file(self, path: str) -> Node | None:
        try:
            found = self.store.get_nodes([path], valid_at="now").nodes
        except NotFound:
            return None
        return next((node for node in found if node.type == FILE_NODE_TYPE), None)

    def _files_below(self, path: str) -> Iterator[Node]:
        try:
            with self.store.nodes(type=FILE_NODE_TYPE) as nodes:
                yield from (node for node in nodes if node.id.startswith(f"{path}/"))
        except NotFound:
            return

    def _paths_at(self, path: str) -> list[str]:
        """Return the path of a file, or of all files in a directory."""
        return [path] if self._find_file(path) else [node.id for node in self._files_below(path)]

    def _check_free(self, path: str, given_path: str, message: str) -> None:
        if path == ROOT_PATH or self._paths_at(path):
            raise ToolError(message.format(given_path))
        parent = posixpath.dirname(path)
        while parent != ROOT_PATH:
            if self._find_file(parent):
                raise ToolError(f"{parent} is a file, not a directory")
            parent = posixpath.dirname(parent)

    def _delete(self, paths: Sequence[str]) -> int:
        starts = range(0, len(paths), _FILES_PER_COMMIT)
        pages = (paths[start : start + _FILES_PER_COMMIT] for start in starts)
        return sum(self.store.delete_nodes(ids=page, types=[FILE_NODE_TYPE], valid_at="any").count for page in pages)


class AnthropicAsyncMemoryTool(BetaAsyncAbstractMemoryTool):
    """Asynchronous memory tool whose files are nodes of ``store``."""

    def __init__(self, store: Store, **options: Any) -> None:
        super().__init__(**options)
        self.files = AnthropicMemoryTool(store)
        """The synchronous tool that carries the commands out, each in a thread."""

    @override
    async def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        return await asyncio.to_thread(self.files.view, command)

    @override
    async def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        return await asyncio.to_thread(self.files.create, command)

    @override
    async def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        return await asyncio.to_thread(self.files.str_replace, command)

    @override
    async def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        return await asyncio.to_thread(self.files.insert, command)

    @override
    async def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        return await asyncio.to_thread(self.files.delete, command)

    @override
    async def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        return await asyncio.to_thread(self.files.rename, command)

    @override
    async def clear_all_memory(self) -> str:
        return await asyncio.to_thread(self.files.clear_all_memory)


def resolve_memory_path(path: str) -> str:
    """Return a path without `.`, `..` and doubled slashes. Raises ToolError outside of `/memories`."""
    if path != ROOT_PATH and not path.startswith(f"{ROOT_PATH}/"):
        raise ToolError(f"Path must start with {ROOT_PATH}, got: {path}")
    resolved = posixpath.normpath(path)
    if resolved != ROOT_PATH and not resolved.startswith(f"{ROOT_PATH}/"):
        raise ToolError(f"Path {path} would escape {ROOT_PATH} directory")
    if len(resolved.encode()) > _MAX_PATH_BYTES:
        raise ToolError(f"Path {path[:80]}… is longer than {_MAX_PATH_BYTES} bytes")
    return resolved


def _numbered_view(given_path: str, text: str, view_range: Sequence[int] | None) -> str:
    lines = text.split("\n")
    if len(lines) > _MAX_LINES:
        raise ToolError(f"File {given_path} exceeds maximum line limit of {_MAX_LINES:,} lines.")
    first, last = view_range if view_range and len(view_range) == 2 else (1, -1)  # noqa: PLR2004 - first and last line
    start = max(1, first) - 1
    shown = lines[start : len(lines) if last == -1 else last]
    return f"Here's the content of {given_path} with line numbers:\n{_number_lines(shown, start + 1)}"


def _directory_view(given_path: str, path: str, files: Sequence[Node]) -> str:
    sizes: dict[str, int] = {"": 0}
    for file in files:
        names = file.id.removeprefix(f"{path}/").split("/")
        if any(name.startswith(".") for name in names):
            continue
        size = len(file.content.encode())
        sizes[""] += size
        for depth in range(1, min(len(names), _MAX_LISTED_DEPTH) + 1):
            shown = "/".join(names[:depth]) + ("/" if depth < len(names) else "")
            sizes[shown] = sizes.get(shown, 0) + size
    depth = f"up to {_MAX_LISTED_DEPTH} levels deep"
    head = f"Here're the files and directories {depth} in {given_path}, excluding hidden items:"
    lines = [f"{_format_size(size)}\t{given_path}{'/' if name else ''}{name}" for name, size in sorted(sizes.items())]
    return "\n".join([head, *lines])


def _number_lines(lines: Sequence[str], first: int) -> str:
    return "\n".join(f"{number:>{_LINE_NUMBER_WIDTH}}\t{line}" for number, line in enumerate(lines, first))


def _line_numbers_of(text: str, part: str) -> list[int]:
    """Return the line numbers at which a text contains ``part``, at most 100."""
    found: list[int] = []
    place = text.find(part)
    while place >= 0 and len(found) < 100:  # noqa: PLR2004 - enough to see that it is not unique
        found.append(text.count("\n", 0, place) + 1)
        place = text.find(part, place + 1)
    return found


def _format_size(size: float) -> str:
    for unit in "BKM":
        if size < 1024:  # noqa: PLR2004 - bytes of a KiB
            return f"{size:.1f}".removesuffix(".0") + unit
        size /= 1024
    return f"{size:.1f}".removesuffix(".0") + "G"
