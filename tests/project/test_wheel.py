"""The wheel alone, installed elsewhere: it serves, answers, and tells a type checker what it is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from email import message_from_string
from email.message import Message
from pathlib import Path

import httpx
import msgspec
import pytest

from kgserve import __version__
from kgserve.cli.deploy import SHIPPED_FILES
from tests.cli.running import environment, serving
from tests.project.reading import TOP

GRAPH = {
    "nodes": [
        {"id": "wheel", "type": "part", "content": "A round thing that turns"},
        {"id": "car", "type": "whole", "content": "It drives"},
    ],
    "edges": [{"from": "car", "to": "wheel", "relation_type": "HAS"}],
}
TYPED = """\
from kgserve.client import Client

created: int = Client().store("team").inject([{"id": "a", "type": "note"}]).nodes_created
wrong: str = Client().store("team").inject([{"id": "a", "type": "note"}]).nodes_created
"""
SLOW = pytest.mark.timeout(300)
"""Building and installing take seconds, and longer on a busy machine."""


class WheelEnvironment(msgspec.Struct, frozen=True):
    """A virtual environment that has kgserve from its wheel, and the folder that it is in."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def kgserve(self) -> Path:
        return self.folder / "venv" / "bin" / "kgserve"


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and source distribution."""
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", folder, cwd=TOP)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob(f"kgserve-{__version__}-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> WheelEnvironment:
    """The wheel, without the extra hnswlib, in an environment of its own, which has this one's packages besides."""
    place = WheelEnvironment(tmp_path_factory.mktemp("elsewhere"))
    run(sys.executable, "-m", "venv", "--without-pip", place.folder / "venv", cwd=place.folder)
    packages = place.folder / "venv" / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (packages / "hnswlib.py").write_text("raise ImportError\n")
    pip = [sys.executable, "-m", "pip", "--python", str(place.python), "install", "--quiet"]
    run(*pip, "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check", wheel, cwd=place.folder)
    return place


@pytest.fixture(scope="module")
def served(installed: WheelEnvironment) -> Iterator[httpx.Client]:
    """A client of a server of the installed command."""
    options = ["--embedding-provider", "hashing"]
    with (
        serving(installed.folder / "data", *options, program=[str(installed.kgserve)]) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


def metadata(wheel: Path) -> tuple[Message, str]:
    """The fields of the wheel's metadata, and the description below them."""
    text = zipfile.ZipFile(wheel).read(f"kgserve-{__version__}.dist-info/METADATA").decode()
    fields, _, description = text.partition("\n\n")
    return message_from_string(fields), description


@SLOW
def test_the_wheel_holds_schema_pages_and_types_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("schema", "deploy", "kgserve/server/http/static"):
        place = f"kgserve/{folder.removeprefix('kgserve/')}"
        expected = {f"{place}/{path.relative_to(TOP / folder)}" for path in (TOP / folder).rglob("*") if path.is_file()}
        assert expected
        assert expected <= names
    modules = {path.relative_to(TOP).as_posix() for path in (TOP / "kgserve").rglob("*.py")}
    lists = {f"kgserve/platform/text/{name}.txt" for name in ("english", "opposites", "synonyms")}
    assert {"kgserve/py.typed", *lists, *modules} <= names
    assert {name.partition("/")[0] for name in names} == {"kgserve", f"kgserve-{__version__}.dist-info"}
    assert not any("__pycache__" in name or name.endswith(".md") for name in names)


@SLOW
def test_the_source_distribution_holds_what_the_readmes_commands_need(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        "Makefile",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "constraints.txt",
        "scripts/preflight.sh",
        "mkdocs.yml",
    }
    wanted |= {
        "Dockerfile",
        "deploy/compose/compose.yaml",
        "server.json",
        "docs/index.md",
        "deploy/systemd/kgserve.service",
    }
    assert wanted <= names
    for folder in ("kgserve", "schema", "tests", "bench", "scripts"):
        assert any(name.startswith(f"{folder}/") for name in names), folder
    assert not any(name.startswith(("kgserve-data/", "build/", ".venv/")) for name in names)


@SLOW
def test_the_metadata_is_complete(wheel: Path) -> None:
    found, description = metadata(wheel)
    for field in ("Name", "Version", "Summary", "Keywords", "Requires-Python"):
        assert found[field], field
    assert found["License-Expression"] == "Apache-2.0"
    assert found["License-File"] == "LICENSE"
    assert found["Description-Content-Type"] == "text/markdown"
    assert description == (TOP / "README.md").read_text()
    assert "Typing :: Typed" in found.get_all("Classifier", [])
    # Extras install more than kgserve uses.
    assert not [each for each in found.get_all("Requires-Dist", []) if "[" in each and "extra ==" not in each]
    urls = dict(each.split(", ") for each in found.get_all("Project-URL", []))
    assert {"Source", "Documentation", "Changelog", "Issues"} <= set(urls)


@SLOW
def test_what_is_imported_is_the_wheel(installed: WheelEnvironment) -> None:
    where = run(installed.python, "-c", "import kgserve; print(kgserve.__file__)", cwd=installed.folder).strip()
    assert Path(where).is_relative_to(installed.folder)
    found = run(installed.python, "-c", "import sys; print(sys.path)", cwd=installed.folder)
    assert repr(str(TOP)) not in found
    program = "from kgserve.projections.vector import vector_index; print(vector_index.hnswlib)"
    assert run(installed.python, "-c", program, cwd=installed.folder) == "None\n"


@SLOW
def test_the_command_says_its_version(installed: WheelEnvironment) -> None:
    assert run(installed.kgserve, "--version", cwd=installed.folder) == f"kgserve {__version__}\n"


@SLOW
def test_it_prints_what_other_programs_need(installed: WheelEnvironment) -> None:
    program = (
        "import json; from kgserve.cli.deploy import SHIPPED_FILES; "
        "print(json.dumps({each.path: each.text() for files in SHIPPED_FILES.values() for each in files}))"
    )
    printed = json.loads(run(installed.python, "-c", program, cwd=installed.folder))
    assert printed == {each.path: (TOP / each.path).read_text() for files in SHIPPED_FILES.values() for each in files}


@SLOW
def test_it_takes_a_graph_and_answers(served: httpx.Client) -> None:
    store = "/api/memory/fresh"
    done = served.post(f"{store}/inject", json=GRAPH).raise_for_status().json()
    assert (done["nodes_created"], done["edges_created"]) == (2, 1)
    walked = served.post(f"{store}/traverse", json={"start_id": "car"}).raise_for_status().json()
    assert [node["id"] for node in walked["nodes"]] == ["car", "wheel"]
    question = {"query": "round things", "mode": "keyword", "at_least": done["sequence"]}
    found = served.post(f"{store}/search", json=question).raise_for_status().json()
    assert [hit["node"]["id"] for hit in found["hits"]] == ["wheel"]
    asked = served.post(f"{store}/cypher", json={"query": "MATCH (n:Entity) RETURN count(n)"}).raise_for_status().json()
    assert asked["rows"] == [[2]]


@SLOW
def test_its_pages_are_inside(served: httpx.Client) -> None:
    page = served.get("/docs").raise_for_status()
    assert page.headers["content-type"].startswith("text/html")
    for link in ("docs.css", "docs.js"):
        assert link in page.text
    page = served.get("/").raise_for_status()
    for link in [*re.findall(r'(?:href|src)="(explorer/[^"]+)"', page.text), "explorer/entry/sample.json"]:
        served.get(link).raise_for_status()
    assert served.get("/openapi.json").raise_for_status().json()["info"]["version"] == __version__


@SLOW
def test_it_speaks_mcp(served: httpx.Client) -> None:
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "wheel", "version": "1"},
        },
    }
    accept = {"Accept": "application/json, text/event-stream"}
    answer = served.post("/mcp", json=hello, headers=accept).raise_for_status()
    line = next(line for line in answer.text.splitlines() if line.startswith(("{", "data: {")))
    assert json.loads(line.removeprefix("data: "))["result"]["serverInfo"]["name"] == "kgserve"


@SLOW
def test_a_type_checker_sees_its_types(installed: WheelEnvironment) -> None:
    script = installed.folder / "typed.py"
    script.write_text(TYPED)
    options = ["--pythonpath", str(installed.python), "--level", "error", "--outputjson"]
    command = [sys.executable, "-m", "basedpyright", *options, script.name]
    done = subprocess.run(command, cwd=installed.folder, env=environment(), capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert [(each["range"]["start"]["line"], each["rule"]) for each in found] == [(3, "reportAssignmentType")], found
