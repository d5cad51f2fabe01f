"""Kill of a server while it posts: nothing is omitted; at worst, batches are posted twice."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import httpx

from tests.cli.running import ServerProcessHandle
from tests.cli.running import serving as serving_process
from tests.fuzzing import is_thorough
from tests.projections.connectors.receiver import SECRET, Handler, Json, receiving, takes
from tests.server.http.serving import PATIENCE, accepted


def test_no_change_is_omitted_after_kills_at_any_time(tmp_path: Path) -> None:
    chance, rounds = random.Random(5), 30 if is_thorough() else 4
    killed: list[ServerProcessHandle] = []
    expected: dict[str, str] = {}

    def kill(handler: Handler, batch: Json) -> None:
        if not any(str(change.get("content")).startswith(f"{turn}, ") for change in batch["changes"]):
            # Content of the previous round again; the new injection may not be committed yet.
            receiver.script.appendleft(kill)
            takes(handler, batch)
            return
        if chance.random() < 0.7:
            takes(handler, batch)
            time.sleep(chance.random() * 0.02)
        os.kill(killed[-1].process.pid, signal.SIGKILL)

    with receiving() as receiver:
        for turn in range(rounds):
            with (
                serving_process(tmp_path / "data", variables=receiver.variables) as server,
                httpx.Client(base_url=server.url, timeout=PATIENCE) as http,
            ):
                killed.append(server)
                if turn:  # the initial fill must succeed once
                    end = time.monotonic() + PATIENCE
                    while receiver.texts("s") != expected:
                        assert time.monotonic() < end
                        time.sleep(0.02)
                receiver.script.append(kill)
                nodes = [{"id": f"n{chance.randrange(9)}", "type": "t", "content": f"{turn}, {at}"} for at in range(3)]
                with suppress(
                    httpx.RemoteProtocolError, httpx.ReadError
                ):  # posted content is committed, but the response may not have been sent
                    accepted(http.post("/api/memory/s/inject", json={"nodes": nodes}))
                expected |= {str(node["id"]): str(node["content"]) for node in nodes}
                server.process.wait(PATIENCE)
            receiver.script.clear()
        # No request names the store: the server opens it automatically.
        with serving_process(tmp_path / "data", variables=receiver.variables) as server:
            end = time.monotonic() + PATIENCE
            while receiver.texts("s") != expected:
                assert time.monotonic() < end
                time.sleep(0.02)
            assert SECRET.encode() not in Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        assert sum(each["anew"] for each in receiver.batches) <= rounds + 1
