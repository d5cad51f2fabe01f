"""Concurrent first decoding of a type by many threads, duplicate keys, and large objects."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Annotated, Literal

import msgspec
import pytest

from kgserve.errors import FieldError
from kgserve.platform.codecs import (
    convert_plain_value_to_type,
    decode_json,
    json_decoder,
    locate_validation_error,
    msgpack_decoder,
)
from kgserve.platform.duplicate_json_keys import (
    count_json_keys,
    find_duplicate_json_key,
    has_colons_adjacent_to_json_keys,
    may_have_duplicate_json_keys,
)
from kgserve.platform.large_json_objects import decode_large_json_object


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    mode: Literal["fast", "slow"] | None = None


class _Whole(msgspec.Struct, rename="kebab", forbid_unknown_fields=True):
    at_once: list[_Part] = []
    by_name: dict[str, Literal[1, 2]] = {}


MEETING = """
import sys, threading
import msgspec
from kgserve.platform.codecs import convert_plain_value_to_type, decode_json, json_decoder, msgpack_decoder

sys.setswitchinterval(1e-6)

def decode(into, into_others):
    assert decode_json(b'{"f29": "a", "parts": [{"g3": 1}]}', into).parts[0].g3 == 1
    assert convert_plain_value_to_type({"parts": [{"g9": 2}]}, into_others).parts[0].g9 == 2
    packed = msgspec.msgpack.encode([{"f3": "b"}])
    assert msgpack_decoder(list[into]).decode(packed)[0].f3 == "b"
    assert json_decoder(into | None).decode(b"null") is None

def meet(into, into_others, doors):
    doors.wait()
    try:
        decode(into, into_others)
    except BaseException as error:
        failed.append(error)

failed = []
for number in range(400):
    part = msgspec.defstruct(f"Part{number}", [(f"g{i}", int | None, None) for i in range(10)])
    fields = [(f"f{i}", str, "") for i in range(30)]
    into, into_others = (msgspec.defstruct(f"{name}{number}", [*fields, ("parts", list[part], [])]) for name in "AB")
    doors = threading.Barrier(4)
    threads = [threading.Thread(target=meet, args=(into, into_others, doors)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
assert not failed, failed
print("done")
"""


class Part(msgspec.Struct):
    count: Annotated[int, msgspec.Meta(ge=1)]


def test_concurrent_first_decoding_of_a_type() -> None:
    ran = subprocess.run([sys.executable, "-c", MEETING], capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")


def test_decoders_are_cached() -> None:
    assert json_decoder(Part) is json_decoder(Part)
    assert msgpack_decoder(list[Part]) is msgpack_decoder(list[Part])


def test_values_are_converted_to_their_type() -> None:
    assert decode_json(b'{"count": 3}', Part) == convert_plain_value_to_type({"count": 3}, Part) == Part(3)
    assert decode_json("[1, null]") == [1, None]
    assert convert_plain_value_to_type({"count": "3"}, Part, strict=False) == Part(3)


def test_values_that_do_not_fit_are_rejected() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_json(b'{"count": "3"}', Part)
    with pytest.raises(msgspec.ValidationError):
        convert_plain_value_to_type({"count": "3"}, Part)
    with pytest.raises(msgspec.DecodeError):
        decode_json(b"{")

    with pytest.raises(msgspec.ValidationError) as refused:
        decode_json(b'{"count": 0}', Part)
    assert locate_validation_error(refused.value, Part) == FieldError("count", "must be at least 1")


def test_unknown_values_and_fields_are_reported_with_the_allowed_ones() -> None:
    for text, place, told in (
        ('{"at-once": [{}, {"mode": "slowly"}]}', "at-once[1].mode", ": it is one of fast, slow"),
        ('{"by-name": {"a": 3}}', "by-name[...]", ": it is one of 1, 2"),
        ('{"at_once": []}', "at_once", "Unknown field `at_once`. Allowed fields: at-once, by-name"),
        ('{"at-once": [{"mood": 1}]}', "at-once[0].mood", "Unknown field `mood`. Allowed fields: mode"),
    ):
        with pytest.raises(msgspec.ValidationError) as refused:
            decode_json(text, _Whole)
        fault = locate_validation_error(refused.value, _Whole)
        assert fault.path == place
        assert fault.message.endswith(told)


_NAMES = ["a", "b", "\\u0061", '\\"', '\\":', "\\u0022:", '\\"\\u003A', " :", '\\" :', '\\"\\u0020:', "é\\u00e9"]


def _draw_json(draw: random.Random, depth: int = 0) -> str:
    kind = draw.randrange(3 if depth < 3 else 1)
    if kind == 0:
        return draw.choice(["1", "null", "1.50", *(f'"{name}"' for name in _NAMES)])
    if kind == 1:
        return f"[{','.join(_draw_json(draw, depth + 1) for _ in range(draw.randrange(3)))}]"
    colon = draw.choice([":", ":", ": ", " :", "\n:"])
    return "{%s}" % ",".join(  # noqa: UP031 - braces
        f'"{draw.choice(_NAMES)}"{colon}{_draw_json(draw, depth + 1)}' for _ in range(draw.randrange(4))
    )


def test_duplicate_keys_are_found_like_by_pairs() -> None:
    draw, found = random.Random(7), 0
    for _ in range(5_000):
        text = _draw_json(draw)
        pairs: list[list[tuple[str, object]]] = []
        json.loads(text, object_pairs_hook=pairs.append)
        expected = any(len({name for name, _ in each}) < len(each) for each in pairs)
        assert (find_duplicate_json_key(text.encode()) is not None) == expected, text
        assert not expected or may_have_duplicate_json_keys(b"1\n" + text.encode().replace(b"\n", b" ")), text
        found += expected
    assert 500 < found < 4_500
    assert find_duplicate_json_key(b'{"a":[1,{"b":{"c":1,"d":[],"c":2}}]}') == "a[1].b.c"


_LARGE = {
    "at-once": [{"mode": ("fast", "slow", None)[number % 3]} for number in range(10_000)],
    "by-name": {"only": 1},
}


@pytest.mark.parametrize("indent", [0, 2])
def test_a_large_object_is_decoded_in_slices_as_at_once(indent: int) -> None:
    text = msgspec.json.format(msgspec.json.encode(_LARGE), indent=indent)
    decoded = decode_large_json_object(text, _Whole)
    assert decoded == decode_json(text, _Whole)
    assert decoded is not None
    assert len(decoded.at_once) == 10_000


@pytest.mark.parametrize(
    ("correct", "wrong"),
    [
        pytest.param(b'"fast"', b'"quick"', id="value"),
        pytest.param(b'{"mode":"fast"}', b'{"mode":"fast","mode":"slow"}', id="duplicate-in-the-array"),
        pytest.param(b'{"only":1}', b'{"only":1,"only":2}', id="duplicate-outside"),
        pytest.param(b'"by-name"', b'"at-once":[],"by-name"', id="array-twice"),
        pytest.param(b'"by-name"', b'"unknown":[],"by-name"', id="unknown-field"),
        pytest.param(b'"only":1}}', b'"only":1}', id="cut"),
        pytest.param(b'"only"', b'"\\u0022"', id="escaped-quotation-mark"),
    ],
)
def test_a_large_object_with_a_fault_is_left_to_the_decoder_of_all(correct: bytes, wrong: bytes) -> None:
    text = msgspec.json.encode(_LARGE)
    assert correct in text
    assert decode_large_json_object(text.replace(correct, wrong, 1), _Whole) is None


@pytest.mark.parametrize("shift", range(4))
def test_keys_are_found_across_the_windows_of_a_large_text(shift: int) -> None:
    filler = "x" * ((256 << 10) - len('{"filler":"","k') + 1 - shift)
    assert count_json_keys(f'{{"filler":"{filler}","k":1,"l":[2]}}'.encode()) == 3
    assert not has_colons_adjacent_to_json_keys(f'{{"filler":"{filler}","k" :1}}'.encode())
    assert not has_colons_adjacent_to_json_keys(f'{{"filler":"{filler}","\\u0022":1}}'.encode())
    assert has_colons_adjacent_to_json_keys(f'{{"filler":"{filler}","k":"a :"}}'.encode())
