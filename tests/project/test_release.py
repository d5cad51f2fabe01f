"""Releases: workflows and templates are valid, and all places name the same version."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kgserve import __version__
from scripts.release_notes import changelog_versions, extract_release_notes
from tests.cli.running import kgserve
from tests.project.reading import TOP

GITHUB = TOP / ".github"
FILES_BY_SCHEMA = {
    "vendor.github-workflows": sorted((GITHUB / "workflows").glob("*.yml")),
    "custom.github-workflows-require-timeout": [GITHUB / "workflows/ci.yml", GITHUB / "workflows/release.yml"],
    "vendor.dependabot": [GITHUB / "dependabot.yml"],
    "vendor.github-issue-forms": [GITHUB / "ISSUE_TEMPLATE/bug.yml", GITHUB / "ISSUE_TEMPLATE/feature.yml"],
    "vendor.github-issue-config": [GITHUB / "ISSUE_TEMPLATE/config.yml"],
    "vendor.citation-file-format": [TOP / "CITATION.cff"],
}


def workflow(name: str) -> dict[str, Any]:
    import yaml

    return yaml.safe_load((GITHUB / f"workflows/{name}.yml").read_text())


@pytest.mark.parametrize("schema", FILES_BY_SCHEMA)
def test_files_of_the_repository_host_match_their_schemas(schema: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, "--force-filetype", "yaml"]
    done = subprocess.run([*command, *FILES_BY_SCHEMA[schema]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_actionlint_finds_nothing_wrong_in_workflows() -> None:
    command = [Path(sys.executable).with_name("actionlint"), "-no-color", "-shellcheck=", "-pyflakes="]
    files = FILES_BY_SCHEMA["vendor.github-workflows"]
    done = subprocess.run([*command, *files], cwd=TOP, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("name", ["ci", "release"])
def test_workflows_have_few_permissions_and_pinned_actions(name: str) -> None:
    found = workflow(name)
    assert found["permissions"] == {"contents": "read"}
    jobs = found["jobs"]
    used = {step["uses"] for job in jobs.values() for step in job.get("steps", ()) if "uses" in step}
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+|[0-9a-f]{40})", each) for each in used), used
    assert {need for job in jobs.values() for need in [job.get("needs", [])] if isinstance(need, str)} <= jobs.keys()
    commands = [step["run"] for job in jobs.values() for step in job.get("steps", ()) if "run" in step]
    assert not [each for each in commands if "${{" in each], "expressions in scripts can inject commands"
    targets = {word for each in commands for word in re.findall(r"\bmake ([a-z]+)", each)} - {"nodejs"}
    known = set(re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text(), re.MULTILINE))
    assert targets <= known
    tests = {word for each in commands for word in re.findall(r"tests/\S+", each)}
    assert all((TOP / each).exists() for each in tests)


def test_the_tested_versions_of_python_are_the_declared_ones() -> None:
    declared = re.findall(r"Python :: (3\.\d+)\"", (TOP / "pyproject.toml").read_text())
    assert workflow("ci")["jobs"]["test"]["strategy"]["matrix"]["python"] == declared


def test_all_places_name_the_same_version() -> None:
    assert kgserve("--version").out.split()[-1] == __version__
    assert f"\nversion: {__version__}\n" in (TOP / "CITATION.cff").read_text()
    assert msgspec.json.decode((TOP / "server.json").read_bytes())["version"] == __version__
    wheels = {
        found
        for page in (TOP / "docs").rglob("*.md")
        for found in re.findall(r"kgserve-([\d.]+)-py3", page.read_text())
    }
    assert wheels <= {__version__}
    versions = changelog_versions((TOP / "CHANGELOG.md").read_text())
    released = [version for version, date in versions if date]
    assert __version__ in {released[0], "" if versions[0][0] != "Unreleased" else __version__}
    assert [version for version, date in versions if not date] in ([], ["Unreleased"])


def test_release_notes_are_the_section_of_the_tagged_version() -> None:
    first = f"## [{__version__}] - 2026-12-01\n\n### Added\n\n- x\n\n"
    text = f"# Changelog\n\n## [Unreleased]\n\n{first}## [0.0.1] - 2026-01-01\n\nold\n"
    assert extract_release_notes(text, f"v{__version__}") == "### Added\n\n- x"
    for refused, tag, words in (
        (text, "v9.9.9", "does not name version"),
        (text.replace("[Unreleased]\n", "[Unreleased]\n\n- y\n"), f"v{__version__}", "under Unreleased"),
        (text.replace(" - 2026-12-01", ""), f"v{__version__}", "has no section"),
        (f"## [{__version__}] - 2026-12-01\n", f"v{__version__}", "is empty"),
    ):
        with pytest.raises(ValueError, match=words):
            extract_release_notes(refused, tag)
