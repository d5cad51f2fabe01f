"""The shipped configurations of nginx and Caddy in front of a real server."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from kgserve.cli.deploy import SHIPPED_FILES
from kgserve.platform.settings import Settings
from tests.cli.running import ServerProcessHandle, environment, kgserve, serving
from tests.platform.access.keys import bearer
from tests.programs import program
from tests.server.http.certificates import Files, certificate
from tests.server.http.serving import accepted
from tests.server.http.sockets import eventually
from tests.server.mcp.talking import Session, Stateless

NAME = "graph.example"
REQUIRED = "DEPLOY_TESTS"
PROXY_TIMEOUT_SECONDS = 30
HTTP2_OF_ITS_OWN = (1, 25, 1)
"""First version of nginx with `http2 on;`."""
NGINX = """\
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/kgserve.conf;
}}
"""


class ProxiedServer(msgspec.Struct, frozen=True):
    """A server behind a proxy that listens on a Unix socket, and its certificate authority."""

    http: httpx.Client
    socket: Path
    trusted: Path
    api: str
    """Prefix of store paths; each proxy has its own stores."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return certificate(tmp_path_factory.mktemp("tls"), NAME)


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcessHandle, str]]:
    """Yield a server started as the shipped files recommend, and its key."""
    data = tmp_path_factory.mktemp("behind") / "data"
    key = kgserve("keys", "create", "--data", data, "--role", "admin", "--name", "me").out.split()[0]
    options = ["--allowed-hosts", NAME, "--trusted-proxies", "127.0.0.1", "--indexes", "none"]
    with serving(data, *options) as running:
        yield running, key


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def proxied(
    request: pytest.FixtureRequest,
    files: Files,
    behind: tuple[ServerProcessHandle, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ProxiedServer]:
    """Yield the server behind each of the proxies."""
    running, key = behind
    begun = {"nginx": nginx, "caddy": caddy}[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    trusting = ssl.create_default_context(cafile=files.ca)
    with begun(folder, files, running.url) as path:
        through = httpx.HTTPTransport(verify=trusting, uds=str(path))
        headers = bearer(key)
        with httpx.Client(
            transport=through, base_url=f"https://{NAME}", headers=headers, timeout=PROXY_TIMEOUT_SECONDS
        ) as http:
            yield ProxiedServer(http, path, files.ca, f"/api/memory/{request.param}-")


def adapted(text: str, changes: dict[str, str]) -> str:
    """Return a shipped text with the user's and the test's changes; every replaced text must occur."""
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def nginx_files(folder: Path, files: Files, url: str) -> Path:
    """Write nginx's configuration. Return the path of its socket."""
    secure = folder / "secure"
    changes = {
        "server 127.0.0.1:8080;": f"server {httpx.URL(url).netloc.decode()};",
        "/etc/letsencrypt/live/graph.example/fullchain.pem": str(files.cert),
        "/etc/letsencrypt/live/graph.example/privkey.pem": str(files.key),
        "    listen [::]:443 ssl http2;\n": "",
        "    listen [::]:80;\n": "",
        "listen 443 ssl http2;": f"listen unix:{secure} ssl http2;",
        "listen 80;": f"listen unix:{folder / 'plain'};",
    }
    (folder / "kgserve.conf").write_text(adapted(SHIPPED_FILES["nginx"][0].text(), changes))
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder))
    return secure


def nginx_command(folder: Path) -> list[str]:
    return [program("nginx", REQUIRED, "nginx-light"), "-p", str(folder), "-c", str(folder / "nginx.conf")]


@contextmanager
def nginx(folder: Path, files: Files, url: str) -> Generator[Path]:
    command = nginx_command(folder)
    path = nginx_files(folder, files, url)
    with running(command, folder, path):
        yield path


def caddy_files(folder: Path, files: Files, url: str) -> Path:
    secure = folder / "secure"
    changes = {
        "grace_period 10s": f"grace_period 1s\n\tadmin off\n\tauto_https off\n\tstorage file_system {folder}",
        "\ngraph.example {": f"\nhttps://{NAME} {{\n\tbind unix/{secure}\n\ttls {files.cert} {files.key}",
        "127.0.0.1:8080": httpx.URL(url).netloc.decode(),
    }
    (folder / "Caddyfile").write_text(adapted(SHIPPED_FILES["caddy"][0].text(), changes))
    return secure


@contextmanager
def caddy(folder: Path, files: Files, url: str) -> Generator[Path]:
    command = [program("caddy", REQUIRED), "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
    path = caddy_files(folder, files, url)
    with running(command, folder, path):
        yield path


def accepts(address: Path | tuple[str, int]) -> bool:
    """Return whether connections to a Unix socket or a port are accepted."""
    is_path = isinstance(address, Path)
    with closing(socket.socket(socket.AF_UNIX if is_path else socket.AF_INET)) as asked:
        return asked.connect_ex(str(address) if is_path else address) == 0


@contextmanager
def running(command: list[str], folder: Path, address: Path | tuple[str, int]) -> Generator[None]:
    """Run a proxy for the duration of a block, once it accepts connections."""
    said = folder / "said"
    variables = environment({"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder)})
    with said.open("w") as errors, subprocess.Popen(command, stderr=errors, env=variables) as process:
        try:
            eventually(lambda: accepts(address) or process.poll() is not None)
            assert process.poll() is None, said.read_text()
            yield
        finally:
            process.terminate()
            process.wait(PROXY_TIMEOUT_SECONDS)


def test_the_shipped_configuration_of_nginx_is_valid(tmp_path: Path, files: Files) -> None:
    command = nginx_command(tmp_path)
    nginx_files(tmp_path, files, "http://127.0.0.1:8080")
    shipped = tmp_path / "kgserve.conf"
    told = said_of(*command, "-t")
    assert "syntax is ok" in told
    version = tuple(map(int, re.findall(r"\d+", said_of(command[0], "-v"))[:3]))
    if version < HTTP2_OF_ITS_OWN:
        assert "[warn]" not in told
        return
    shipped.write_text(shipped.read_text().replace(" ssl http2;", " ssl;\n    http2 on;"))
    assert "[warn]" not in said_of(*command, "-t")


def test_the_shipped_configuration_of_caddy_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "Caddyfile"
    path.write_text(SHIPPED_FILES["caddy"][0].text())
    told = said_of(program("caddy", REQUIRED), "validate", "--adapter", "caddyfile", "--config", path, home=tmp_path)
    assert "Valid configuration" in told
    assert '"level":"warn"' not in told
    assert "not formatted" not in told


def said_of(*command: str | Path, home: Path | None = None) -> str:
    variables = environment(
        {"HOME": str(home), "XDG_DATA_HOME": str(home), "XDG_CONFIG_HOME": str(home)} if home else {}
    )
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, check=False, timeout=PROXY_TIMEOUT_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_writes_can_be_read(proxied: ProxiedServer) -> None:
    done = accepted(proxied.http.post(f"{proxied.api}rest/inject", json=nodes(2, 10)))
    assert done["nodes_created"] == 2
    assert accepted(proxied.http.get(f"{proxied.api}rest/nodes/n1"))["node"]["id"] == "n1"
    answer = proxied.http.get("/api/memory", headers={"authorization": "Bearer wrong"})
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"


def nodes(count: int, length: int) -> dict[str, Any]:
    return {"nodes": [{"id": f"n{number}", "type": "t", "content": "x" * length} for number in range(count)]}


def test_limits_are_those_of_kgserve(proxied: ProxiedServer) -> None:
    accepted(proxied.http.post(f"{proxied.api}large/inject", json=nodes(3000, 1000)))
    settings = Settings()
    url = f"{proxied.api}large/nodes/" + "a" * (settings.max_url_kb * 1000 - 2000)
    assert problem(proxied.http.get(url)) in {400, 404}
    wide = {f"x-{number}": "a" * 12_000 for number in range(4)}
    assert proxied.http.get("/health", headers=wide).status_code == 200
    assert (
        problem(proxied.http.get("/health", headers=wide | {f"y-{number}": "a" * 12_000 for number in range(3)})) == 431
    )
    body = b'{"nodes": []' + b" " * (settings.max_body_mb << 20) + b"}"
    assert problem(proxied.http.post(f"{proxied.api}large/inject", content=body)) == 413


def problem(answer: httpx.Response) -> int:
    """Return the status of an error, which must come from kgserve."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.status_code


def test_a_long_import_is_streamed(proxied: ProxiedServer) -> None:
    line = msgspec.json.encode({"kind": "node", "id": "i", "type": "t", "content": "x" * 1000}) + b"\n"
    pieces = (line * 100 for _ in range(400))
    headers = {"content-type": "application/x-ndjson"}
    answer = proxied.http.post(f"{proxied.api}taken/import", content=pieces, headers=headers)
    assert answer.status_code == 200, answer.text


def test_events_are_not_delayed(proxied: ProxiedServer) -> None:
    accepted(proxied.http.post(f"{proxied.api}heard/inject", json=nodes(1, 1)))
    with proxied.http.stream("GET", f"{proxied.api}heard/events", timeout=PROXY_TIMEOUT_SECONDS) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        next(lines)
        accepted(proxied.http.post(f"{proxied.api}heard/inject", json=nodes(2, 1)))
        assert any("n1" in line for line in lines)


@pytest.mark.parametrize("speaking", [Stateless, Session])
def test_agents_call_tools(proxied: ProxiedServer, speaking: Callable[[httpx.Client], Stateless | Session]) -> None:
    found = speaking(proxied.http).call("list_stores", {})
    assert not found.get("isError"), found


def test_agents_are_notified_of_new_stores(proxied: ProxiedServer) -> None:
    request = Stateless(proxied.http).request("subscriptions/listen", {"notifications": {"resourcesListChanged": True}})
    with closing(proxied.http.send(request, stream=True)) as stream:
        assert stream.status_code == 200, stream.read()
        lines, read = stream.iter_lines(), list[str]()

        def arrives(word: str) -> bool:
            return any(word in line for line in lines if not read.append(line))

        assert arrives("acknowledged"), read
        accepted(proxied.http.post(f"{proxied.api}new/inject", json=nodes(1, 1)))
        assert arrives("list_changed"), read


def test_the_explorer_is_served_completely(proxied: ProxiedServer) -> None:
    page = proxied.http.get("/")
    assert page.status_code == 200
    parts = re.findall(r'(?:href|src)="(explorer/[^"]+)"', page.text)
    assert parts
    for part in parts:
        answer = proxied.http.get(f"/{part}", headers={"origin": f"https://{NAME}"})
        assert answer.status_code == 200
        assert answer.headers["content-type"].count("charset") == 1
    assert proxied.http.get("/", headers={"origin": "https://elsewhere.example"}).status_code == 403


def test_hsts_is_sent_only_over_tls(proxied: ProxiedServer) -> None:
    answer = proxied.http.get("/health")
    assert answer.headers.get_list("strict-transport-security") == ["max-age=31536000"]


def test_http_2_is_supported(proxied: ProxiedServer) -> None:
    curl = ["curl", "--silent", "--http2", "--unix-socket", str(proxied.socket), "--cacert", str(proxied.trusted)]
    told = said_of(
        *curl, "--output", "/dev/null", "--write-out", "%{http_version} %{http_code}", f"https://{NAME}/health"
    )
    assert told == "2 200"
