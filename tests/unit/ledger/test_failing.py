"""Failing ledgers: nothing is sent without a claim, and no decision is lost. Orphan files and encryption."""

import asyncio
import json
import os
import stat
from base64 import b64decode
from pathlib import Path
from typing import Any, NoReturn

import pytest
import redis
from cryptography.fernet import Fernet

from loanasync import (
    Approved,
    ConfigurationError,
    ConnectError,
    DecisionNotRecordedError,
    LedgerMismatchError,
    LedgerUnavailableError,
    LoanClient,
    OutcomeUnknownError,
    ReadTimeoutError,
    Refused,
)
from loanasync._protocol.messages import Response
from loanasync.ledger import (
    Entry,
    Ledger,
    LedgerPolicy,
    MemoryLedger,
    PostgresLedger,
    RedisLedger,
    SqliteLedger,
    State,
    import_orphans,
)
from loanasync.ledger.memory import MemoryStore
from loanasync.testing import approved, not_connected, refused, timed_out
from support.builders import FISCAL_CODE
from support.ledger_clients import FailingLedger, Shop, held_response


def broken() -> NoReturn:
    raise OSError(28, "No space left on device")


async def hanging() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("fault", [broken, hanging])
async def test_failing_claim_sends_nothing(fault: Any) -> None:
    shop = Shop(approved(), ledger=FailingLedger(claim=fault, settle=fault), patience=0.05)
    with pytest.raises(LedgerUnavailableError, match="request not sent") as caught:
        await shop.approve()
    assert caught.value.cause_type == ("OSError" if fault is broken else "TimeoutError")
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert shop.script.left == 1


class HangingMemoryLedger(MemoryLedger):
    async def claim(self, key: str, **_: Any) -> Entry:
        await hanging()
        raise AssertionError(key)


async def test_hanging_ledger_derived_from_the_memory_ledger_ends_in_time() -> None:
    shop = Shop(approved(), ledger=HangingMemoryLedger(), patience=0.05)
    with pytest.raises(LedgerUnavailableError, match="request not sent"):
        await asyncio.wait_for(shop.approve(), 10)
    assert shop.script.left == 1


def closed_meanwhile() -> None:
    None.read()  # type: ignore[attr-defined]


def wrong_arguments() -> None:
    closed_meanwhile(number=1)  # type: ignore[call-arg]


def interrupted() -> None:
    raise RuntimeError("the transport is closed")


@pytest.mark.parametrize("fault", [closed_meanwhile, wrong_arguments, interrupted])
async def test_any_exception_of_a_custom_ledger_means_unavailable(fault: Any) -> None:
    """It may concern one entry, or pass; an error of the configuration would stop all calls."""
    shop = Shop(approved(), ledger=FailingLedger(claim=fault))
    with pytest.raises(LedgerUnavailableError):
        await shop.approve()


async def test_option_that_the_driver_lacks_names_its_version() -> None:
    shop = Shop(approved(), ledger=RedisLedger("redis://shop:SECRET@127.0.0.1:1/0?driver=1", durable=False))
    expected = rf"redis {redis.__version__} has no option driver: .* pip install -U '\.\[redis\]'"
    with pytest.raises(ConfigurationError, match=expected) as caught:
        await shop.approve()
    assert "SECRET" not in str(caught.value)
    assert shop.script.left == 1


@pytest.mark.parametrize(("module", "extra"), [("redis.asyncio", "redis"), ("asyncpg", "postgres")])
async def test_driver_that_is_too_old_is_named(
    module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger: Ledger
    if extra == "redis":
        ledger, name = RedisLedger("redis://127.0.0.1:1/0"), "BlockingConnectionPool"
    else:
        ledger, name = PostgresLedger("postgresql://127.0.0.1:1/shop"), "connect"
    shop = Shop(approved(), ledger=ledger)
    monkeypatch.delattr(f"{module}.{name}")
    with pytest.raises(ConfigurationError, match=rf"does not suit \w+: .*'\.\[{extra}\]'"):
        await shop.approve()
    assert shop.script.left == 1


async def test_failing_lookup_sends_nothing() -> None:
    step, arrived, go = held_response(approved())
    ledger = FailingLedger(get=broken)
    shop = Shop(step, ledger=ledger, options={"max_concurrency": 1})
    call = asyncio.create_task(shop.approve())
    await arrived.wait()
    with pytest.raises(LedgerUnavailableError):
        await shop.approve(code="TSTXYZ00A00A000B")
    go.set()
    await call


async def test_claim_that_may_have_been_written_is_released() -> None:
    ledger = FailingLedger()

    async def written_and_then_lost() -> None:
        claims = [operation for operation in ledger.operations if operation == "claim"]
        if len(claims) == 1:
            del ledger.faults["claim"]
            await asyncio.Event().wait()

    ledger.faults["claim"] = written_and_then_lost
    shop = Shop(approved(), ledger=ledger, patience=0.05)
    assert isinstance(await shop.result(), LedgerUnavailableError)
    assert await shop.entries() == []
    assert isinstance(await shop.approve(), Approved)


async def test_file_that_is_not_a_ledger_is_named_in_the_error(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database, and long enough to be looked at as one" * 10)
    shop = Shop(approved(), ledger=SqliteLedger(file))
    with pytest.raises(LedgerMismatchError, match=f"{file.name} is damaged, truncated, or not"):
        await shop.approve()
    await shop.ledger.aclose()
    assert shop.script.left == 1


@pytest.mark.parametrize(("step", "kind"), [(approved(), Approved), (refused(), Refused)])
@pytest.mark.parametrize("fault", [broken, hanging])
async def test_unrecorded_decision_is_in_the_error_and_in_an_orphan_file(
    step: Any, kind: type, fault: Any, tmp_path: Path
) -> None:
    ledger = FailingLedger(settle=fault)
    shop = Shop(step, ledger=ledger, orphan_folder=tmp_path / "orphans", patience=0.05)
    error = await shop.result()
    assert isinstance(error, DecisionNotRecordedError)
    assert isinstance(error.decision, kind)
    assert error.outcome == ("approved" if kind is Approved else "refused")
    assert error.file is not None
    file = Path(error.file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert FISCAL_CODE not in file.read_text() + str(error) + repr(error)

    del ledger.faults["settle"]
    assert await import_orphans(ledger, tmp_path / "orphans") == 1
    assert list((tmp_path / "orphans").iterdir()) == []
    assert isinstance(await shop.approve(), kind)
    assert len(shop.script.sent) == 1
    assert await import_orphans(ledger, tmp_path / "orphans") == 0


async def test_orphan_file_is_synced_before_the_error_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    sync = os.fsync

    def watched(handle: int) -> None:
        sync(handle)
        synced.append(stat.S_ISDIR(os.fstat(handle).st_mode))

    monkeypatch.setattr("os.fsync", watched)
    shop = Shop(approved(), ledger=FailingLedger(settle=broken), orphan_folder=tmp_path / "orphans")
    await shop.result()
    assert synced == [False, True]  # the file, then its folder


def emptied_copy(ledger: Ledger) -> MemoryLedger:
    """Return a ledger with the header of another one, as after its entries were lost."""
    other = MemoryLedger()
    assert isinstance(other._store, MemoryStore)
    assert ledger.known_header is not None
    other._store._header = ledger.known_header
    return other


async def test_import_restores_the_decision_only_in_its_own_ledger(tmp_path: Path) -> None:
    shop = Shop(
        refused(), ledger=FailingLedger(settle=broken), orphan_folder=tmp_path, key=b"0123456789abcdef"
    )
    await shop.result()
    other = MemoryLedger()
    assert await import_orphans(other, tmp_path) == 0
    assert [entry async for entry in other.scan()] == []
    emptied = Shop(ledger=emptied_copy(shop.ledger))
    assert await import_orphans(emptied.ledger, tmp_path) == 1
    assert isinstance(await emptied.approve(), Refused)


async def test_incomplete_refusal_is_written_to_an_orphan_file(tmp_path: Path) -> None:
    ledger = FailingLedger(settle=broken)
    shop = Shop(
        Response(status=422, headers={}, body=b'{"approved": false, "am', fault="truncated"),
        ledger=ledger,
        orphan_folder=tmp_path,
    )
    error = await shop.result()
    assert isinstance(error, DecisionNotRecordedError)
    assert (type(error.decision), error.outcome) == (Refused, "refused")
    del ledger.faults["settle"]
    await import_orphans(ledger, tmp_path)
    assert (await shop.entry()).state is State.REFUSED


async def test_error_without_ledger_and_file_has_the_only_copy(tmp_path: Path) -> None:
    (tmp_path / "orphans").write_text("in the way")
    shop = Shop(approved(), ledger=FailingLedger(settle=broken), orphan_folder=tmp_path / "orphans")
    error = await shop.result()
    assert isinstance(error, DecisionNotRecordedError)
    assert error.file is None
    assert "the only copy" in str(error)
    assert isinstance(error.decision, Approved)


async def test_orphan_folders_are_the_users_and_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    shop = Shop(approved(), refused(), ledger=FailingLedger(settle=broken))
    first = await shop.result()
    (tmp_path / "state" / "loanasync" / "orphans").rename(tmp_path / "kept")
    (tmp_path / "state" / "loanasync" / "orphans").write_text("in the way")
    second = await shop.result(code="TSTXYZ00A00A000B")
    assert isinstance(first, DecisionNotRecordedError)
    assert isinstance(second, DecisionNotRecordedError)
    assert str(first.file).startswith(str(tmp_path / "state" / "loanasync" / "orphans"))
    assert str(second.file).startswith(str(tmp_path / "temporary"))
    shop.ledger.faults.clear()  # type: ignore[attr-defined]
    assert await import_orphans(shop.ledger) == 1
    assert LedgerPolicy(orphan_folder=tmp_path).orphan_folders == (tmp_path,)


async def test_concurrent_imports_import_every_file(tmp_path: Path) -> None:
    ledger = FailingLedger(settle=broken)
    for letter in "ABCDEFGH":
        await Shop(approved(), ledger=ledger, orphan_folder=tmp_path).result(code=f"TSTXYZ00A00A000{letter}")
    ledger.faults.clear()
    counts = await asyncio.gather(*(import_orphans(ledger, tmp_path) for _ in range(3)))
    assert sum(counts) >= 8  # two imports may both count one file
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has a folder for each user")
async def test_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    planted = tmp_path / "loanasync-orphans"
    ledger = FailingLedger(settle=broken)
    await Shop(approved(), ledger=ledger, orphan_folder=planted).result()
    ledger.faults.clear()
    (tmp_path / "state").write_text("in the way")
    other_user = os.geteuid() + 1
    monkeypatch.setattr("os.geteuid", lambda: other_user)
    assert await import_orphans(ledger) == 0
    error = await Shop(refused(), ledger=FailingLedger(settle=broken)).result()
    assert isinstance(error, DecisionNotRecordedError)
    assert error.file is None
    assert len(list(planted.iterdir())) == 1
    assert "loanasync-orphans belongs to another user" in caplog.text


async def test_import_leaves_invalid_and_contradicting_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = FailingLedger(settle=broken)
    await Shop(approved(), ledger=ledger, orphan_folder=tmp_path).result()
    (orphan,) = tmp_path.iterdir()
    members = json.loads(orphan.read_text())
    assert json.loads(b64decode(members["settlement"]["body"]))["approved"] is True

    def other(**changes: object) -> str:
        return json.dumps({**members, "settlement": {**members["settlement"], **changes}})

    for name, content in {
        "a.json": "{}",
        "b.json": "[]",
        "c.json": "no JSON",
        "d.json": json.dumps({**members, "format": 5}),
        "e.json": other(state="inflight"),
        "f.json": other(body="?"),
        "g.json": other(state="refused").replace(members["key"], "another"),
        "h.json": json.dumps({**members, "key": "another"}),
        "i.part": json.dumps(members),
    }.items():
        (tmp_path / name).write_text(content)
    ledger.faults.clear()
    assert await import_orphans(ledger, tmp_path) == 3, (
        "a complete .part file was written by a process that died"
    )
    assert {file.name for file in tmp_path.iterdir()} == {
        *("a.json", "b.json", "c.json", "d.json", "e.json", "f.json", "h.json")
    }
    assert "a.json was not imported: it is incomplete" in caplog.text
    assert "h.json was not imported: it contradicts the ledger, where the entry is refused" in caplog.text


async def test_unwritable_unknown_outcome_expires_with_its_lease(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop(timed_out(), ledger=FailingLedger(settle=broken))
    assert isinstance(await shop.result(), ReadTimeoutError)
    assert (await shop.entry()).state is State.INFLIGHT
    assert "until its lease expires" in caplog.text


async def test_loop_that_ends_during_settlement_writes_an_orphan_file(tmp_path: Path) -> None:
    ledger = FailingLedger(settle=hanging)
    shop = Shop(approved(), ledger=ledger, orphan_folder=tmp_path, patience=0.01)
    call = asyncio.create_task(shop.approve())
    while "settle" not in ledger.operations:
        await asyncio.wait({call}, timeout=0)
    assert shop.client._flights is not None
    (flight,) = shop.client._flights._in_flight.values()
    assert flight.task is not None
    flight.task.cancel()  # as asyncio.run() does at its end
    await asyncio.wait({flight.task, call})
    error = call.exception()
    assert isinstance(error, DecisionNotRecordedError)
    assert (type(error.decision), error.cause_type) == (Approved, "CancelledError")
    ledger.faults.clear()
    assert await import_orphans(ledger, tmp_path) == 1
    assert (await shop.entry()).state is State.APPROVED


async def test_loop_that_ends_during_the_claim_releases_it() -> None:
    class Slow(MemoryLedger):
        claimed = asyncio.Event()

        async def claim(self, key: str, **options: Any) -> Entry:
            await super().claim(key, **options)
            self.claimed.set()
            await hanging()
            raise NotImplementedError

    ledger = Slow()
    shop = Shop(approved(), ledger=ledger, patience=0.01)
    call = asyncio.create_task(shop.approve())
    await ledger.claimed.wait()
    assert shop.client._flights is not None
    (flight,) = shop.client._flights._in_flight.values()
    assert flight.task is not None
    call.cancel()
    flight.task.cancel()
    await asyncio.wait({flight.task, call})
    assert call.cancelled()
    assert (await shop.entry()).state is State.RELEASED
    assert shop.script.left == 1


class Rot13:
    """A cipher whose `decrypt` does not reverse `encrypt`."""

    def encrypt(self, data: bytes, /) -> bytes:
        return data

    def decrypt(self, token: bytes, /) -> bytes:
        return token[::-1]


class TestEncryption:
    """With ``encrypt``, bodies in the ledger and in orphan files are encrypted."""

    async def test_stored_body_is_encrypted_and_replayed(self, tmp_path: Path) -> None:
        file = tmp_path / "decisions.db"
        shop = Shop(approved(), ledger=SqliteLedger(file), encrypt=Fernet(Fernet.generate_key()))
        first = await shop.approve()
        assert isinstance(first, Approved)
        again = await shop.approve()
        assert isinstance(again, Approved)
        assert again.redirect_url == first.redirect_url
        await shop.ledger.aclose()
        assert str(first.redirect_url).encode() not in file.read_bytes()
        assert b"approved" in file.read_bytes()  # the state is not encrypted

    async def test_orphan_file_is_encrypted(self, tmp_path: Path) -> None:
        cipher = Fernet(Fernet.generate_key())
        shop = Shop(approved(), ledger=FailingLedger(settle=broken), orphan_folder=tmp_path, encrypt=cipher)
        await shop.result()
        (orphan,) = tmp_path.iterdir()
        body = b64decode(json.loads(orphan.read_text())["settlement"]["body"])
        assert b"redirectUrl" not in body
        assert b"redirectUrl" in cipher.decrypt(body)

    async def test_replay_with_another_cipher_key_sends_nothing(self) -> None:
        ledger = MemoryLedger()
        await Shop(approved(), ledger=ledger, encrypt=Fernet(Fernet.generate_key())).approve()
        shop = Shop(approved(), ledger=ledger, encrypt=Fernet(Fernet.generate_key()))
        with pytest.raises(LedgerMismatchError, match="has another cipher"):
            await shop.approve()
        assert shop.script.left == 1

    async def test_failing_cipher_returns_the_decision_and_stores_no_plain_text(self, tmp_path: Path) -> None:
        cipher = Fernet(Fernet.generate_key())
        shop = Shop(approved(), orphan_folder=tmp_path, encrypt=cipher)
        await shop.open_ledger()
        cipher.encrypt = lambda _: broken()  # type: ignore[method-assign, assignment]
        error = await shop.result()
        assert isinstance(error, DecisionNotRecordedError)
        assert (error.file, error.cause_type) == (None, "OSError")
        assert isinstance(error.decision, Approved)
        assert list(tmp_path.iterdir()) == []
        assert (await shop.entry()).state is State.INFLIGHT

    @pytest.mark.parametrize("cipher", [Rot13(), object()])
    def test_policy_with_a_broken_cipher_is_rejected(self, cipher: Any) -> None:
        with pytest.raises(ConfigurationError, match="encrypt"):
            LedgerPolicy(encrypt=cipher)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("keep", "all"), ("key", b"short"), ("key", "0123456789abcdef"), ("patience", 0)],
)
def test_policy_with_an_invalid_value_is_rejected(setting: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=setting):
        LedgerPolicy(**{setting: value})


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"ledger": object()}, "ledger"),
        ({"ledger": MemoryLedger(), "ledger_policy": object()}, "ledger_policy"),
        ({"ledger_policy": LedgerPolicy()}, "ledger"),
    ],
)
def test_client_with_an_invalid_ledger_is_rejected(options: Any, setting: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        LoanClient("https://loans.example.com", shop_id="s", auth_token="t", **options)
    assert caught.value.setting == setting


async def test_unknown_outcome_stays_unknown_while_the_ledger_is_down() -> None:
    ledger = FailingLedger()
    shop = Shop(timed_out(), approved(), ledger=ledger)
    await shop.result()
    ledger.faults["claim"] = broken
    assert isinstance(await shop.result(), LedgerUnavailableError)
    ledger.faults.clear()
    assert isinstance(await shop.result(), OutcomeUnknownError)
    assert shop.script.left == 1


async def test_aclose_with_a_cancelling_ledger_raises_nothing() -> None:
    """A ledger whose connection is closed raises CancelledError. A later call releases the claim."""

    def cancelled() -> NoReturn:
        raise asyncio.CancelledError

    ledger = FailingLedger(settle=cancelled)
    shop = Shop(not_connected(), ledger=ledger)
    assert isinstance(await shop.result(), ConnectError)
    await shop.client.aclose()
    assert [entry.state async for entry in ledger.scan()] == [State.INFLIGHT]
