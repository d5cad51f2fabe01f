"""A server without a cluster imports no module of the cluster, nor the client of its servers.

Nor does it import pydantic, which Litestar imports for unused types, and rich, which the command of httpx needs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cli.running import environment
from tests.project.reading import TOP

PROGRAM = """\
import sys
from pathlib import Path

from kgserve.platform import startup_imports
startup_imports.avoid_rich_and_numpy_threads_at_import()
startup_imports.import_httpx_without_its_command()
import httpx
import kgserve, kgserve.server.app, kgserve.client, kgserve.cli.root
from tests.server.http.serving import serving

with serving(Path(sys.argv[1])) as served, httpx.Client(base_url=served.url, timeout=60) as http:
    for path, body in (
        ("inject", {"nodes": [{"id": "a", "type": "hen", "content": "brown"}]}),
        ("search", {"query": "brown"}),
        ("cypher", {"query": "MATCH (n:Entity) RETURN n.id"}),
    ):
        http.post(f"/api/memory/s/{path}", json=body).raise_for_status()
kept = {"aiohttp", "nats", "nkeys", "pydantic", "pygments", "rich"}
print(sorted(each for each in sys.modules if each.split(".")[0] in kept or each.startswith("kgserve.cluster")))
"""


def test_one_machine_imports_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=TOP,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr
