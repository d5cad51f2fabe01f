"""README.md and the documentation's pages: examples are run, commands exist, and the pages build into a site."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import httpx
import msgspec
import pytest

from kgserve.platform.settings import ENVIRONMENT_PREFIX, Settings
from scripts.pages import DOCS, FILE_MARK, expand_page
from tests.cli.running import SERVER_TIMEOUT_SECONDS, ServerProcessHandle, environment, serving
from tests.project.bolt_port import bolt_port
from tests.project.command_lines import all_options, command_lines, fault
from tests.project.pages import FENCE, MARKED, Block, blocks_of, pages
from tests.project.reading import TOP, assert_within, whole_values

RUN = {page: [block.text for block in blocks_of(page) if block.mark in {"run", "refused"}] for page in MARKED}
CLOSING = [page for page, texts in RUN.items() if any("kgserve keys create" in text for text in texts)]
SHARING = [page for page, texts in RUN.items() if texts and page not in CLOSING]
OF_OTHERS = {"--selector", "--env", "--no-deps", "--stop-timeout", "--read-only", "--tmpfs", "--install"}
VARIABLES = {ENVIRONMENT_PREFIX + field.name.upper() for field in msgspec.structs.fields(Settings)} | {
    f"KGSERVE_NATS_{name}" for name in ("PASSWORD", "ROUTES", "CERT", "CERT_KEY", "CA")
}
CURL = 'curl() { command curl --silent --show-error --fail-with-body "$@"; }\n'
CURL_REFUSED = 'curl() { ! command curl --silent --show-error --fail-with-body "$@"; }\n'


def name(page: Path) -> str:
    return page.relative_to(TOP).as_posix()


@pytest.mark.parametrize(
    "page", [page for page in pages() if page.parent == DOCS and not FILE_MARK.match(page.read_text())], ids=name
)
def test_a_page_begins_with_a_sentence_and_an_example(page: Path) -> None:
    title, sentence, block = page.read_text().split("\n\n", 2)
    assert title.startswith("# ")
    assert re.fullmatch(r"[^#|<].*[:.]", sentence, re.DOTALL)
    assert FENCE.match(block), "after the title there is one paragraph, and then a block of code"


@pytest.mark.parametrize("page", MARKED, ids=name)
def test_every_block_says_what_is_to_be_done_with_it(page: Path) -> None:
    found = list(blocks_of(page))
    assert page.read_text().count("```") == 2 * len(found), "a fence is not closed, or is indented"
    faults = [f"line {block.line}: {block.fault}" for block in found if block.fault]
    assert faults == []


@pytest.mark.timeout(600)  # a page has many commands, and the machine may have other things to do
@pytest.mark.parametrize("page", SHARING, ids=name)
def test_the_examples_run_in_order(
    page: Path, empty_server: ServerProcessHandle, commands: Path, tmp_path: Path
) -> None:
    run_in_order(page, empty_server, commands, tmp_path)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", CLOSING, ids=name)
def test_examples_that_make_keys_run_on_a_server_of_their_own(page: Path, commands: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        run_in_order(page, server, commands, tmp_path)


def run_in_order(page: Path, server: ServerProcessHandle, commands: Path, folder: Path) -> None:
    """Run a page's blocks against the server, in ``folder``, and compare what is shown with what they print."""
    printed = ""
    for block in blocks_of(page):
        match block.mark:
            case "run" | "refused":
                printed = output(block, server, commands, folder)
            case "answer":
                shown, given = whole_values(block.text), printed_values(printed)
                assert len(shown) == len(given), f"line {block.line}: {printed}"
                assert_within(shown, given)
            case "prints":
                assert set(block.text.splitlines()) <= set(printed.splitlines()), f"line {block.line}: {printed}"
            case _:
                pass


def output(block: Block, server: ServerProcessHandle, commands: Path, folder: Path) -> str:
    """Return the output of a block that runs against the server."""
    text = re.sub(r"(localhost|127\.0\.0\.1):8080", server.url.removeprefix("http://"), block.text)
    text = re.sub(r"(localhost|127\.0\.0\.1):7687", f"127.0.0.1:{bolt_port()}", text)
    path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), environment()["PATH"]])
    variables = environment({"PATH": path, "KGSERVE_DATA_DIR": str(server.data), "HOME": str(folder)})
    shell = ["bash", "-euo", "pipefail", "-c", (CURL_REFUSED if block.mark == "refused" else CURL) + text]
    done = subprocess.run(
        [str(commands / "python"), "-c", text] if block.language == "python" else shell,
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * SERVER_TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, f"line {block.line}: {done.stdout}\n{done.stderr}"
    return done.stdout


def printed_values(printed: str) -> list[object]:
    """The JSON values at the beginnings of what was printed."""
    decoder = json.JSONDecoder()
    values: list[object] = []
    while found := re.search(r"\[?\{", printed):
        value, end = decoder.raw_decode(printed, found.start())
        values.append(value)
        printed = printed[end:]
    return values


@pytest.mark.parametrize("page", MARKED, ids=name)
def test_commands_and_variables_exist(page: Path) -> None:
    text = page.read_text()
    named = [block.text for block in blocks_of(page) if block.language in {"bash", "sh", ""}]
    named += re.findall(r"`(kgserve [^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    faults = {" ".join(line): found for each in named for line in command_lines(each) if (found := fault(line))}
    assert faults == {}
    assert set(re.findall(r"\bKGSERVE_[A-Z_]*[A-Z]\b", text)) <= VARIABLES


@pytest.mark.parametrize("page", [*MARKED, TOP / "CHANGELOG.md", TOP / "DESIGN.md"], ids=name)
def test_options_that_are_named_in_sentences_exist(page: Path) -> None:
    sentences = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = {
        option for code in re.findall(r"`([^`\n]+)`", sentences) for option in re.findall(r"(?<!\S)--[a-z-]+", code)
    }
    assert named <= all_options() | OF_OTHERS


def test_every_metric_is_documented(server: ServerProcessHandle) -> None:
    families = set(re.findall(r"^# TYPE (kgserve_\w+)", httpx.get(f"{server.url}/metrics").text, re.MULTILINE))
    assert families
    named: set[str] = set()
    for cell in re.findall(r"^\| (`kgserve_.+?) \|", (DOCS / "observation.md").read_text(), re.MULTILINE):
        first, *rest = re.findall(r"`([^`]+)`", cell)
        stem = "kgserve_store" if first.startswith("kgserve_store_") else first
        if first.startswith(("kgserve_cluster_", "kgserve_replication_", "kgserve_follower_")):
            continue  # in tests/cluster/test_nodes.py and tests/stores/replication
        named |= {first} | {each if each.startswith("kgserve_") else stem + each.lstrip("…") for each in rest}
    assert named == {each for each in families if not each.startswith("kgserve_replication_")}


def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        command, cwd=TOP, env=environment({"NO_MKDOCS_2_WARNING": "1"}), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    built = list((tmp_path / "site").rglob("*.html"))
    assert {page.stem for page in pages()} <= {page.stem for page in built}
    indexed = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text())["docs"]
    titles = {each["location"]: each["title"] for each in indexed}
    assert "forget a person" in titles["forget-a-person.html"].lower()
    lower = {each["location"] for each in indexed if each.get("boost", 1) < 1}
    assert "changelog.html" in lower
    assert "forget-a-person.html" not in lower
    for page in built:
        loaded = re.findall(r"<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=\"?(https?:[^\"> ]+)", page.read_text())
        assert loaded == [], f"{page.name} loads {loaded}"


def test_the_site_lists_every_page_once() -> None:
    navigation = (TOP / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    assert sorted(re.findall(r"[\w-]+\.md", navigation)) == sorted(page.name for page in pages())


def test_a_group_of_the_navigation_has_at_most_seven_entries() -> None:
    navigation = (TOP / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    sizes: Counter[str] = Counter()
    groups: dict[int, str] = {}
    for indent, title in re.findall(r"^( +)- (.+?):(?: |$)", navigation, re.MULTILINE):
        groups[len(indent)] = title
        sizes[groups.get(len(indent) - 4, "")] += 1
    assert sizes.pop("Decision records") > 7, "a list by number, not a group"
    assert max(sizes.values()) <= 7, sizes


def test_links_lead_on_from_the_site() -> None:
    assert "](design.md#the-past)" in expand_page("[past](../DESIGN.md#the-past)")
    assert "](rest.md)" in expand_page("[all](rest.md)")
    assert "](../engines.md)" in expand_page("[engines](../engines.md)", DOCS / "adr")
    assert "](../design.md)" in expand_page("[design](../../DESIGN.md)", DOCS / "adr")
    assert "](adr/0020-history-in-sqlite.md)" in expand_page("<!-- file: DESIGN.md -->")
    assert "](design.md#benches)" in expand_page("<!-- file: bench/README.md -->")
    assert "/blob/main/kgserve/storage/rows/DESIGN.md)" in expand_page("[why](../kgserve/storage/rows/DESIGN.md)")
    taken = expand_page("<!-- run -->\n<!-- file: CONTRIBUTING.md -->")
    assert "](design.md)" in taken
    assert "](../" not in taken
    assert "<!-- run -->" not in taken
