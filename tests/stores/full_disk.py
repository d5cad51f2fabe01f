"""Server whose disk another program fills: `python -m tests.stores.full_disk FOLDER`; the folder is a small disk."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import httpx

from kgserve.storage.disk_space import RESERVE_BYTES, RESERVE_FILE
from tests.cli.running import serving
from tests.stores.writing import until
from tests.timeouts import REQUEST_SECONDS

COUNT = {"query": "MATCH (n:Entity) RETURN count(n)"}
ALL_TIME = {"before": "2100-01-01T00:00:00Z"}


def expect_status(http: httpx.Client, status: int, method: str, path: str, body: object = None) -> httpx.Response:
    """Send a request and return the answer, after checking its status."""
    answer = http.request(method, path, json=body)
    assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
    return answer


def fill_disk(path: Path) -> None:
    """Write zeros to a file until the disk is full."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)


def main(folder: Path) -> None:
    """Write, fill the disk, and delete."""
    data = folder / "data"
    data.mkdir()
    reserve = data / RESERVE_FILE
    reserve.write_bytes(b"\0" * 10)  # as after a kill
    with (
        serving(data, "--indexes", "none") as server,
        httpx.Client(base_url=server.url, timeout=REQUEST_SECONDS) as http,
    ):
        nodes = [{"id": f"n{number}", "type": "t", "content": "words " * 20} for number in range(500)]
        for store in ("kept", "dropped"):
            expect_status(http, 200, "POST", f"/api/memory/{store}/inject", {"nodes": nodes})
        expect_status(http, 200, "POST", "/api/memory/kept/cypher", COUNT)
        until(lambda: reserve.stat().st_size == RESERVE_BYTES)
        fill_disk(folder / "other")
        refused = expect_status(http, 507, "POST", "/api/memory/kept/inject", {"nodes": [{"id": "x", "type": "t"}]})
        assert "MiB of disk space are left" in refused.json()["detail"]
        expect_status(http, 200, "DELETE", "/api/memory/kept/nodes/n1")
        expect_status(http, 404, "GET", "/api/memory/kept/nodes/n1")
        assert expect_status(http, 200, "GET", "/api/memory/kept/stats").json()["nodes"] == len(nodes) - 1
        assert expect_status(http, 200, "POST", "/api/memory/kept/cypher", COUNT).json()["rows"] == [[len(nodes) - 1]]
        assert expect_status(http, 200, "POST", "/api/memory/kept/history/prune", ALL_TIME).json()["pruned"] == 1
        expect_status(http, 507, "POST", "/api/memory/kept/inject", {"nodes": [{"id": "x", "type": "t"}]})
        expect_status(http, 200, "DELETE", "/api/memory/dropped?confirm=dropped")
        (folder / "other").unlink()
        expect_status(http, 200, "POST", "/api/memory/kept/inject", {"nodes": [{"id": "x", "type": "t"}]})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
