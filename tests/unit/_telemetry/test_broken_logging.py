"""Log handlers and filters that raise errors lose no decision and block no later call.

The simulation makes them fail in many schedules. Here, each warning of a failing ledger is reached once.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loanasync import Approved, ConnectError, DecisionNotRecordedError, ReadTimeoutError
from loanasync.ledger import MemoryLedger, import_orphans
from loanasync.testing import ScriptedResponse, approved, not_connected, timed_out
from support.ledger_clients import FailingLedger, ResolvedLedger, Shop, broken, held_response, orphans_in
from support.memory_clients import cancelled

pytestmark = pytest.mark.usefixtures("broken_logging")


@pytest.mark.parametrize("is_writable", [True, False])
@pytest.mark.parametrize("settle", [None, broken], ids=["ledger", "failing ledger"])
async def test_late_response_is_kept(
    settle: Callable[[], Any] | None, tmp_path: Path, *, is_writable: bool
) -> None:
    step, arrived, go = held_response(approved())
    folder, ledger = tmp_path / "orphans", FailingLedger(**({"settle": settle} if settle else {}))
    if not is_writable:
        folder.write_text("in the way")
    shop = Shop(step, ledger=ledger, orphan_folder=folder)
    calls = [asyncio.create_task(shop.approve()) for _ in range(2)]
    await arrived.wait()
    for call in calls:
        await cancelled(call)
    go.set()
    await shop.result()  # waits until the flight has ended
    ledger.faults.clear()
    assert isinstance(await shop.approve(), Approved)
    assert len(shop.script.sent) == 1
    assert orphans_in(folder) == (is_writable and settle is not None)


@pytest.mark.parametrize(
    ("step", "ledger", "expected"),
    [
        (approved(), ResolvedLedger, Approved),
        (approved(), lambda: FailingLedger(settle=broken), DecisionNotRecordedError),
        (not_connected(), lambda: FailingLedger(settle=broken), ConnectError),
        (timed_out(), lambda: FailingLedger(settle=broken), ReadTimeoutError),
    ],
    ids=["contradicted", "decided", "released", "unknown"],
)
async def test_result_is_that_of_the_call(
    step: ScriptedResponse, ledger: Callable[[], MemoryLedger], expected: type, tmp_path: Path
) -> None:
    shop = Shop(step, ledger=ledger(), orphan_folder=tmp_path)
    result = await shop.result()
    assert type(result) is expected
    assert orphans_in(tmp_path) == (expected in (Approved, DecisionNotRecordedError))


async def test_policy_that_warns_of_a_folder_keeps_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary folder belongs to another user, so the orphan file is in the user's folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "loanasync-orphans").mkdir()
    other_user = (tmp_path / "loanasync-orphans").stat().st_uid + 1
    monkeypatch.setattr(os, "geteuid", lambda: other_user, raising=False)
    error = await Shop(approved(), ledger=FailingLedger(settle=broken)).result()
    assert isinstance(error, DecisionNotRecordedError)
    assert isinstance(error.decision, Approved)
    assert Path(str(error.file)).parent == tmp_path / "state" / "loanasync" / "orphans"


async def test_import_continues_after_a_file_that_it_reports(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.json").write_text("{}")
    assert await import_orphans(MemoryLedger(), tmp_path) == 0
