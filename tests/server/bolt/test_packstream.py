from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from kgserve.errors import InvalidInput
from kgserve.server.bolt.messages import decode_bolt_request
from kgserve.server.bolt.packstream import (
    MAX_DEPTH,
    PackStreamDecoder,
    PackStreamEncoder,
    PackStreamStructure,
    ProtocolViolation,
)
from kgserve.server.bolt.value_codec import BoltValueCodec

ENCODER = PackStreamEncoder({})
CODEC = BoltValueCodec((5, 8))

EXAMPLES: list[tuple[Any, str]] = [
    (None, "c0"),
    (True, "c3"),
    (False, "c2"),
    (1, "01"),
    (127, "7f"),
    (-1, "ff"),
    (-16, "f0"),
    (-17, "c8 ef"),
    (-128, "c8 80"),
    (128, "c9 0080"),
    (-129, "c9 ff7f"),
    (32_767, "c9 7fff"),
    (32_768, "ca 00008000"),
    (-(2**31), "ca 80000000"),
    (2**31, "cb 0000000080000000"),
    (2**63 - 1, "cb 7fffffffffffffff"),
    (-(2**63), "cb 8000000000000000"),
    (1.1, "c1 3ff199999999999a"),
    ("", "80"),
    ("ä", "82 c3a4"),
    ("x" * 16, "d0 10" + "78" * 16),
    ("x" * 256, "d1 0100" + "78" * 256),
    (b"", "cc 00"),
    (b"\x01\x02", "cc 02 0102"),
    (bytes(256), "cd 0100" + "00" * 256),
    ([], "90"),
    ([1, "a", None], "93 01 8161 c0"),
    ([1] * 16, "d4 10" + "01" * 16),
    ([1] * 256, "d5 0100" + "01" * 256),
    ({}, "a0"),
    ({"a": {"b": [1]}}, "a1 8161 a1 8162 91 01"),
    ({f"{number:x}": 1 for number in range(16)}, "d8 10" + "".join(f"81{ord(f'{n:x}'):02x}01" for n in range(16))),
    (PackStreamStructure(0x44, (1, 2)), "b2 44 01 02"),
]


@pytest.mark.parametrize(("value", "data"), EXAMPLES, ids=lambda value: str(value)[:20])
def test_values_have_the_encoding_of_the_specification(value: Any, data: str) -> None:
    encoded = bytes.fromhex(data)
    assert ENCODER.encode(value) == encoded
    assert PackStreamDecoder(encoded).read_value() == value


@pytest.mark.parametrize("size", [65_535, 65_536, 100_000])
def test_long_values_survive(size: int) -> None:
    for value in ("é" * size, b"b" * size, [1] * size, {str(number): number for number in range(size)}):
        assert PackStreamDecoder(ENCODER.encode(value)).read_value() == value


def test_special_floats_survive() -> None:
    decoded = PackStreamDecoder(ENCODER.encode([math.inf, -math.inf, -0.0, math.nan])).read_value()
    assert decoded[:3] == [math.inf, -math.inf, 0.0]
    assert math.copysign(1, decoded[2]) == -1
    assert math.isnan(decoded[3])


def test_integers_in_wide_encodings_are_read() -> None:
    data = bytes.fromhex("94 c8 01 c9 0001 ca 00000001 cb 0000000000000001")
    assert PackStreamDecoder(data).read_value() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2**63, "64 bits"),
        (-(2**63) - 1, "64 bits"),
        ("\ud800", "Unicode"),
        ({1: 2}, "not a string"),
        (object(), "object"),
    ],
)
def test_values_that_cannot_be_sent_are_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ENCODER.encode([value])


def test_a_result_nested_too_deeply_is_refused() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidInput, match="nested"):
        ENCODER.encode(value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "ends"),
        ("c1 00", "ends"),
        ("d2 ffffffff 78", "ends"),
        ("ce ffffffff", "ends"),
        ("d6 ffffffff 01", "declares"),
        ("da 7fffffff 8161 01", "declares"),
        ("d4 03 01 02", "declares"),
        ("c7", "no value"),
        ("c4", "no value"),
        ("cf", "no value"),
        ("d3", "no value"),
        ("d7", "no value"),
        ("db", "no value"),
        ("de 00000001", "no value"),
        ("e0", "no value"),
        ("81 ff", "UTF-8"),
        ("83 eda080", "UTF-8"),
        ("a1 01 01", "key"),
        ("a2 8161 01 8161 02", "twice"),
        ("01 01", "after its end"),
        ("91" * (MAX_DEPTH + 1) + "01", "nested"),
        ("a1 8161" * (MAX_DEPTH + 1) + "01", "nested"),
    ],
)
def test_malformed_values_are_refused(data: str, message: str) -> None:
    with pytest.raises(ProtocolViolation, match=message):
        PackStreamDecoder(bytes.fromhex(data)).read_value()


def test_many_containers_are_refused() -> None:
    with pytest.raises(ProtocolViolation, match="containers"):
        PackStreamDecoder(b"\xd6" + struct.pack(">I", 600_000) + b"\xa0" * 600_000).read_value()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "no known type"),
        ("b0", "no known type"),
        ("b1 99 a0", "no known type"),
        ("b2 01 a0 a0", "1 fields"),
        ("b1 01 90", "must be a map"),
        ("b3 10 01 a0 a0", "must be a string"),
        ("81 01", "1 fields|structure"),
        ("b1 54 c3", "must be a number"),
    ],
)
def test_malformed_messages_are_refused(data: str, message: str) -> None:
    with pytest.raises(ProtocolViolation, match=message):
        decode_bolt_request(bytes.fromhex(data))


def random_value(random_: random.Random, depth: int = 0) -> Any:
    scalars: list[Callable[[], Any]] = [
        lambda: random_.choice([None, True, False]),
        lambda: random_.randrange(-(2**63), 2**63) >> random_.randrange(64),
        lambda: random_.uniform(-1e9, 1e9),
        lambda: "".join(random_.choices("abcäöü漢😀", k=random_.randrange(30))),
        lambda: random_.randbytes(random_.randrange(300)),
    ]
    if depth > 4 or random_.random() < 0.7:
        return random_.choice(scalars)()
    items = [random_value(random_, depth + 1) for _ in range(random_.randrange(20))]
    return items if random_.random() < 0.5 else {str(number): item for number, item in enumerate(items)}


def test_random_values_survive() -> None:
    random_ = random.Random(7)
    for _ in range(300):
        value = random_value(random_)
        assert PackStreamDecoder(ENCODER.encode(value)).read_value() == value


def test_damaged_messages_never_raise_other_errors() -> None:
    random_ = random.Random(11)
    for _ in range(600):
        message = bytearray(ENCODER.encode(PackStreamStructure(0x10, ("RETURN 1", {"x": random_value(random_)}, {}))))
        for _ in range(random_.randrange(1, 4)):
            match random_.randrange(4):
                case 0:
                    message[random_.randrange(len(message))] = random_.randrange(256)
                case 1:
                    del message[random_.randrange(1, len(message) + 1) :]
                case 2:
                    message.insert(random_.randrange(len(message)), random_.randrange(256))
                case _:
                    place = random_.randrange(len(message))
                    message[place:place] = random_.choice([b"\xd6\xff\xff\xff\xff", b"\xb2\x49\x01", b"\xda\x00\x10"])
            if not message:
                break
        with suppress(ProtocolViolation):
            decode_bolt_request(bytes(message), CODEC.build_structure)


def test_random_bytes_never_raise_other_errors() -> None:
    random_ = random.Random(13)
    for _ in range(600):
        data = bytes((random_.randrange(0xB0, 0xC0), random_.choice((0x01, 0x10, 0x3F)))) + random_.randbytes(40)
        with suppress(ProtocolViolation):
            decode_bolt_request(data, CODEC.build_structure)
