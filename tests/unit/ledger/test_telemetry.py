"""Ledger attributes of spans and metrics, which contain no digest, no body and no personal data."""

import asyncio
import pickle
import traceback
from pathlib import Path

import pytest

import loanasync
from loanasync import (
    DecisionNotRecordedError,
    LedgerError,
    LedgerUnavailableError,
    PayloadMismatchError,
    Timeout,
)
from loanasync.ledger import MemoryLedger, SqliteLedger, State
from loanasync.testing import TelemetryRecorder, approved, refused, timed_out
from support.builders import FISCAL_CODE, approval_request
from support.ledger_clients import FailingLedger, Shop, held_response


def recorded(*steps: object, **options: object) -> tuple[Shop, TelemetryRecorder]:
    recorder = TelemetryRecorder()
    providers = {"telemetry": recorder.telemetry}
    return Shop(*steps, options=providers, **options), recorder  # type: ignore[arg-type]


def ledger_results(recorder: TelemetryRecorder) -> list[tuple[object, object]]:
    spans = [recorder.attributes(span) for span in recorder.spans("loanasync.approve")]
    return [(span["loanasync.ledger"], span.get("loanasync.outcome")) for span in spans]


def shown_by(error: LedgerError) -> list[str]:
    """Return the texts of an error, and the local variables of our frames in its traceback."""
    stack = traceback.TracebackException.from_exception(error, capture_locals=True).stack
    frames = [frame.locals for frame in stack if Path(frame.filename).is_relative_to(PACKAGE)]
    assert len(frames) > 1
    return [str(error), repr(error), repr(error.args), *map(repr, frames)]


def broken() -> None:
    raise OSError("no ledger")


async def test_span_has_the_result_of_the_ledger() -> None:
    step, arrived, go = held_response(approved())
    shop, recorder = recorded(step)
    call = asyncio.create_task(shop.approve())
    await arrived.wait()
    joining = asyncio.create_task(shop.approve())
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(call, joining)
    await shop.approve()
    assert sorted(ledger_results(recorder)) == [
        ("claimed", "approved"),
        ("hit", "approved"),
        ("joined", "approved"),
    ]
    assert recorder.metric("loanasync.decisions", {"loanasync.outcome": "approved"}).sum == 1
    (attempt,) = [span for span in recorder.spans() if span.name.startswith("POST")]
    assert attempt.parent is not None
    calls = {span.context and span.context.span_id: span for span in recorder.spans("loanasync.approve")}
    assert recorder.attributes(calls[attempt.parent.span_id])["loanasync.ledger"] == "claimed"


async def test_span_has_the_reason_why_nothing_was_sent() -> None:
    ledger = FailingLedger()
    shop, recorder = recorded(timed_out(), ledger=ledger)
    await shop.result()
    await shop.result()
    await shop.result(request=approval_request(amount=99_000))
    ledger.faults["claim"] = broken
    await shop.result()
    assert ledger_results(recorder) == [
        ("claimed", "unknown"),
        ("blocked", "unknown"),
        ("blocked", "unknown"),
        ("unavailable", "not_sent"),
    ]
    assert recorder.metric("loanasync.decisions", {"loanasync.outcome": "unknown"}).sum == 1


async def test_unrecorded_decision_is_counted_as_a_decision(tmp_path: object) -> None:
    shop, recorder = recorded(refused(), ledger=FailingLedger(settle=broken), orphan_folder=tmp_path)
    assert isinstance(await shop.result(), DecisionNotRecordedError)
    assert ledger_results(recorder) == [("claimed", "refused")]
    assert recorder.metric("loanasync.decisions", {"loanasync.outcome": "refused"}).sum == 1


async def test_span_without_ledger_has_no_ledger_attributes() -> None:
    recorder = TelemetryRecorder()
    shop = Shop(approved())
    client = shop.new_client(telemetry=recorder.telemetry, ledger=None, ledger_policy=None)
    await shop.approve(client)
    (span,) = recorder.spans("loanasync.approve")
    assert "loanasync.ledger" not in recorder.attributes(span)


PACKAGE = Path(loanasync.__file__).parent
PERSONAL = ["TSTXYZ", "anna@example.com", "Anna", "Prova", "3330000", "Via ", "secret-token", "IT60X"]
SECRET = b"0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("state", [*State, None])
async def test_ledger_errors_and_spans_have_no_personal_data(state: State | None, tmp_path: object) -> None:
    request = approval_request(iban="IT60X0542811101000000123456")
    shop, recorder = recorded(
        approved(),
        ledger=SqliteLedger(f"{tmp_path}/decisions.db"),
        orphan_folder=f"{tmp_path}/orphans",
        key=SECRET,
    )
    secret = shop.new_client(auth_token="secret-token")
    if state is None:
        decision = await shop.approve(secret, request=request)
        assert decision.email == "anna@example.com"  # the service echoes it
    else:
        shop.options["auth_token"] = "secret-token"
        await shop.put(state, request=request)
    wait = Timeout(total=0.05, attempt=0.04, connect=0.01) if state is State.INFLIGHT else None
    error = await shop.result(secret, request=request, timeout=wait)
    assert isinstance(error, LedgerError) == (
        state in {State.INFLIGHT, State.UNKNOWN, State.LOST, State.HELD}
    )
    texts = [repr(shop.ledger), *(repr(entry) for entry in await shop.entries())]
    texts += [repr(recorder.attributes(span)) for span in recorder.spans()]
    if isinstance(error, LedgerError):
        texts += [*shown_by(error), repr(pickle.dumps(error))]
    files = [entry.body or b"" for entry in await shop.entries()]
    await shop.ledger.aclose()
    with open(f"{tmp_path}/decisions.db", "rb") as file:  # noqa: ASYNC230, PTH123  (nothing else goes on)
        files.append(file.read())
    for mark in [*PERSONAL, SECRET.decode()]:
        assert mark not in "".join(texts)
        assert mark.encode() not in b"".join(files)


@pytest.mark.parametrize("end", ["claim", "settle", "mismatch"])
async def test_ledger_error_shows_no_person_and_no_token(end: str, tmp_path: Path) -> None:
    request = approval_request(iban="IT60X0542811101000000123456")
    shop = Shop(
        approved(), approved(), orphan_folder=tmp_path, options={"auth_token": "secret-token"}, key=SECRET
    )
    if end == "mismatch":
        await shop.approve(request=request)
        error = await shop.result(request=approval_request(iban="IT60X0542811101000000654321"))
    else:
        ledger = FailingLedger(**{end: broken})
        error = await shop.result(shop.new_client(ledger=ledger), request=request)
    kinds: dict[str, type[LedgerError]] = {
        "claim": LedgerUnavailableError,
        "settle": DecisionNotRecordedError,
        "mismatch": PayloadMismatchError,
    }
    assert isinstance(error, kinds[end])
    texts = "".join(shown_by(error))
    for mark in [*PERSONAL, SECRET.decode()]:
        assert mark not in texts


async def test_keep_body_stores_the_whole_body() -> None:
    shop = Shop(approved(), keep="body")
    await shop.approve()
    body = (await shop.entry()).body
    assert body is not None
    assert b"anna@example.com" in body
    assert FISCAL_CODE.encode() in body
    assert isinstance(shop.ledger, MemoryLedger)
    assert "anna" not in repr(await shop.entry())
