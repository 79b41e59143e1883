"""Orphan files: their format, full disks and imports."""

import asyncio
import errno
import json
import os
import stat
from pathlib import Path

import pytest
from attrs import evolve

from loanasync.ledger import Entry, MemoryLedger, Settlement, State, Subject, import_orphans, resolve
from loanasync.ledger.model import FORMAT
from loanasync.ledger.orphans import Orphan, orphan_files, write_orphan
from support.settlements import REFUSAL, settle

SUBJECT = Subject(customer="anna", order="spring", order_token="1")
APPROVED = Settlement(state=State.APPROVED, status=201, body=b'{"approved":true}')
ORPHAN = Orphan(ledger="1", key="k", token="t", payload="p", settlement=APPROVED, subject=SUBJECT)


async def of(ledger: MemoryLedger) -> Orphan:
    """Return the orphan of a ledger."""
    return evolve(ORPHAN, ledger=(await ledger.header()).id)


async def stored(ledger: MemoryLedger) -> Entry:
    entry = await ledger.get("k")
    assert entry is not None
    return entry


def test_orphan_keeps_subject_and_source() -> None:
    settlement = Settlement(state=State.REFUSED, note="ticket 17", source="person")
    for orphan in (ORPHAN, evolve(ORPHAN, settlement=settlement, subject=Subject())):
        assert json.loads(orphan.as_json())["format"] == FORMAT
        assert Orphan.from_json(orphan.as_json()) == orphan


def test_orphan_on_a_full_disk_is_written_to_the_next_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file and its folder are synced before `write_orphan` returns."""
    full, free, file = tmp_path / "full", tmp_path / "free", tmp_path / "file"
    file.write_text("in the way")
    sync = os.fsync
    synced: list[bool] = []

    def fsync(handle: int) -> None:
        if any(full.iterdir()) and not free.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)
        synced.append(stat.S_ISDIR(os.fstat(handle).st_mode))

    monkeypatch.setattr("os.fsync", fsync)
    written = write_orphan([Path("\0"), file, full, free], ORPHAN)
    assert written is not None
    assert (written.parent, list(full.iterdir())) == (free, [])
    assert Orphan.from_json(written.read_bytes()) == ORPHAN
    assert synced == [False, True]


def test_orphan_without_a_writable_folder_returns_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("tempfile.mkstemp", forbidden)  # root ignores the permissions of a folder
    assert write_orphan([tmp_path / "folder"], ORPHAN) is None
    assert write_orphan([], ORPHAN) is None


def test_orphan_whose_part_file_was_imported_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed = Path.replace
    taken: list[Path] = []

    def replace(part: Path, target: Path) -> Path:
        if not taken:
            taken.append(part)
            part.unlink()
        return renamed(part, target)

    monkeypatch.setattr(Path, "replace", replace)
    file = write_orphan([tmp_path], ORPHAN)
    assert taken[0].name.startswith(f"{ORPHAN.key}-"), "an import of this entry finds it"
    assert file is not None
    assert list(tmp_path.iterdir()) == [file]
    assert Orphan.from_json(file.read_bytes()) == ORPHAN


async def test_import_leaves_invalid_foreign_and_contradicting_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = MemoryLedger()
    orphan = await of(ledger)
    whole = orphan.as_json()
    members = json.loads(whole)

    def other(**changes: object) -> bytes:
        return json.dumps({**members, "settlement": {**members["settlement"], **changes}}).encode()

    invalid = {
        **{
            f"{number}.json": json.dumps({**members, "format": number}).encode()
            for number in (0, 1, FORMAT - 1, str(FORMAT))
        },
        "empty.json": b"{}",
        "list.json": b"[]",
        "cut.json": whole[:-20],
        "cut.part": whole[:100],
        "inflight.json": other(state="inflight"),
        "body.json": other(body="?"),
    }
    await settle(ledger, REFUSAL, key="refused")
    contradicting = evolve(orphan, key="refused").as_json()
    foreign = evolve(orphan, ledger="another").as_json()
    kept = {**invalid, "contradicting.json": contradicting, "foreign.json": foreign}
    # A writer that was killed before it renamed the file leaves a complete .part file.
    for name, content in {**kept, "whole.part": whole}.items():
        (tmp_path / name).write_bytes(content)
    assert await import_orphans(ledger, tmp_path) == 1
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == kept
    for name in invalid:
        assert f"{name} was not imported: it is incomplete, or not an orphan file of this" in caplog.text
    assert "foreign.json" not in caplog.text
    assert "contradicts the ledger, where the entry is refused" in caplog.text
    [entry] = await ledger.entries_of("anna")
    assert (entry.state, entry.body, entry.order) == (State.APPROVED, APPROVED.body, "spring")


async def test_import_keeps_a_response_that_the_ledger_lacks(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    unknown = await settle(ledger, Settlement(state=State.UNKNOWN))
    entry = await resolve(ledger, unknown, State.APPROVED, "by telephone")
    await asyncio.to_thread(write_orphan, [tmp_path], await of(ledger))
    assert await import_orphans(ledger, tmp_path) == 0
    assert len(list(tmp_path.iterdir())) == 1
    await resolve(ledger, entry, State.UNKNOWN, "the response is in a file")
    assert await import_orphans(ledger, tmp_path) == 1
    found = await stored(ledger)
    assert (found.body, found.source) == (APPROVED.body, "service")
    assert list(tmp_path.iterdir()) == []


async def test_import_writes_an_unclassified_response_to_an_unknown_entry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another claim has taken over the entry meanwhile, and did not receive a response."""
    ledger = MemoryLedger()
    await resolve(ledger, await settle(ledger, Settlement(state=State.LOST)), State.UNKNOWN, "ticket 17")
    for body in (b"one", b"other"):
        kept = Settlement(state=State.UNKNOWN, status=201, body=body)
        orphan = evolve(await of(ledger), token=f"{body!r}", settlement=kept)
        await asyncio.to_thread(write_orphan, [tmp_path], orphan)
        assert await import_orphans(ledger, tmp_path) == (body == b"one")
        found = await stored(ledger)
        assert (found.state, found.status, found.body) == (State.UNKNOWN, 201, b"one")
        assert found.history[-1].note == "ticket 17"
    assert len(list(tmp_path.iterdir())) == 1
    assert "the ledger has another response: read both" in caplog.text
    [file] = tmp_path.iterdir()
    draft = file.rename(file.with_suffix(".part"))  # of a writer that was killed
    assert await asyncio.to_thread(orphan_files, tmp_path, "k") == [draft]


@pytest.mark.parametrize("state", [State.RELEASED, State.LOST])
async def test_import_of_another_outcome_does_not_change_an_unknown_entry(
    tmp_path: Path, state: State
) -> None:
    """The later request may have been evaluated."""
    ledger = MemoryLedger()
    await settle(ledger, Settlement(state=State.UNKNOWN))
    earlier = Settlement(state=state, status=404, body=b"{}")
    orphan = evolve(await of(ledger), token="earlier", settlement=earlier)
    await asyncio.to_thread(write_orphan, [tmp_path], orphan)
    assert await import_orphans(ledger, tmp_path) == 0
    found = await stored(ledger)
    assert (found.state, found.body) == (State.UNKNOWN, None)


async def test_import_writes_an_unclassified_response_to_an_expired_claim(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    await ledger.claim("k", token="later", payload="p", lease=0.0)
    kept = Settlement(state=State.UNKNOWN, status=201, body=b"one")
    await asyncio.to_thread(write_orphan, [tmp_path], evolve(await of(ledger), settlement=kept))
    assert await import_orphans(ledger, tmp_path) == 1
    found = await stored(ledger)
    assert (found.state, found.body) == (State.UNKNOWN, b"one")
