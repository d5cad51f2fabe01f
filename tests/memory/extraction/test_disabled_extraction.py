"""Extraction is absent without a language model."""

from __future__ import annotations

from pathlib import Path

import pytest

import kgserve
from kgserve.admin.composition_root import create_fact_extraction_worker
from kgserve.errors import InvalidInput
from kgserve.platform.settings import Settings
from tests.cli.running import kgserve as command
from tests.cli.running import run_process
from tests.memory.extraction.chat_service import running, says
from tests.memory.extraction.memory_client import awaited

PROGRAM = """
import sys, threading
import kgserve
import kgserve.server.app
with kgserve.open(sys.argv[1]) as library:
    library.store("s").retain("Tea is hot.", extract=True)
    library.store("s").reflect()
    print(sorted(each for each in sys.modules if "kgserve.memory.extraction.llm" in each or each.endswith("extractor")))
    print(sorted(each.name for each in threading.enumerate() if each.name in {"llm", "extractor"}))
"""


def test_disabled_extraction_imports_nothing_and_starts_no_thread(tmp_path: Path) -> None:
    variables = {"KGSERVE_EMBEDDING_PROVIDER": "hashing"}
    done = run_process([str(tmp_path)], variables=variables, program=PROGRAM)
    assert done.lines() == [["[]"], ["[]"]], done.err
    assert not list(tmp_path.rglob("extraction.sqlite*"))


@pytest.mark.parametrize("url", ["localhost:1234/v1", "ftp://host/v1", "http://", "http://[::"])
def test_invalid_llm_url_is_rejected(url: str) -> None:
    with pytest.raises(InvalidInput, match="llm_url"):
        create_fact_extraction_worker(Settings(llm_url=url, llm_model="m"), None)


def test_url_and_model_enable_extraction() -> None:
    assert create_fact_extraction_worker(Settings(llm_url="http://127.0.0.1:1/v1"), None) is None
    assert create_fact_extraction_worker(Settings(llm_model="m"), None) is None


def test_llm_key_has_no_command_line_option() -> None:
    refused = command("serve", "--llm-key", "secret")
    assert refused.code != 0
    assert "no such option" in refused.err.lower()


def test_library_extracts_in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as service:
        for name, value in service.options.items():
            monkeypatch.setenv(f"KGSERVE_{name.upper()}", value)
        service.usually = says(facts=[{"content": "Rain is wet."}])
        with kgserve.open(tmp_path, embedding_provider="hashing") as library:
            store = library.store("s")
            assert store.retain("It rained, and we got wet.", extract=True).extracting is True
            assert awaited(lambda: [each for each in store.memories().memories if each.content == "Rain is wet."])
            assert store.extract_memories().queued == 0
