"""Unclassified responses that arrive after another claim has taken over the entry."""

import asyncio
import json
from pathlib import Path

import pytest
from attrs import frozen

from loanasync import Approved, RetryPolicy
from loanasync.ledger import MemoryLedger, Settlement, State, resolve
from loanasync.testing import approved, response
from support.builders import FISCAL_CODE
from support.ledger_clients import Shop, held_response

ANOTHER = b'{"approved": true, "fiscalCode": "TSTXYZ99T99T999T"}'


async def test_guard_late_response_of_lost_claim_becomes_an_orphan(tmp_path: Path) -> None:
    decision, arrived, go = held_response(response(201, ANOTHER))
    ledger = MemoryLedger()
    shop = Shop(
        decision,
        ledger=ledger,
        orphan_folder=tmp_path,
        keep="body",
        options={"retry": RetryPolicy(attempts=1)},
    )
    call = asyncio.create_task(shop.result(code=FISCAL_CODE))
    await arrived.wait()
    entry = await shop.entry()
    unknown = Settlement(state=State.UNKNOWN, note="the lease expired")
    await ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=unknown)
    await ledger.claim(entry.key, token="another's", payload=entry.payload, lease=60, over=entry.token)
    go.set()
    error = await call
    assert getattr(error, "outcome", None) == "unknown"
    [file] = tmp_path.glob("*.json")
    assert json.loads(file.read_bytes())["settlement"]["state"] == "unknown"


@pytest.mark.parametrize("state", [State.APPROVED, State.REFUSED])
async def test_guard_decision_after_a_persons_becomes_an_orphan(state: State, tmp_path: Path) -> None:
    decision, arrived, go = held_response(approved())
    shop = Shop(decision, orphan_folder=tmp_path)
    call = asyncio.create_task(shop.approve())
    await arrived.wait()
    entry = await shop.entry()
    unknown = Settlement(state=State.UNKNOWN, note="the lease expired")
    entry = await shop.ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=unknown)
    await resolve(shop.ledger, entry, state, "by telephone")
    go.set()
    assert isinstance(await call, Approved)
    [file] = tmp_path.glob("*.json")
    assert json.loads(file.read_bytes())["settlement"]["body"]


@frozen
class Inverting:
    """A cipher whose output is not text."""

    def encrypt(self, body: bytes) -> bytes:
        return bytes(each ^ 0xA5 for each in body)

    decrypt = encrypt


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b'{"approved": tr'])
async def test_replay_of_an_encrypted_unclassified_response(body: bytes) -> None:
    shop = Shop(response(502, body), keep="body", encrypt=Inverting())
    await shop.result()
    await resolve(shop.ledger, await shop.entry(), State.APPROVED, "by telephone")
    decision = await shop.approve()
    assert isinstance(decision, Approved)
    assert decision.meta.unread == ("body",)
