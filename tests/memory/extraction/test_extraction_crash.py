"""A server killed between the model's answer, the write, and the ledger extracts each text once."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import httpx

from tests.cli.running import ServerProcessHandle
from tests.cli.running import serving as serving_process
from tests.fuzzing import is_thorough
from tests.memory.extraction.chat_service import KEY, MODEL, Handler, Json, Service, running, says
from tests.memory.extraction.memory_client import marks, memories, retain, settled
from tests.server.http.serving import PATIENCE


def variables(service: Service) -> dict[str, str]:
    names = {"LLM_URL": service.url, "LLM_MODEL": MODEL, "LLM_KEY": KEY, "MEMORY_EXTRACT": "true"}
    return {f"KGSERVE_{name}": value for name, value in names.items()}


def texts_of(count: int) -> list[str]:
    return [f"The text of number {at} says {at * 7}." for at in range(count)]


def fact_of(handler: Handler, question: Json) -> None:
    """Return the same single fact for a text."""
    text = question["messages"][1]["content"].partition("The text of number ")[2].partition(" ")[0]
    says(facts=[{"content": f"Fact {text} holds."}])(handler, question)


def test_text_is_extracted_once_after_kill(tmp_path: Path) -> None:
    chance, rounds = random.Random(7), 40 if is_thorough() else 5
    given = texts_of(rounds + 1)
    with running() as service:
        service.usually = fact_of
        killed = list[ServerProcessHandle]()

        def kill(handler: Handler, question: Json) -> None:
            if chance.random() < 0.8:
                fact_of(handler, question)
                time.sleep(chance.random() * 0.04)
            os.kill(killed[-1].process.pid, signal.SIGKILL)

        for text in given[:-1]:
            with serving_process(tmp_path / "data", variables=variables(service)) as server:
                killed.append(server)
                service.script.append(kill)
                with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
                    retain(http, text)
                    server.process.wait(PATIENCE)
                service.script.clear()
        with (
            serving_process(tmp_path / "data", variables=variables(service)) as server,
            httpx.Client(base_url=server.url, timeout=PATIENCE) as http,
        ):
            retain(http, given[-1])
            found = settled(http)
            assert found["set_aside_count"] == 0
            there = memories(http)
            facts = [content for content in there if content.startswith("Fact")]
            assert sorted(facts) == sorted(f"Fact {at} holds." for at in range(rounds + 1))
            assert there.keys() == {*given, *facts}
            assert len(marks(http)) == rounds + 1
            assert {each["version"] for each in there.values()} == {1}
            assert KEY.encode() not in Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        for path in (path for path in tmp_path.rglob("*") if path.is_file()):
            assert KEY.encode() not in path.read_bytes(), path
