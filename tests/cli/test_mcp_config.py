"""`kgserve mcp`: its options, its help, and the output of `config`."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import click
import msgspec
import pytest

from kgserve import __version__
from kgserve.cli.editor_config_files import locate_editor_config
from kgserve.cli.editor_mcp_configs import EDITORS
from kgserve.cli.mcp import _is_store_name, default_store_for_folder
from kgserve.cli.mcp_stdio.command import BRIDGE_OPTIONS
from kgserve.cli.root import kgserve_root_command as group
from tests.cli.running import CommandResult, environment, kgserve, kgserve_process
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


FIRST_FILES = {
    "claude-desktop": "home/.config/Claude/claude_desktop_config.json",
    "claude-code": "shop/.mcp.json",
    "cursor": "shop/.cursor/mcp.json",
    "vscode": "shop/.vscode/mcp.json",
    "codex": "home/.codex/config.toml",
    "zed": "home/.config/zed/settings.json",
    "windsurf": "home/.codeium/windsurf/mcp_config.json",
    "gemini": "shop/.gemini/settings.json",
    "jetbrains": "home/.junie/mcp/mcp.json",
    "generic": "shop/servers.json",
}
USED_FILES = {
    False: '{\n\t// mine\n\t"theme": "dark", /* why */\n\t"ROOT": {\n\t\t"other": {"command": "a"}, // b\n\t},\n}\n',
    True: 'model = "x" # mine\n\n[ROOT.other]\ncommand = "a" # b\n\n# of profiles\n[profiles.y]\nz = [\n  1,\n]\n',
}


def installed(home: Path, *arguments: object, code: int = 0) -> CommandResult:
    given = ("--file", "servers.json") if "generic" in arguments else ()
    done = kgserve("mcp", "install", "--client", *arguments, *given, variables={"HOME": str(home)})
    assert done.code == code, done.err
    return done


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("home", "shop"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "shop")
    return tmp_path / "home"


@pytest.mark.parametrize("client", EDITORS)
def test_install_and_uninstall_leave_the_rest_of_the_file(client: str, home: Path) -> None:
    editor, file = EDITORS[client], home.parent / FIRST_FILES[client]
    assert "+" in installed(home, client, "--dry-run").out
    assert not file.parent.exists() or not file.exists()
    installed(home, client, "--yes")
    assert editor.root in file.read_text()
    assert file.stat().st_mode & 0o077 == 0o044
    used = USED_FILES[editor.toml].replace("ROOT", editor.root)
    file.write_text(used)
    file.chmod(0o640)
    done = installed(home, client, "--yes", "--key", "kgs_secret", "--store", "own")
    assert "kgs_secret" not in done.out
    assert ("version control" in done.err) == editor.of_project
    assert all(line in file.read_text() for line in used.replace("}, // b", "}").splitlines() if "other" not in line)
    assert {"kgs_secret", "own"} <= set(re.findall(r"[\w-]+", file.read_text()))
    assert file.stat().st_mode & 0o777 == 0o640
    (backup,) = file.parent.glob(f"{file.name}.*.bak")
    assert (backup.read_text(), backup.stat().st_mode & 0o777) == (used, 0o600)
    assert "up to date" in installed(home, client, "--yes", "--key", "kgs_secret", "--store", "own").out
    installed(home, client, "--yes", "--uninstall")
    assert file.read_text() == used
    assert "nothing to do" in installed(home, client, "--yes", "--uninstall").out


@pytest.mark.parametrize(
    ("client", "text", "words"),
    [
        ("cursor", '{"mcpServers": {', "not valid JSON"),
        ("cursor", "[]", "must contain a JSON object"),
        ("cursor", '{"mcpServers": []}', "'mcpServers' must be an object"),
        ("codex", 'mcp_servers = {kgserve = {command = "x"}}\n', "edit the file by hand"),
        ("codex", "[mcp_servers", "not valid TOML"),
    ],
)
def test_install_leaves_a_file_that_it_cannot_edit(client: str, text: str, words: str, home: Path) -> None:
    file = home.parent / FIRST_FILES[client]
    file.parent.mkdir()
    file.write_text(text)
    assert words in installed(home, client, "--yes", code=2).err
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    assert file.read_text() == text


def test_install_updates_its_own_entry_and_keeps_what_users_added(home: Path) -> None:
    file = home.parent / FIRST_FILES["cursor"]
    file.parent.mkdir()
    entry = '{\r\n  "mcpServers": {"kgserve": {"url": "http://x", /* off */ "disabled": true, "env": {"A": "b"}}}\r\n}'
    (linked := home / "dotfiles.json").write_text(entry, newline="")
    file.symlink_to(linked)
    installed(home, "cursor", "--yes", "--key", "kgs_k")
    text = file.read_bytes().decode()
    assert file.is_symlink()
    assert "/* off */" in text
    assert text.count("\n") == text.count("\r\n")
    found = msgspec.json.decode(text.replace("/* off */", ""), type=dict[str, Any])["mcpServers"]["kgserve"]
    assert found["env"] == {"A": "b", "KGSERVE_KEY": "kgs_k"}
    assert found.keys() == {"disabled", "env", "command", "args"}


def test_install_scopes(home: Path) -> None:
    installed(home, "cursor", "--scope", "user", "--yes")
    assert '"memory"' in (home / ".cursor/mcp.json").read_text()
    installed(home, "codex", "--scope", "project", "--yes")
    assert '"shop"' in Path(".codex/config.toml").read_text()
    assert "--scope user" in installed(home, "windsurf", "--scope", "project", code=2).err
    assert "--yes" in installed(home, "cursor", code=2).err
    done = kgserve("mcp", "install", "--client", "generic", "--yes")
    assert (done.code, "--file" in done.err) == (2, True)
    assert locate_editor_config(EDITORS["claude-desktop"], system="darwin").parent.name == "Claude"


def test_links_contain_the_entry_and_no_key() -> None:
    shown = kgserve("mcp", "link", "--client", "cursor", "--store", "s").out.strip()
    query = dict(parse_qsl(urlsplit(shown).query, strict_parsing=True))
    assert query["name"] == "kgserve"
    entry = msgspec.json.decode(base64.b64decode(query["config"]), type=dict[str, Any])
    assert entry["args"][-4:] == ["--store", "s", *LISTED]
    link = kgserve("mcp", "link", "--client", "vscode", "--store", "s").out.strip()
    assert link.startswith("vscode:mcp/install?")
    found = msgspec.json.decode(unquote(link.partition("?")[2]), type=dict[str, Any])
    assert found == {"name": "kgserve", "type": "stdio", **entry}
    assert kgserve("mcp", "link", "--client", "cursor", "--key", "kgs_k").code == 2


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
