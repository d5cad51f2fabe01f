"""Demo in under a minute: import a real graph into a real server, traverse it, delete from it, and survive a kill.

The graph is the standard library of the running Python: modules, their docstrings, and their imports.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.server import BenchClient, ServerProcess

STORE = "stdlib"
LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "ensurepip", "turtledemo", "__pycache__"}


class Module(msgspec.Struct, frozen=True):
    """A module of the standard library: dotted name, documentation, length in lines, and imports."""

    name: str
    is_package: bool
    documentation: str
    lines: int
    imports: Counter[str]


def read_modules(library: Path) -> dict[str, Module]:
    """Return every module under a folder of Python source by dotted name."""
    files = (
        path for path in sorted(library.rglob("*.py")) if not LEFT_OUT.intersection(path.relative_to(library).parts)
    )
    modules = (_read(library, path) for path in files)
    return {module.name: module for module in modules if module.name.isascii()}


def graph_lines(modules: dict[str, Module]) -> Iterator[bytes]:
    """Yield the modules as nodes and then their imports as edges, in the exchange format."""
    encode = msgspec.json.Encoder().encode
    for module in modules.values():
        kind = "package" if module.is_package else "module"
        attributes = {"lines": module.lines}
        node = {
            "kind": "node",
            "id": module.name,
            "type": kind,
            "content": module.documentation,
            "attributes": attributes,
        }
        yield encode(node) + b"\n"
    for module in modules.values():
        for target, count in module.imports.items():
            if target in modules and target != module.name:
                edge = {"kind": "edge", "from": module.name, "to": target, "relation_type": "IMPORTS", "weight": count}
                yield encode(edge) + b"\n"


def _read(library: Path, path: Path) -> Module:
    parts = path.relative_to(library).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    name = ".".join(parts[:-1] if is_package else parts)
    text = path.read_text(encoding="utf-8", errors="replace")
    tree = ast.parse(text)
    package = name if is_package else name.rpartition(".")[0]
    imports = Counter(target for node in ast.walk(tree) for target in _imported(node, package))
    return Module(name, is_package, ast.get_docstring(tree) or "", text.count("\n"), imports)


def _imported(node: ast.AST, package: str) -> list[str]:
    """Return the modules that a statement imports; for `from a import b` only `a`, because `b` may not be a module."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), level=0):
            return [module]
        case ast.ImportFrom(module=module, level=level):
            parents = package.split(".")
            base = parents[: len(parents) - level + 1]
            return [".".join([*base, module] if module else base)]
        case _:
            return []


class DemoPrinter:
    """Printer of numbered steps and their results."""

    def __init__(self) -> None:
        self._chapter = 0

    def tell(self, title: str) -> None:
        """Print the title of the next step."""
        self._chapter += 1
        print(f"\n\033[1m{self._chapter}. {title}\033[0m" if self._coloured() else f"\n{self._chapter}. {title}")

    def say(self, text: str) -> None:
        """Print a line of the current step."""
        print(f"   {text}", flush=True)

    @staticmethod
    def _coloured() -> bool:
        return sys.stdout.isatty()


def load(story: DemoPrinter, client: BenchClient, modules: dict[str, Module]) -> None:
    """Import the graph twice; the second import changes nothing."""
    story.tell(f"The standard library as a graph: {len(modules):,} modules, read from {sysconfig.get_path('stdlib')}")
    for attempt in ("imported", "again"):
        begun = time.perf_counter()
        answer = client.upload(STORE, graph_lines(modules))
        took = (time.perf_counter() - begun) * 1000
        story.say(
            f"{attempt:<8}  nodes: {answer['nodes_created']:,} created, {answer['nodes_unchanged']:,} unchanged; "
            f"edges: {answer['edges_created']:,} created, {answer['edges_unchanged']:,} unchanged; {took:.0f} ms"
        )


def walk(client: BenchClient, start: str, **options: Any) -> dict[str, Any]:
    """Return the answer of one traversal along IMPORTS."""
    request = {"start_id": start, "relation_types": ["IMPORTS"], **options}
    return client.call("POST", f"/api/memory/{STORE}/traverse", request)


def show_needs(story: DemoPrinter, client: BenchClient, name: str) -> None:
    """Show a module's imports up to two hops."""
    story.tell(f"What does {name} need? (outgoing, 2 hops)")
    for node in walk(client, name, depth=2)["nodes"][:9]:
        story.say(f"{'   ' * node['depth']}{node['id']:<20} {_first_line(node['content'])}")


def show_reach(story: DemoPrinter, client: BenchClient, name: str) -> int:
    """Show how many modules depend on a module, by distance. Return their number."""
    begun = time.perf_counter()
    answer = walk(client, name, depth=10, direction="incoming", max_nodes=10_000)
    took = (time.perf_counter() - begun) * 1000
    by_depth = Counter(node["depth"] for node in answer["nodes"] if node["depth"])
    hops = ", ".join(f"{count:,} at {depth}" for depth, count in sorted(by_depth.items()))
    total = sum(by_depth.values())
    story.say(f"a change of {name} reaches {total:,} modules{f' ({hops} hops)' if hops else ''}; {took:.0f} ms")
    return total


def cut(story: DemoPrinter, client: BenchClient, name: str) -> None:
    """Delete a node, and show the effect on the graph."""
    story.tell(f"Which modules depend on {name}, and what happens after it is deleted?")
    show_reach(story, client, name)
    answer = client.call("DELETE", f"/api/memory/{STORE}/nodes/{name}")
    story.say(f"deleted {answer['deleted_id']} and {answer['edges_deleted']:,} edges")
    assert show_reach(story, client, name) == 0


def outlive(story: DemoPrinter, data: Path, before: dict[str, Any]) -> None:
    """Restart the server on the folder of the killed one, and compare."""
    begun = time.perf_counter()
    with ServerProcess(data) as server, server.client() as client:
        stats = client.call("GET", f"/api/memory/{STORE}/stats")
        took = (time.perf_counter() - begun) * 1000
        story.say(f"restarted after {took:,.0f} ms: {_counts(stats)}")
        for key in ("nodes", "edges", "sequence", "digest"):
            assert stats[key] == before[key], f"{key} was {before[key]} before the kill and is {stats[key]} after it"
        story.say("nothing was lost: same counts, same sequence, same digest")


def main() -> None:
    """Run the demo."""
    story = DemoPrinter()
    modules = read_modules(Path(sysconfig.get_path("stdlib")))
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        with ServerProcess(data) as server:
            print(f"kgserve serves {data} on http://127.0.0.1:{server.port}")
            with server.client() as client:
                load(story, client, modules)
                show_needs(story, client, "json")
                cut(story, client, "re")
                stats = client.call("GET", f"/api/memory/{STORE}/stats")
            story.tell("kill -9, and start again on the same folder")
            story.say(f"before: {_counts(stats)}")
            server.kill()
        outlive(story, data, stats)
    print("\nStopped. Run `make serve` to start your own server.")


def _counts(stats: dict[str, Any]) -> str:
    counts = f"{stats['nodes']:,} nodes, {stats['edges']:,} edges"
    return f"{counts}, sequence {stats['sequence']:,}, digest {stats['digest'][:8]}…"


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return textwrap.shorten(line, 70, placeholder="…")


if __name__ == "__main__":
    main()
