"""`kgserve mcp`: its options, its help, and the output of `config`."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from kgserve import __version__
from kgserve.cli.mcp import EDITORS, _is_store_name, default_store_for_folder
from kgserve.cli.mcp_stdio.command import BRIDGE_OPTIONS
from kgserve.cli.root import kgserve_root_command as group
from tests.cli.running import environment, kgserve, kgserve_process
from tests.project.reading import TOP

LISTED = ["--tools", "memory"]
MCP = group.commands["mcp"]


def printed(*arguments: object, **variables: str) -> dict[str, Any]:
    done = kgserve("mcp", "config", *arguments, variables=variables)
    assert done.code == 0, done.err
    return msgspec.json.decode(done.out, type=dict[str, Any]) if done.out.startswith("{") else tomllib.loads(done.out)


def test_both_parsers_have_the_same_options() -> None:
    assert isinstance(MCP, click.Group)
    shown = {option: each.name for each in MCP.params for option in each.opts}
    config = {option: each.name for each in MCP.commands["config"].params for option in each.opts}
    assert config.pop("--client") == "client"
    assert BRIDGE_OPTIONS == shown == config


def test_it_is_in_the_help() -> None:
    assert "mcp" in kgserve("--help").out
    for flag in ("-h", "--help"):
        shown = kgserve("mcp", flag)
        assert shown.code == 0
        assert {"--data", "--url", "--store", "config"} <= set(shown.out.replace(",", " ").split())


def test_wrong_usage_is_the_same_with_both_parsers() -> None:
    for arguments in (
        ("--nope",),
        ("--url",),
        ("--url", "nonsense"),
        ("--store", "no name"),
        ("--data", "x", "config"),
    ):
        refused = kgserve_process("mcp", *arguments)
        assert (refused.code, refused.out) == (2, ""), arguments
    for arguments in ((), ("--client", "emacs"), ("--client", "generic", "--url", "nonsense")):
        assert kgserve("mcp", "config", *arguments).code == 2


ROOTS = {"vscode": "servers", "codex": "mcp_servers", "zed": "context_servers"}


@pytest.mark.parametrize("client", EDITORS)
def test_each_client_reads_its_own_root(client: str, tmp_path: Path) -> None:
    document = printed("--client", client, "--data", tmp_path, "--store", "project", "--key", "kgs_k")
    root = ROOTS.get(client, "mcpServers")
    assert list(document) == [root]
    entry = document[root]["kgserve"]
    assert entry["env"] == {"KGSERVE_KEY": "kgs_k"}
    assert entry.get("type") == ("stdio" if client in {"vscode", "claude-code"} else None)
    assert entry["args"][-7:] == ["mcp", "--data", str(tmp_path), "--store", "project", *LISTED]
    assert Path(entry["command"]).is_absolute()


def test_the_printed_configuration_starts_the_bridge(tmp_path: Path) -> None:
    entry = printed("--client", "generic", "--data", tmp_path / "data")["mcpServers"]["kgserve"]
    done = subprocess.run(
        [entry["command"], *entry["args"]],
        input="{\n",
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=environment(),
    )
    assert msgspec.json.decode(done.stdout, type=dict[str, Any])["error"]["code"] == -32700
    assert list(tmp_path.iterdir()) == [], "no request needed a server"


def test_the_folder_is_always_absolute(tmp_path: Path) -> None:
    for arguments, variables in [(("--data", "here"), {}), ((), {"KGSERVE_DATA_DIR": "here"}), ((), {})]:
        args = printed("--client", "cursor", *arguments, **variables)["mcpServers"]["kgserve"]["args"]
        assert args[-6:-4] == ["--data", str(Path("here" if arguments or variables else "kgserve-data").absolute())]


def test_a_url_replaces_the_folder() -> None:
    args = printed("--client", "cursor", "--url", "http://127.0.0.1:8080")["mcpServers"]["kgserve"]["args"]
    assert args[-7:-4] == ["mcp", "--url", "http://127.0.0.1:8080"]


@pytest.mark.parametrize(
    ("folder", "store"),
    [
        ("shop", "shop"),
        ("My Project.2", "my-project-2"),
        ("__init__", "init"),
        ("größe", "gr-e"),
        ("日本", "memory"),
        ("con", "memory"),
        ("a" * 80, "a" * 64),
    ],
)
def test_the_store_is_named_after_the_project(folder: str, store: str) -> None:
    assert default_store_for_folder(EDITORS["cursor"], Path("/work", folder), _is_store_name) == store
    assert default_store_for_folder(EDITORS["windsurf"], Path("/work", folder), _is_store_name) == "memory"


def test_a_store_is_always_included(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Shop One").mkdir()
    for folder, store in ((tmp_path / "Shop One", "shop-one"), (Path.home(), "memory"), (Path("/"), "memory")):
        monkeypatch.chdir(folder)
        args = printed("--client", "claude-code")["mcpServers"]["kgserve"]["args"]
        assert args[-4:] == ["--store", store, *LISTED]
    assert printed("--client", "codex")["mcp_servers"]["kgserve"]["args"][-4:] == ["--store", "memory", *LISTED]


def test_the_destination_is_printed_on_standard_error(tmp_path: Path) -> None:
    done = kgserve("mcp", "config", "--client", "claude-code", "--data", tmp_path / "my data")
    assert EDITORS["claude-code"].place in done.err
    assert "claude mcp add kgserve -- " in done.err
    assert 'retain {"content"' in done.err
    graph = kgserve("mcp", "config", "--client", "cursor", "--tools", "graph")
    assert '"graph"' in graph.out
    assert "retain" not in graph.err
    assert f"'{tmp_path}/my data'" in done.err
    keyed = kgserve("mcp", "config", "--client", "codex", "--key", "kgs_secret")
    assert "codex mcp add kgserve --env KGSERVE_KEY=… -- " in keyed.err
    assert "kgs_secret" not in keyed.err
    shown = kgserve("mcp", "config", "--help").out
    assert all(editor.place.partition(" ")[0] in shown for editor in EDITORS.values())


@pytest.mark.parametrize(
    ("system", "arguments", "words"),
    [
        ("win32", "['mcp']", {"Windows", "WSL"}),
        ("win32", "['serve']", {"Windows", "WSL"}),
        ("darwin", "['serve']", {"macOS", "container", "--url"}),
        ("freebsd14", "['serve']", {"Linux", "freebsd14"}),
    ],
)
def test_unsupported_systems_get_a_message(system: str, arguments: str, words: set[str], tmp_path: Path) -> None:
    program = (
        f"import sys; sys.platform = {system!r}; sys.argv[1:] = {arguments}\nimport kgserve.__main__ as m; m.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment()
    )
    assert done.returncode == 1
    assert (done.stdout, done.stderr.count("\n")) == ("", 1), done.stderr
    assert words <= set(done.stderr.replace(";", " ").replace(",", " ").replace("`", " ").split())


def test_the_registry_manifest_matches_the_package() -> None:
    manifest = msgspec.json.decode((TOP / "server.json").read_bytes(), type=dict[str, Any])
    assert manifest["$schema"] == "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
    assert len(manifest["description"]) <= 100
    (package,) = manifest["packages"]
    assert manifest["version"] == package["version"] == __version__
    assert (package["registryType"], package["identifier"]) == ("pypi", "kgserve")
    assert package["transport"] == {"type": "stdio"}
    command, *options = package["packageArguments"]
    assert command["value"] == "mcp"
    assert {option["name"] for option in options} <= BRIDGE_OPTIONS.keys()
