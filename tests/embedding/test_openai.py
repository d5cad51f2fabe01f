from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kgserve.embedding.embedder import OpenAIEmbedder, load_embedder
from kgserve.errors import InvalidInput, KgserveError, Unavailable
from kgserve.platform.settings import Settings
from tests.embedding.embedding_service import DIMENSIONS, KEY, LONGEST_TEXT, MODEL, Service, running, vector_of


@pytest.fixture
def service() -> Iterator[Service]:
    with running() as started:
        yield started


@pytest.fixture
def embedder(service: Service) -> Iterator[OpenAIEmbedder]:
    made = OpenAIEmbedder(service.url, MODEL, KEY, batch=4, backoff=0.01)
    yield made
    made.close()


def expected(texts: list[str]) -> NDArray[np.float64]:
    rows = np.array([vector_of(text) for text in texts])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_settings_select_the_service_embedder(service: Service) -> None:
    settings = Settings(
        embedding_provider="openai", embedding_url=service.url, embedding_model=MODEL, embedding_key=KEY
    )
    loaded = load_embedder(settings)
    assert service.batches == []
    assert not loaded.degraded
    assert loaded.model_id == f"{MODEL}@127.0.0.1:{service.server_port}/v1"
    assert loaded.dimensions == DIMENSIONS
    assert np.allclose(loaded.embed(["text"]), expected(["text"]), atol=1e-6)
    loaded.close()


@pytest.mark.parametrize("slash", ["", "/"])
def test_vectors_are_in_order_and_unit_length(service: Service, slash: str) -> None:
    embedder = OpenAIEmbedder(service.url + slash, MODEL, KEY, batch=4)
    texts = [f"text {'x' * (number % 5)} {number}" for number in range(11)]
    vectors = embedder.embed(texts)
    assert vectors.dtype == np.float32
    assert np.allclose(vectors, expected(texts), atol=1e-6)
    assert embedder.embed([]).shape == (0, DIMENSIONS)
    assert max(len(batch) for batch in service.batches) == 4
    embedder.close()


def test_model_id_contains_the_address_without_credentials() -> None:
    one = OpenAIEmbedder("http://user:password@host/v1", MODEL)
    assert one.model_id == f"{MODEL}@host/v1"
    one.close()


def test_known_models_need_no_request_for_dimensions() -> None:
    embedder = OpenAIEmbedder("http://127.0.0.1:9/v1", "text-embedding-3-small")
    assert embedder.dimensions == 1536
    embedder.close()


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_retry_on_transient_status(service: Service, embedder: OpenAIEmbedder, status: int) -> None:
    service.failures.extend([(status, {})] * 3)
    assert np.allclose(embedder.embed(["text"]), expected(["text"]), atol=1e-6)


def test_retry_after_header_is_honored(service: Service, embedder: OpenAIEmbedder) -> None:
    service.failures.append((429, {"Retry-After": "1"}))
    started = time.monotonic()
    embedder.embed(["text"])
    assert time.monotonic() - started >= 1


def test_retry_after_dates_and_long_delays_are_ignored(service: Service, embedder: OpenAIEmbedder) -> None:
    service.failures.append((429, {"Retry-After": "Wed, 21 Oct 2099 07:28:00 GMT"}))
    embedder.embed(["text"])
    service.failures.append((429, {"Retry-After": "3600"}))
    with pytest.raises(Unavailable, match="429"):
        embedder.embed(["text"])


def test_retries_are_limited(service: Service, embedder: OpenAIEmbedder) -> None:
    service.failures.extend([(503, {})] * 100)
    with pytest.raises(Unavailable, match="503"):
        embedder.embed(["text"])
    assert len(service.failures) > 90


def test_unreachable_service_raises_unavailable() -> None:
    embedder = OpenAIEmbedder("http://127.0.0.1:9/v1", MODEL, backoff=0.01)
    with pytest.raises(Unavailable, match="does not answer"):
        embedder.embed(["text"])
    embedder.close()


def test_rejected_texts_do_not_affect_other_texts(service: Service, embedder: OpenAIEmbedder) -> None:
    long = "long " * 3000
    texts = ["short", "", long, "also short", " \n"]
    vectors = embedder.embed(texts)
    assert np.allclose(vectors[[0, 3]], expected(["short", "also short"]), atol=1e-6)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert max(len(text) for batch in service.batches for text in batch) <= LONGEST_TEXT


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"data": []}, "0 vectors for 1 texts"),
        ({"data": [{"index": 1, "embedding": [1.0]}]}, "1 vectors for 1 texts"),
        ({"data": [{"index": 0, "embedding": [0.0] * DIMENSIONS}]}, "no direction"),
        ({"data": [{"index": 0, "embedding": [1.0]}]}, "instead of 32"),
        ({"data": [{"index": 0, "embedding": ["one"]}]}, "cannot be used"),
        ({"data": [{"index": 0, "embedding": []}]}, "cannot be used"),
        ({"data": [{"index": 0, "embedding": [1e300] * DIMENSIONS}]}, "no direction"),
        ({"object": "list"}, "cannot be used"),
        ([1], "cannot be used"),
    ],
)
def test_invalid_responses_are_rejected(service: Service, embedder: OpenAIEmbedder, answer: Any, reason: str) -> None:
    assert embedder.dimensions == DIMENSIONS
    service.answer = answer
    with pytest.raises(Unavailable, match=reason):
        embedder.embed(["text"])


def test_embedder_is_thread_safe(embedder: OpenAIEmbedder) -> None:
    texts = [f"text {number}" for number in range(9)]
    with ThreadPoolExecutor(4) as pool:
        for vectors in pool.map(embedder.embed, [texts] * 8):
            assert np.allclose(vectors, expected(texts), atol=1e-6)


def test_a_closed_embedder_raises_unavailable(embedder: OpenAIEmbedder) -> None:
    embedder.embed(["text"])
    embedder.close()
    embedder.close()
    with pytest.raises(Unavailable, match="closed"):
        embedder.embed(["text"])


def test_key_is_never_logged(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = KEY[::-1]
    shown: list[str] = []
    for key in (KEY, wrong, "broken\nkey " + wrong, "schlüssel " + wrong):
        try:
            with closing(OpenAIEmbedder(service.url, MODEL, key)) as embedder:
                shown.append(repr(vars(embedder)))
                embedder.embed(["text"])
        except KgserveError as error:
            shown += [error.message, repr(error.__cause__), repr(error.__context__)]
    assert len(shown) >= 8
    assert not any(secret in line for secret in (KEY, wrong) for line in [*shown, caplog.text])


def test_no_retry_with_a_wrong_key(service: Service) -> None:
    with closing(OpenAIEmbedder(service.url, MODEL, "wrong")) as embedder, pytest.raises(Unavailable, match="401"):
        embedder.embed(["text"])
    assert service.requests == 1


@pytest.mark.parametrize("url", ["", "host/v1", "ftp://host", "http://", "http://[::1", "http://host:port"])
def test_invalid_addresses_are_rejected(url: str) -> None:
    with pytest.raises(InvalidInput, match="embedding_url"):
        load_embedder(Settings(embedding_provider="openai", embedding_url=url))
