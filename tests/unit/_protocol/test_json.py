"""JSON with orjson, and without it: both read the same values and write equivalent JSON."""

import contextlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loanasync._protocol import json as installed
from loanasync._protocol.json import Malformed, decode, decode_any, decode_part, repeated_members
from loanasync.testing import approved, scripted_client
from support.builders import FISCAL_CODE, approval_request

LIBRARIES = ("orjson", "standard library")


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module as it is, and a second copy for which orjson is not installed."""
    if request.param == "orjson":
        pytest.importorskip("orjson")
        return installed
    monkeypatch.setitem(sys.modules, "orjson", None)
    assert installed.__spec__ is not None
    spec = importlib.util.spec_from_file_location("json_without_orjson", installed.__spec__.origin)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.orjson is None
    return module


# `repr` tells 1 from 1.0, and 0.0 from -0.0.
@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a":[1,-2.5,true,null,"\\u00e8"]}', "{'a': [1, -2.5, True, None, 'è']}"),
        (b' \t\r\n{"a" : 1}\n', "{'a': 1}"),
        (b'\xef\xbb\xbf{"a":1}', "{'a': 1}"),
        (b'{"a":1,"b":2,"a":3}', "{'a': 3, 'b': 2}"),
        (b"null", "None"),
        (b'"\\ud800"', r"'\ud800'"),
        (b'"\\ud83d\\ude00\\/"', "'\U0001f600/'"),
        (b'"\x7f\xe2\x80\xa8"', r"'\x7f\u2028'"),
        (b"-0", "0"),
        (b"-0.0", "-0.0"),
        (b"1e2", "100.0"),
        (b"1e-400", "0.0"),
        (b"-1e999", "-inf"),
        (b"0.1234567890123456789", "0.12345678901234568"),
        (b"18446744073709551615", "18446744073709551615"),
        (b"18446744073709551616", "1.8446744073709552e+19"),
        (b"-9223372036854775808", "-9223372036854775808"),
        (b"-9223372036854775809", "-9.223372036854776e+18"),
        (b"123456789012345678901234567890", "1.2345678901234568e+29"),
        (b"9" * 400, "9" * 400),
        (b'["\\ud800",123456789012345678901234567890]', r"['\ud800', 1.2345678901234568e+29]"),
        (b"[" * 500 + b"]" * 500, "[" * 500 + "]" * 500),
    ],
    ids=lambda value: repr(value[:40]),
)
def test_decode_any_reads_equal_values(library: ModuleType, body: bytes, value: str) -> None:
    assert repr(library.decode_any(body)) == value


@pytest.mark.parametrize(
    ("reason", "bodies"),
    [
        ("empty", [b"", b" \r\n"]),
        ("not JSON", [
            *(b"NaN", b'{"a":Infinity}', b"[-Infinity]", b"9" * 5000, b'{"a":1} x', b"[1,]", b"{a:1}"),
            *(b"{'a':1}", b'{"a":1', b"01", b"+1", b".5", b"1.", b"\x0b1", b'"a\tb"', b'"\\x"', b"<html>"),
        ]),
        ("not UTF-8", [b'"\xff"', b'"\xed\xa0\x80"', b'{"a":"\xe8"}', '{"a":1}'.encode("utf-16")]),
        ("nested too deeply", [b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000]),
    ],
    ids=["empty", "json", "utf-8", "deep"],
)  # fmt: skip
def test_decode_any_refuses_the_same_bodies(library: ModuleType, reason: str, bodies: list[bytes]) -> None:
    for body in bodies:
        with pytest.raises(library.Malformed) as caught:
            library.decode_any(body)
        assert caught.value.args == (f"body: {reason}",), body[:40]
        assert caught.value.__context__ is None, "it would quote the body"


@pytest.mark.parametrize("body", [b"[1]", b'"a"', b"5", b"null"])
def test_decode_refuses_all_but_objects(library: ModuleType, body: bytes) -> None:
    with pytest.raises(library.Malformed, match="not a JSON object"):
        library.decode(body)


@given(st.binary())
def test_decode_any_bytes_returns_members_or_malformed(body: bytes) -> None:
    with contextlib.suppress(Malformed):
        assert isinstance(decode(body), dict)


def test_decode_any_with_a_raised_recursion_limit_refuses_a_deep_body() -> None:
    """A deeper body would overflow the stack of Python 3.11."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(30_000)
    try:
        with pytest.raises(Malformed, match="nested too deeply"):
            decode_any(b"[" * 10_001 + b"]" * 10_001)
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"a":1,"c":2}', {}),
        (b'{"a":1,"b":{"c":1,"c":2},"a":2}', {"a": [1, 2]}),
        (b'{"c":1,"a":1,"c":2,"a":3}', {"c": [1, 2], "a": [1, 3]}),
        (b'{"a":1,"b":{"a":1},"c":"a"}', {}),
        (b'{"a" :1,"c":"a","a"\n\t:2}', {"a": [1, 2]}),
        (b'{"a" :1,"a"\r:2}', {"a": [1, 2]}),
        (b'{"a":1,"c":"\\"a\\":\\"a\\":"}', {}),
        (b'{"a":1,"\\u0061":2}', {"a": [1, 2]}),
        (b'{"a":1,"\\u0062":2}', {}),
        (b'{"a":"\\u00e8","a":2}', {"a": ["\u00e8", 2]}),
        (b'\xef\xbb\xbf{"a":1,"a":2}', {"a": [1, 2]}),
    ],
)
def test_repeated_members_returns_all_values(body: bytes, found: dict[str, list[object]]) -> None:
    assert repeated_members(body, decode(body), ("c", "a")) == found


def test_value_that_equals_a_name_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spec §2.1: both deprecated texts of a response may be `approved`."""
    monkeypatch.setattr("loanasync._protocol.json._ALL_MEMBERS", None)
    body = b'{"approved":true,"approvalMessageApiFull":"approved","approvalMessageApiSemiFull":"approved"}'
    assert repeated_members(body, decode(body), ["approved"]) == {}
    with pytest.raises(AttributeError):
        repeated_members(b'{"approved":true,"approved":true}', {"approved": True}, ["approved"])


def test_repeated_names_in_a_deep_body_are_malformed() -> None:
    deep = b'{"a":1,"a":%s1%s}' % (b"[" * 50_000, b"]" * 50_000)
    with pytest.raises(Malformed, match="nested too deeply"):
        repeated_members(deep, {"a": []}, ["a"])


@pytest.mark.parametrize(
    ("value", "found"), [(b'"IT60', "IT60…"), (b'"a\\u00', "a…"), (b"[1", None), (b"tru", None), (b"1", 1)]
)
def test_decode_part_reads_a_truncated_text_only(value: bytes, found: object) -> None:
    assert decode_part(b'{"a":' + value, "a") == [found]


def test_encode_checked_writes_equal_bytes(library: ModuleType) -> None:
    members = {
        "a": '\x00\x1f\b\f\n\r\t"\\/\x7fè\u2028\U0001f600',
        "b": [2**53, -1, True, None],
        "c": {"d": ""},
    }
    expected = (
        r'{"a":"\u0000\u001f\b\f\n\r\t\"\\/' + '\x7fè\u2028\U0001f600","b":[9007199254740992,-1,true,null],'
    )
    assert library.encode_checked(members) == (expected + '"c":{"d":""}}').encode()


def test_sort_members_makes_bodies_of_other_order_equal(library: ModuleType) -> None:
    ordered = library.sort_members(b'{"a":1,"b":{"c":2,"d":"\xc3\xa8"}}')
    assert ordered == library.sort_members(b'{"b":{"d":"\xc3\xa8","c":2},"a":1}')
    assert ordered != library.sort_members(b'{"b":{"d":"\xc3\xa8","c":3},"a":1}')


@pytest.mark.parametrize("depth", [300, 100_000])
def test_sort_members_returns_a_deep_body_unchanged(library: ModuleType, depth: int) -> None:
    deep = b'{"b":%s%s,"a":1}' % (b"[" * depth, b"]" * depth)
    assert len(library.sort_members(deep)) == len(deep)


async def test_approve_with_deep_extra_is_sent() -> None:
    """orjson writes at most 254 levels, and the standard library more."""
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    async with scripted_client(approved()) as client:
        decision = await client.approve(FISCAL_CODE, approval_request(extra={"deep": deep}))
    assert decision.approved
