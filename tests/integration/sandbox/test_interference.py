"""Files, rules and customers that are changed while the sandbox serves requests."""

import os
import sys
import threading
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError

import aiohttp
import pytest

from loanasync.sandbox import Sandbox, SandboxProcess
from support.raw_shop import CODE, Raw

OTHER = "TSTXYZ00A00A000B"
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be removed there")


def remove_files(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


@POSIX
@pytest.mark.parametrize("replaced", [False, True])
async def test_removed_state_file_is_rewritten(tmp_path: Path, *, replaced: bool) -> None:
    state = tmp_path / "shop.sqlite"
    async with aiohttp.ClientSession() as session:
        async with Sandbox(state=state) as sandbox:
            raw = Raw(sandbox, session)
            await raw.create()
            assert (await raw.approve())[0] == 201
            remove_files(tmp_path)
            if replaced:
                async with Sandbox(state=state):
                    pass
            assert (await raw("POST", "", {"fiscalCode": OTHER}))[0] == 201
        async with Sandbox(state=state) as sandbox:
            assert list(sandbox.snapshot()) == [CODE, OTHER]
            response = (await Raw(sandbox, session).approve())[1]
            assert response["errors"]["domain"] == ["User already evaluated for approval"]


@POSIX
async def test_unwritable_state_file_fails_the_call(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    async with aiohttp.ClientSession() as session, Sandbox(state=folder / "shop.sqlite") as sandbox:
        raw = Raw(sandbox, session)
        await raw.create()
        remove_files(folder)
        folder.rmdir()
        for _ in range(2):
            assert (await raw("POST", f"/{CODE}", raw.body(), decoded=False))[0] >= 400
        folder.mkdir()
        await raw("POST", f"/{CODE}/documents", {})
        kept = sandbox.snapshot()
    async with Sandbox(state=folder / "shop.sqlite") as sandbox:
        assert sandbox.snapshot() == kept
        assert '"documents": true' in kept[CODE]


async def test_state_file_path_survives_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    async with aiohttp.ClientSession() as session, Sandbox(state="shop.sqlite") as sandbox:
        monkeypatch.chdir(tmp_path / "elsewhere")
        await Raw(sandbox, session).create()
    assert os.listdir(tmp_path / "elsewhere") == []  # noqa: PTH208  (a list to compare)


def post(url: str, data: bytes, token: str = "") -> int:
    request = urllib.request.Request(url, data, {"X-Auth-Token": token})  # noqa: S310  (a local URL)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310  (a local URL)
            return int(response.status)
    except HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize(
    ("path", "data", "status"),
    [
        ("/_sandbox/faults", b"rule=500", 204),
        ("/_sandbox/faults/clear", b"", 204),
        ("/_sandbox/reset", b"", 204),
        ("/api/shops/sandbox-shop/requests", b"{}", 403),
    ],
)
def test_reset_waits_for_the_lock_of_another_thread(path: str, data: bytes, status: int) -> None:
    """Changes in one thread do not overwrite changes in another one."""
    with Sandbox.in_thread() as sandbox, ThreadPoolExecutor(1) as pool:
        with sandbox._engine.lock:
            future: Future[int] = pool.submit(post, sandbox.base_url + path, data)
            with pytest.raises(TimeoutError):
                future.result(0.3)
        assert future.result(30) == status


def test_concurrent_resets_leave_a_working_sandbox(tmp_path: Path) -> None:
    """Two clients send requests during resets: all responses are regular and no call hangs."""
    with Sandbox.in_thread(state=tmp_path / "shop.sqlite") as sandbox:
        url = f"{sandbox.base_url}/api/shops/sandbox-shop/requests"
        ended = threading.Event()

        def reset() -> None:
            while not ended.is_set():
                sandbox.reset()

        def send_requests(code: str) -> set[int]:
            body = b'{"fiscalCode": "%s"}' % code.encode()
            paths = (("", body), (f"/{code}/documents", b"{}")) * 40
            return {post(url + path, data, "sandbox-token") for path, data in paths}

        with ThreadPoolExecutor(3) as pool:
            resetting = pool.submit(reset)
            futures = [pool.submit(send_requests, code) for code in (CODE, OTHER)]
            try:
                found = set().union(*(each.result(60) for each in futures))
            finally:
                ended.set()
            resetting.result(30)
        assert found <= {201, 400, 500}, "a call that was reset while waiting is a 500"
        sandbox.reset()
        assert (len(sandbox.journal), sandbox.snapshot(), sandbox.findings) == (0, {}, [])
        assert post(url, b'{"fiscalCode": "%s"}' % CODE.encode(), "sandbox-token") == 201


def test_process_that_is_not_running_raises() -> None:
    process = SandboxProcess({"journal": 0})
    with pytest.raises(RuntimeError, match=r"not running: use `with Sandbox.subprocess\(\)`"):
        process.calls()
    with process:
        with pytest.raises(RuntimeError, match="the sandbox process is already running at http://"):
            process.__enter__()
        with pytest.raises(ValueError, match="the journal is switched off"):
            process.calls()
        process.kill()
        with pytest.raises(RuntimeError, match="is not running"):
            process.reset()


def test_process_calls_accept_python_values() -> None:
    with Sandbox.subprocess() as process:
        url = f"{process.base_url}/api/shops/sandbox-shop/requests"
        assert post(url, b"{}") == 403
        assert len(process.calls(status=403, number=1)) == len(process.calls(evaluated=False)) == 1
        assert process.calls(status=None) == []


async def test_journal_switched_off_during_a_run_raises(raw: Raw) -> None:
    raw.sandbox.journal.on = False
    for method in (raw.sandbox.journal.calls, raw.sandbox.journal.to_jsonl):
        with pytest.raises(RuntimeError, match="the journal is switched off"):
            method(operation="approve")


@pytest.mark.parametrize("tag", ["approved.nouser", "already.refused", "forbidden.approved.500after"])
async def test_tag_with_a_decision_and_an_error_is_400(raw: Raw, tag: str) -> None:
    await raw.create()
    status, body = await raw.approve(email=f"a+{tag}@example.com")
    assert (status, "exclude each other" in str(body)) == (400, True)
