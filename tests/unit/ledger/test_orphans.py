"""Orphan files: formats, permissions, full disks and imports."""

import asyncio
import errno
import json
import os
from pathlib import Path

import pytest
from attrs import evolve

from loanasync.ledger import (
    MemoryLedger,
    Settlement,
    State,
    Subject,
    import_orphans,
    resolve,
)
from loanasync.ledger.orphans import Orphan, write_orphan

SUBJECT = Subject(customer="anna", order="1", scope="spring")
APPROVED = Settlement(state=State.APPROVED, status=201, body=b'{"approved":true}')
ORPHAN = Orphan(ledger="1", key="k", token="t", payload="p", settlement=APPROVED, subject=SUBJECT)
FORMAT_1 = (
    b'{"format": 1, "key": "k", "token": "t", "payload": "p", "state": "approved", "note": "",'
    b' "status": 201, "body": "eyJhcHByb3ZlZCI6dHJ1ZX0=", "fault": null}'
)


async def of(ledger: MemoryLedger) -> Orphan:
    """Return the orphan of a ledger."""
    return evolve(ORPHAN, ledger=(await ledger.header()).id)


def test_orphan_keeps_subject_and_source() -> None:
    settlement = Settlement(state=State.REFUSED, note="ticket 17", source="person")
    for orphan in (ORPHAN, evolve(ORPHAN, settlement=settlement, subject=Subject())):
        assert json.loads(orphan.as_json())["format"] == 4
        assert Orphan.from_json(orphan.as_json()) == orphan


@pytest.mark.parametrize("number", [0, 5, "4", None])
def test_orphan_of_another_format_is_rejected(number: object) -> None:
    content = {**json.loads(ORPHAN.as_json()), "format": number}
    with pytest.raises(ValueError):  # noqa: PT011  (its text is not for people)
        Orphan.from_json(json.dumps(content).encode())


async def test_import_of_an_unknown_key_writes_the_subject(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    await asyncio.to_thread(write_orphan, [tmp_path], await of(ledger))
    assert await import_orphans(ledger, tmp_path) == 1
    (entry,) = await ledger.find(customer="anna", order="1")
    assert (entry.state, entry.body, entry.scope) == (State.APPROVED, APPROVED.body, "spring")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ledger", ["", "another"])
async def test_import_of_another_ledgers_orphan_keeps_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ledger: str
) -> None:
    file = await asyncio.to_thread(write_orphan, [tmp_path], evolve(ORPHAN, ledger=ledger))
    assert await import_orphans(MemoryLedger(), tmp_path) == 0
    assert list(tmp_path.iterdir()) == [file]
    assert "it belongs to another ledger" in caplog.text


@pytest.mark.parametrize("number", [1, 2])
async def test_import_of_an_earlier_format_keeps_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    ledger, file = MemoryLedger(), tmp_path / "old.json"
    file.write_bytes(FORMAT_1.replace(b'"format": 1', f'"format": {number}'.encode()))
    assert await import_orphans(ledger, tmp_path) == 0
    assert await ledger.get("k") is None
    assert file.exists()
    assert "old.json was not imported: it has an earlier format" in caplog.text


async def test_import_keeps_a_response_that_the_ledger_lacks(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    unknown = await ledger.claim("k", token="t", payload="p", lease=0.0)
    unknown = (await ledger.get("k")) or unknown
    entry = await resolve(ledger, unknown, State.APPROVED, "by telephone")
    await asyncio.to_thread(write_orphan, [tmp_path], await of(ledger))
    assert await import_orphans(ledger, tmp_path) == 0
    assert len(list(tmp_path.iterdir())) == 1
    await resolve(ledger, entry, State.UNKNOWN, "the response is in a file")
    assert await import_orphans(ledger, tmp_path) == 1
    found = await ledger.get("k")
    assert found is not None
    assert (found.body, found.source) == (APPROVED.body, "service")
    assert list(tmp_path.iterdir()) == []


def test_orphan_on_a_full_disk_is_written_to_the_next_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, free = tmp_path / "full", tmp_path / "free"
    synced = os.fsync

    def fsync(handle: int) -> None:
        if any(full.iterdir()) and not free.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(handle)

    monkeypatch.setattr("os.fsync", fsync)
    file = write_orphan([full, free], ORPHAN)
    assert file is not None
    assert (file.parent, list(full.iterdir())) == (free, [])
    assert Orphan.from_json(file.read_bytes()) == ORPHAN


def test_orphan_without_a_writable_folder_returns_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")

    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("tempfile.mkstemp", forbidden)  # root ignores the permissions of a folder
    assert write_orphan([tmp_path / "file", tmp_path / "folder", Path("\0")], ORPHAN) is None
    assert write_orphan([], ORPHAN) is None


@pytest.mark.skipif(os.name != "posix", reason="rights of POSIX")
def test_orphan_file_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    file = write_orphan([tmp_path / "new"], ORPHAN)
    assert file is not None
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


async def test_import_leaves_and_logs_a_corrupt_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut, complete = (tmp_path / name for name in ("1-cut.json", "2-whole.json"))
    ledger = MemoryLedger()
    cut.write_bytes(ORPHAN.as_json()[:-20])
    complete.write_bytes((await of(ledger)).as_json())
    assert await import_orphans(ledger, tmp_path) == 1
    assert list(tmp_path.iterdir()) == [cut]
    assert "1-cut.json was not imported: it is incomplete, or not an orphan file" in caplog.text


async def test_import_after_a_killed_writer_reads_complete_files(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    content = (await of(ledger)).as_json()
    (tmp_path / "1.part").write_bytes(content)  # killed before it renamed the file
    (tmp_path / "2.part").write_bytes(content[:100])
    assert await import_orphans(ledger, tmp_path) == 1
    assert [entry.key async for entry in ledger.scan(State.APPROVED)] == ["k"]
    assert [file.name for file in tmp_path.iterdir()] == ["2.part"]


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
    assert file is not None
    assert list(tmp_path.iterdir()) == [file]
    assert Orphan.from_json(file.read_bytes()) == ORPHAN
