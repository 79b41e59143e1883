"""Hostile responses result in decisions or LoanErrors, quickly and with little memory."""

import asyncio
import contextlib
import json
import pickle
import subprocess
import sys
import time
import tracemalloc
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loanasync import (
    Approved,
    LoanClient,
    LoanError,
    Refused,
    RetryPolicy,
    Timeout,
    UnexpectedResponseError,
    UnexpectedStatusError,
    UserData,
)
from loanasync._models.masking import Body, Items
from loanasync._protocol import endpoints
from support.builders import approval_request
from support.canned_server import approve, serving
from support.response_reader import APPROVE, call_of, read

LARGEST = 1 << 20  # bytes; the transport accepts no larger body


def assert_outcome(outcome: object) -> None:
    """Check that this is a decision, an open response or a LoanError, and can be printed and pickled."""
    if outcome is None or isinstance(outcome, str | int | float):
        return  # a JSON value of an open response (spec §4.3)
    assert isinstance(outcome, LoanError | Approved | Refused | UserData | Body | Items)
    for shown in (str(outcome), repr(outcome)):
        shown.encode()  # contains no lone surrogate
        assert "secret-token" not in shown
    copy = pickle.loads(pickle.dumps(outcome))  # noqa: S301  (bytes of this test)
    assert type(copy) is type(outcome)


# All JSON values, and some that JSON does not allow: NaN, lone surrogates, huge numbers.
NAMES = st.sampled_from(
    [
        *("approved", "redirectUrl", "errors", "error", "domain", "system", "amount", "email"),
        *("paymentDayOfMonth", "raw", "meta", "unread", "citizenship", "documentIssueDate", "fiscalCode", ""),
        *("__class__", "self"),
    ]
)
TEXTS = st.text(st.characters(), max_size=20) | st.sampled_from(
    ["\ud800", "\udfff\ud800", "User already evaluated", "a\r\nb", "\x00", "true", "x" * 10_000]
)
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**4000, -(10**400), 1e308])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | TEXTS, inner, max_size=4),
    max_leaves=15,
)
JSONS = st.dictionaries(NAMES | TEXTS, VALUES, max_size=6).map(lambda value: json.dumps(value).encode())
STATUSES = st.sampled_from([200, 201, 202, 204, 400, 401, 403, 404, 409, 422, 429, 500, 503]) | st.integers(
    100, 999
)


@given(approved=st.booleans(), members=st.lists(st.tuples(NAMES | TEXTS, VALUES), max_size=6), data=st.data())
def test_decision_has_one_approved_member_that_fits_the_status(
    approved: bool,  # noqa: FBT001  (drawn)
    members: list[tuple[str, Any]],
    data: st.DataObject,
) -> None:
    members = data.draw(st.permutations([*members, ("approved", approved)]))
    body = "{" + ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in members) + "}"
    status = data.draw(st.sampled_from([201, 422]))
    outcome = read(APPROVE, status, body.encode())
    values = [value for name, value in members if name == "approved"]
    if isinstance(outcome, Approved | Refused):
        assert values == [outcome.approved]
        assert (outcome.approved, status) != (True, 422)  # 201 with a refusal is a refusal (readings, R1)
    else:
        assert isinstance(outcome, UnexpectedResponseError)
        assert outcome.outcome == "unknown"


def million(value: str, separator: str = ",", *, begin: str, end: str) -> bytes:
    count = (LARGEST - len(begin) - len(end)) // (len(value) + len(separator))
    return (begin + separator.join([value] * count) + end).encode()


PERSONAL = str(approval_request().first_name) + " "
LARGE = {
    "members, one of them twice": (
        b"{" + b",".join(b'"%d":0' % number for number in range(90_000)) + b',"approved":true,"0":0}'
    ),
    "deep lists": b'{"approved":true,"a":' + b"[" * 500_000 + b"]" * 500_000 + b"}",
    "deep objects": b'{"a":' * 170_000 + b"1" + b"}" * 170_000,
    "lists as deep as is read": b'{"approved":true,"a":' + b"[" * 500 + b"]" * 500 + b"}",
    "one number": b'{"approved":true,"amount":' + b"9" * 1_000_000 + b"}",
    "one fraction": b'{"approved":true,"amount":0.' + b"9" * 1_000_000 + b"}",
    "one exponent": b'{"approved":true,"amount":1e' + b"9" * 1_000_000 + b"}",
    "messages": million('""', begin='{"errors":{"city":[', end="]}}"),
    "fields": b'{"errors":{' + b",".join(b'"%d":"x"' % number for number in range(80_000)) + b"}}",
    "one message": million("x", "", begin='{"errors":{"city":"', end='"}}'),
    "one message of personal values": million(PERSONAL, "", begin='{"errors":{"city":"', end='"}}'),
    "one name of personal values": million(PERSONAL, "", begin='{"errors":{"', end='":["x"]}}'),
    "one domain message": million("gia ", "", begin='{"errors":{"domain":["', end='"]}}'),
    "one name with values that cannot be read": million('"fiscalCode":"\\q",', "", begin="{", end="}"),
    "blanks": b" " * LARGEST,
    "zeros": bytes(LARGEST),
}


@pytest.mark.parametrize("is_reused", [False, True])
@pytest.mark.parametrize("status", [201, 400, 404, 422, 500])
@pytest.mark.parametrize("name", LARGE)
def test_large_body_is_read_quickly_into_a_small_error(name: str, status: int, *, is_reused: bool) -> None:
    assert len(LARGE[name]) <= LARGEST
    started = time.thread_time()
    outcome = read(APPROVE, status, LARGE[name], is_reused=is_reused)
    # Most take a hundredth of this; quadratic code took minutes. The event loop is blocked meanwhile.
    assert time.thread_time() - started < 1.5
    assert isinstance(outcome, LoanError | Approved | Refused)
    if isinstance(outcome, LoanError):
        assert len(str(outcome)) < 50_000
        # The error keeps the response itself, so that it is not lost.
        small = outcome
        if isinstance(outcome, UnexpectedResponseError | UnexpectedStatusError):
            small = attrs.evolve(outcome, response=None)
        assert len(pickle.dumps(small)) < 100_000


def test_truncated_message_contains_no_part_of_a_personal_value() -> None:
    last_name = "Lunghissimocognome"
    call = call_of(endpoints.APPROVE, approval_request(last_name=last_name))
    for pad in range(4970, 5010):
        text = " " * (pad - 4900) + f"{last_name} " * 300  # 5,000 characters become less than 300 when masked
        outcome = read(call, 400, json.dumps({"errors": {"lastname": text}}).encode())
        assert isinstance(outcome, UnexpectedResponseError)  # too long to be read completely
        assert [problem.wire_name for problem in outcome.problems] == ["lastname"]
        assert "Lung" not in str(outcome) + repr(outcome)


QUICK = Timeout(total=0.3, attempt=20, connect=10)
HEADERS = st.sampled_from(
    [
        *("Content-Encoding: gzip", "Content-Encoding: deflate", "Content-Encoding: br"),
        *("Content-Encoding: zstd", "Content-Encoding: nonsense"),
        *("Content-Type: application/json; charset=utf-16", "Connection: close"),
        *("Transfer-Encoding: chunked", "Content-Length: 7", "Retry-After: \x80", "Set-Cookie: a=b"),
        *("X: " + "y" * 9000, "Location: http://127.0.0.1:1/", "Upgrade: websocket", "Content-Type: \x00"),
        *(": x", "no colon", " folded"),
    ]
)


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """Draw bytes that resemble HTTP."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(min_size=1, max_size=200)) + b"\r\n\r\n"
    body = draw(st.binary(max_size=60) | JSONS)
    start = (
        f"HTTP/1.{draw(st.integers(0, 1))} {draw(STATUSES)} {draw(st.sampled_from(['', 'OK', 'x' * 9000]))}"
    )
    headers = [f"Content-Length: {len(body)}", *draw(st.lists(HEADERS, max_size=3))]
    return "\r\n".join([start, *headers]).encode("latin-1") + b"\r\n\r\n" + body


@given(raw=st.lists(responses(), min_size=25, max_size=25))
@settings(max_examples=6)
async def test_any_bytes_over_a_socket_are_an_outcome_or_a_loan_error(raw: list[bytes]) -> None:
    async with serving(*raw) as server:
        server.closes_after_response = True
        client = server.client(timeout=QUICK, retry=RetryPolicy(attempts=1))
        outcomes = await asyncio.gather(*(approve(client) for _ in raw), return_exceptions=True)
        await client.aclose()
    for outcome in outcomes:
        assert_outcome(outcome)


HEADS = {
    "body": b"HTTP/1.1 201 Created\r\nContent-Length: 99999999999\r\n\r\n",
    "chunks": b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n" + b"FFFFFFFF\r\n",
    "headers": b"HTTP/1.1 201 Created\r\n",
    "header": b"HTTP/1.1 201 Created\r\nX: ",
    "status": b"HTTP/1.1 201 ",
}


@pytest.mark.parametrize("part", HEADS)
async def test_endless_response_uses_little_memory(part: str) -> None:
    more = b"X: y\r\n" * 8192 if part == "headers" else b"x" * 65536

    async def never_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEADS[part])
            while True:
                writer.write(more)
                await writer.drain()
        writer.close()
        ended.set()

    ended = asyncio.Event()
    server = await asyncio.start_server(never_end, "127.0.0.1", 0)
    address = "http://{}:{}".format(*server.sockets[0].getsockname())
    async with LoanClient(address, shop_id="s", auth_token="t", timeout=Timeout(total=30)) as client:
        tracemalloc.start()
        with pytest.raises(LoanError) as caught:
            await approve(client)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    await ended.wait()
    server.close()
    if part in ("body", "chunks"):
        assert isinstance(caught.value, UnexpectedResponseError)
        assert (caught.value.outcome, caught.value.reasons) == ("unknown", ("body: too large",))
    assert peak < 8 << 20, "a body has at most 1 MiB"


UNLIMITED = r"""
import sys
from loanasync._protocol.json import Malformed, decode

sys.setrecursionlimit(1_000_000)
half = b'"\\ud800"'  # orjson does not read it
texts = b'"\\"' + b"[" * 20_000 + b'"'
assert decode(b'{"a": [' + b"[]," * 20_000 + texts + b"," + half + b"]}")["a"][20_000] == '"' + "[" * 20_000
for deep in (b"[" * 1_000_000, b'{"a": ' + half + b', "b":' + b"[{" * 20_000, b'["' + b'\\"' * 400_000):
    try:
        decode(deep)
    except Malformed as malformed:
        print(*malformed.args)
"""


@pytest.mark.parametrize("first", ["", "import sys; sys.modules['orjson'] = None"], ids=["orjson", "without"])
def test_deep_body_does_not_crash_without_recursion_limit(first: str) -> None:
    command = [sys.executable, "-c", first + UNLIMITED]
    output = subprocess.run(command, check=True, capture_output=True, encoding="utf-8", timeout=60).stdout
    deep = "body: nested too deeply"
    assert output.splitlines() == [deep, deep, "body: not JSON"]
