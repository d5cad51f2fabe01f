from __future__ import annotations

from bench.wire import join_chunks, request


def test_chunks_are_joined_to_a_body() -> None:
    assert join_chunks(b"5\r\nhello\r\n11\r\n, and 0\r\n\r\n a end\r\n0\r\n\r\n") == b"hello, and 0\r\n\r\n a end"


def test_a_request_contains_the_length_of_its_body() -> None:
    assert request("POST", "/x", {"a": "ü"}).endswith(b'Content-Length: 10\r\n\r\n{"a":"\xc3\xbc"}')
    assert request("GET", "/x").endswith(b"Host: 127.0.0.1\r\n\r\n")
