"""The files of the page: what is sent, how long it may be kept, what it may do, and that it is what it should be."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from pathlib import Path

import httpx
import pytest

from kgserve.platform.text.languages import LANGUAGES
from tests.explorer.looking import AXE
from tests.project.reading import TOP
from tests.server.http.serving import RunningServer, refusal

PAGE = TOP / "kgserve" / "server" / "http" / "static" / "explorer"
VENDORED = PAGE / "vendor"
OWN = sorted(path for path in PAGE.rglob("*") if path.suffix in {".js", ".css", ".html"} and path.parent != VENDORED)
FORBIDDEN = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|eval\(|new Function|style=")
IMPORTED = re.compile(r"^(?:import|export)\b[^\"]*?\bfrom \"(\.[^\"]+)\";$", re.MULTILINE)
FIRST_PICTURE = 75_000
WHEEL = 220_000


def packed(path: Path) -> int:
    return len(zlib.compress(path.read_bytes(), 6))


def modules(start: Path) -> set[Path]:
    """A module, and all that it imports before it runs."""
    found: set[Path] = set()
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += [(path.parent / name).resolve() for name in IMPORTED.findall(path.read_text())]
    return found


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.relative_to(PAGE).as_posix())
def test_only_text_becomes_text(path: Path) -> None:
    assert not FORBIDDEN.findall(path.read_text())


def test_what_is_vendored_is_what_its_manifest_says() -> None:
    manifest = json.loads((VENDORED / "manifest.json").read_text())
    assert set(manifest) == {path.name for path in VENDORED.iterdir()} - {"manifest.json"}
    for name, digest in manifest.items():
        assert hashlib.sha256((VENDORED / name).read_bytes()).hexdigest() == digest, f"{name}: run `make vendor`"
        if hashed := re.search(r"\.([0-9a-f]{10})\.js$", name):
            assert digest.startswith(hashed[1])
    licences = (VENDORED / "LICENSES.txt").read_text()
    locked = json.loads((TOP / "scripts" / "vendor" / "package-lock.json").read_text())["packages"]
    for name in ("preact", "htm", "@preact/signals", "d3-force", "lucide"):
        assert f"{name} {locked[f'node_modules/{name}']['version']} (" in licences
    assert AXE.with_name("axe-LICENSE").exists()


def test_swagger_ui_is_what_its_manifest_says() -> None:
    folder = PAGE.parent / "swagger"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest) == {path.name for path in folder.iterdir()} - {"manifest.json"}
    for name, digest in manifest.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, f"{name}: run `make vendor`"
    locked = json.loads((TOP / "scripts" / "vendor" / "package-lock.json").read_text())["packages"]
    version = locked["node_modules/swagger-ui-dist"]["version"]
    assert (folder / "LICENSES.txt").read_text().startswith(f"swagger-ui-dist {version} (Apache-2.0)")


def test_sizes_are_within_their_budgets() -> None:
    first = modules(PAGE / "main.js") | {PAGE / "index.html", PAGE / "explorer.css"}
    assert sum(packed(path) for path in first) <= FIRST_PICTURE
    assert sum(path.stat().st_size for path in first) <= 220_000
    assert sum(packed(path) for path in PAGE.rglob("*") if path.is_file()) <= WHEEL


def test_the_page_names_all_modules_that_it_begins_with() -> None:
    page = (PAGE / "index.html").read_text()
    named = set(re.findall(r'<link rel="modulepreload" href="explorer/([^"]+)">', page))
    assert named == {path.relative_to(PAGE).as_posix() for path in modules(PAGE / "main.js")} - {"main.js"}


def test_a_browser_asks_whether_files_have_changed_and_keeps_those_with_a_hash(http: httpx.Client) -> None:
    page = http.get("/").raise_for_status()
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    policy = page.headers["content-security-policy"]
    assert "'unsafe" not in policy
    assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy.split("; "))
    again = http.get("/", headers={"if-none-match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert http.get("/", headers={"if-none-match": '"other"'}).status_code == 200
    hashed = next(path.name for path in VENDORED.glob("preact.*.js"))
    kept = http.get(f"/explorer/vendor/{hashed}").raise_for_status()
    assert kept.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert kept.content == (VENDORED / hashed).read_bytes()


@pytest.mark.parametrize("path", ["explorer", "explorer/", "explorer/other.js", "explorer/..%2fdocs.js"])
def test_nothing_else_is_served(http: httpx.Client, path: str) -> None:
    refusal(http.get(f"/{path}"), 404)


def test_the_page_needs_no_key_and_holds_nothing(keyed: RunningServer) -> None:
    for path in ("/", "/explorer/main.js", "/explorer/explorer.css"):
        assert httpx.get(f"{keyed.url}{path}").status_code == 200
    refusal(httpx.get(f"{keyed.url}/api/memory"), 401)
    refusal(httpx.get(f"{keyed.url}/explorers"), 401)


def test_the_settings_offer_every_language() -> None:
    source = (PAGE / "panel" / "settings.js").read_text()
    [listed] = re.findall(r"^const LANGUAGES = \[(.*)\];$", source, re.MULTILINE)
    assert re.findall(r'"(\w+)"', listed) == ["auto", *LANGUAGES]
