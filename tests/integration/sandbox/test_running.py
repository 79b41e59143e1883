"""The three ways to run a sandbox, and its safety checks."""

import asyncio
import gc
import json
import os
import re
import signal
import socket
import threading
import urllib.error
import urllib.request
import warnings

import pytest

from loanasync import Refused, UnexpectedStatusError
from loanasync.sandbox import Readings, Sandbox, serve
from support.builders import FISCAL_CODE, approval_request
from support.raw_shop import BODY, CODE, Raw


def send(base_url: str, method: str, path: str, body: object) -> tuple[int, str]:
    """Send a request with a blocking client."""
    request = urllib.request.Request(  # noqa: S310  (a local URL)
        f"{base_url}/api/shops/sandbox-shop/requests{path}",
        data=json.dumps(body).encode(),
        headers={"X-Auth-Token": "sandbox-token", "Content-Type": "application/json"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request) as response:  # noqa: S310  (a local URL)
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_in_thread_serves_blocking_clients_and_several_loops() -> None:
    before = threading.active_count()
    with Sandbox.in_thread(dialect="street_number") as sandbox:
        assert send(sandbox.base_url, "POST", "", {"fiscalCode": CODE})[0] == 201

        async def refused() -> object:
            async with sandbox.client() as client:
                return await client.approve(FISCAL_CODE, approval_request(email="a+refused@example.com"))

        assert FISCAL_CODE == CODE
        assert isinstance(asyncio.run(refused()), Refused)
        sandbox.on(operation="approve").respond(503)
        assert send(sandbox.base_url, "POST", f"/{CODE}", BODY)[0] == 503
        assert [entry.status for entry in sandbox.journal] == [201, 422, 503]
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="the sandbox is not running"):
        _ = sandbox.base_url


def test_repr_and_notebook_output_lead_to_the_inspector() -> None:
    stopped = Sandbox()
    assert repr(stopped) == "<Sandbox that is not running>"
    assert stopped._repr_html_() == "&lt;Sandbox that is not running&gt;"
    with Sandbox.in_thread() as sandbox:
        assert send(sandbox.base_url, "POST", "", {"fiscalCode": CODE})[0] == 201
        shown = sandbox._repr_html_()
        [url] = re.findall(r'<a href="(\S+)" target="_blank">open the inspector</a>', shown)
        assert repr(sandbox) == f"<Sandbox at {sandbox.base_url}, inspector: {url}>"
        with urllib.request.urlopen(url) as page:  # noqa: S310  (a local URL)
            assert (page.status, page.headers.get_content_type()) == (200, "text/html")
            assert "/_sandbox/journal.jsonl" in page.read().decode()
        for output in (shown, repr(sandbox)):
            assert CODE not in output
            assert "sandbox-token" not in output
    assert repr(sandbox) == "<Sandbox that is not running>"


def test_in_thread_start_failure_is_raised_in_the_caller() -> None:
    before = threading.active_count()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        running = Sandbox.in_thread(port=taken.getsockname()[1])
        with pytest.raises(OSError, match="address already in use"):
            running.__enter__()
    assert threading.active_count() == before


def test_hanging_call_does_not_delay_the_stop() -> None:
    with socket.socket() as hanging, Sandbox.in_thread(faults=["hang"]) as sandbox:
        hanging.connect(("127.0.0.1", int(sandbox.base_url.rpartition(":")[2])))
        sent = b'{"fiscalCode": "%s"}' % CODE.encode()
        hanging.sendall(
            b"POST /api/shops/sandbox-shop/requests HTTP/1.1\r\nHost: x\r\n"
            b"X-Auth-Token: sandbox-token\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(sent), sent)
        )
        assert sandbox.journal.wait(fault="hangbefore")[0].status is None
        hanging.settimeout(0)
        with pytest.raises(BlockingIOError):
            hanging.recv(1)


async def test_subprocess_takes_the_options_of_a_sandbox() -> None:
    options = {"shop_id": "my-shop", "auth_token": "my-token", "faults": ["create_request=503"], "seed": 3}
    with Sandbox.subprocess(**options, readings=Readings(refusal="201", dates="time")) as process:
        assert process.pid > 0
        async with process.client() as client:
            with pytest.raises(UnexpectedStatusError):
                await client.create_request({"fiscalCode": FISCAL_CODE})
            process.reset()
            await client.create_request({"fiscalCode": FISCAL_CODE})
            refused = await client.approve(FISCAL_CODE, approval_request(email="a+refused@example.com"))
            assert isinstance(refused, Refused)
        assert len(process.calls(operation="approve", status="201")) == 1, "another reading"
    with pytest.raises(RuntimeError, match=r"not running: use `with Sandbox.subprocess\(\)`"):
        _ = process.pid


async def test_subprocess_calls_are_masked_until_it_is_killed() -> None:
    with Sandbox.subprocess() as process:
        process.fault("approve=slow1.refused")
        async with process.client() as client:
            await client.create_request({"fiscalCode": FISCAL_CODE})
            assert not (await client.approve(FISCAL_CODE, approval_request())).approved
        [call] = process.calls(operation="approve", status="422")
        assert (call["fiscal_code"], call["request"]["amount"], call["request"]["lastname"]) == (
            "***",
            45_000,
            "***",
        )
        with pytest.raises(ValueError, match="did you mean"):
            process.fault("nonsense")
        process.reset()
        assert process.calls() == []
        base_url = process.base_url
        process.kill()
        with pytest.raises(urllib.error.URLError):
            await asyncio.to_thread(urllib.request.urlopen, f"{base_url}/_sandbox/")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"faults": ["nonsense"]}, "did you mean"),
        pytest.param({"state": "/nowhere/at/all"}, "cannot be used", marks=pytest.mark.scheduled),
        pytest.param({"host": "0.0.0.0"}, "not a loopback address", marks=pytest.mark.scheduled),  # noqa: S104  (refused)
    ],
)
def test_subprocess_start_failure_gives_the_reason(options: dict[str, object], message: str) -> None:
    with pytest.raises(RuntimeError, match=message), Sandbox.subprocess(**options):
        pass


@pytest.mark.parametrize(
    "token",
    ["live_abc", "prod-abc", "my-production-token", "sk_LIVE_1", "3f8A2c9D0b7E6f1A4d5C8b2E9a0F7c6D"],
)
async def test_production_like_token_is_rejected_with_a_hint(raw: Raw, token: str) -> None:
    with pytest.raises(ValueError, match="looks like a production token"):
        Sandbox(auth_token=token)
    url = f"{raw.sandbox.base_url}/api/shops/sandbox-shop/requests"
    async with raw.session.post(url, json={}, headers={"X-Auth-Token": token}) as response:
        assert (response.status, await response.json()) == (403, {"error": "Access denied"})  # spec §7
        assert "looks like a production token" in response.headers["X-Sandbox-Hint"]
    assert [finding.rule for finding in raw.sandbox.findings] == ["production-token"]
    assert token not in str(raw.sandbox.journal[0].masked())


@pytest.mark.parametrize("token", ["alive", "my-token", "productive", "delivery", "a" * 64])
async def test_made_up_token_is_accepted(token: str) -> None:
    async with Sandbox(auth_token=token) as sandbox:
        assert sandbox.auth_token == token


async def test_remote_host_needs_allow_remote() -> None:
    with pytest.raises(ValueError, match=r"pass allow_remote=True \(--allow-remote\)"):
        Sandbox(host="0.0.0.0")  # noqa: S104  (refused)
    async with Sandbox(host="0.0.0.0", allow_remote=True) as sandbox:  # noqa: S104  (allowed here, and closed at once)
        assert sandbox.base_url.startswith("http://0.0.0.0:")
    for wrong in ({"journal": -1}, {"customers": 0}, {"auth_token": ""}):
        with pytest.raises(ValueError, match=r"must be|is empty"):
            Sandbox(**wrong)


async def test_too_long_body_is_413(raw: Raw) -> None:
    await raw.create()
    status, response = await raw.approve(city="x" * (1 << 20))
    assert (status, response) == (413, {"errors": {"body": ["This value is too long."]}})
    assert (await raw("POST", f"/{CODE}/documents", {"front": "x" * (2 << 20)}))[0] == 201
    assert (await raw("POST", f"/{CODE}/documents", {"front": "x" * (17 << 20)}))[0] == 413
    assert (await raw.approve())[0] == 201


async def test_open_option_opens_the_inspector(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = asyncio.Event()
    urls: list[str] = []

    def show(address: str) -> None:
        urls.append(address)
        opened.set()

    monkeypatch.setattr("webbrowser.open", show)
    sandbox = Sandbox()
    serving = asyncio.ensure_future(serve(sandbox, open_page=True))
    await opened.wait()
    assert urls == [f"{sandbox.base_url}/_sandbox/"]
    os.kill(os.getpid(), signal.SIGTERM)
    await serving
    assert f"inspector    {urls[0]}" in capsys.readouterr().out


def test_subprocess_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loanasync.sandbox.process._TIMEOUT", 0.05)
    with Sandbox.subprocess() as process:
        pid = process.pid
        os.kill(pid, signal.SIGSTOP)  # it does not react to SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_connections_during_a_stop_are_closed() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        for _ in range(30):
            with Sandbox.in_thread() as sandbox:
                address = ("127.0.0.1", int(sandbox.base_url.rpartition(":")[2]))
                callers = [socket.create_connection(address) for _ in range(5)]
            for caller in callers:
                caller.close()
        gc.collect()
    assert [str(each.message) for each in caught if "transport" in str(each.message)] == []
