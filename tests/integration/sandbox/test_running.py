"""The ways to run a sandbox, its options, and its safety checks."""

import asyncio
import gc
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import warnings
from pathlib import Path
from typing import Any

import pytest

import loanasync
from loanasync import LoanClient, Refused, RetryPolicy
from loanasync.sandbox import Sandbox
from loanasync.testing import approval_request, fiscal_code
from support.raw_shop import CODE, Raw


async def refuse(client: LoanClient) -> Refused:
    """Request an approval with a tag, and return its decision."""
    code = fiscal_code()
    async with client:
        await client.create_request({"fiscalCode": code})
        quick = RetryPolicy(base=0.001, cap=0.002)
        decision = await client.approve(code, approval_request(tag="500x1.refused"), retry=quick)
    assert isinstance(decision, Refused)
    return decision


def test_in_thread_serves_several_event_loops() -> None:
    before = threading.active_count()
    with Sandbox.in_thread(dialect="street_number") as sandbox:
        for _ in range(2):
            assert asyncio.run(refuse(sandbox.client())).meta.attempts == 2
        assert [entry.status for entry in sandbox.journal] == [201, 500, 422] * 2
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="the sandbox is not running: start it with `async with Sandbox"):
        _ = sandbox.base_url


def test_repr_and_notebook_output_lead_to_the_inspector() -> None:
    stopped = Sandbox()
    assert repr(stopped) == "<Sandbox that is not running>"
    assert stopped._repr_html_() == "&lt;Sandbox that is not running&gt;"
    with Sandbox.in_thread() as sandbox:
        asyncio.run(refuse(sandbox.client()))
        shown = sandbox._repr_html_()
        [url] = re.findall(r'<a href="(\S+)" target="_blank">open the inspector</a>', shown)
        assert repr(sandbox) == f"<Sandbox at {sandbox.base_url}, inspector: {url}>"
        with urllib.request.urlopen(url) as page:  # noqa: S310  (a local URL)
            assert (page.status, page.headers.get_content_type()) == (200, "text/html")
        assert not [text for text in ("TST", "sandbox-token") if text in shown + repr(sandbox)]


def test_start_failure_is_raised_in_the_caller_and_leaves_nothing_open() -> None:
    before = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="address already in use"), Sandbox.in_thread(port=port):
            pass
    assert threading.active_count() == before


async def test_sandbox_starts_once_and_stops_twice() -> None:
    sandbox = Sandbox()
    async with sandbox:
        with pytest.raises(RuntimeError, match="already running at http"):
            await sandbox.start()
    await sandbox.stop()


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


@pytest.mark.parametrize(
    "token", ["live_abc", "LIVE_abc", "prod-abc", "my-production-token", "3f8A2c9D0b7E6f1A4d5C8b2E9a0F7c6D"]
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
def test_made_up_token_is_accepted(token: str) -> None:
    assert Sandbox(auth_token=token).auth_token == token


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"host": host}, "is not a loopback address.*allow_remote=True")
            for host in ("192.168.0.1", "::", "a.it")
        ),
        ({"allow_remote": "false"}, "allow_remote must be True or False, not str"),
        ({"dialect": "both"}, "must be one of None, 'street_number', 'civic_number'"),
        *(({name: 1.5}, f"{name} must be of type int, not float") for name in ("port", "seed", "journal")),
        *(({name: 1}, f"{name} must be of type str, not int") for name in ("host", "shop_id", "auth_token")),
        *(({"shop_id": shop}, "shop_id") for shop in ("", "a/b", "..", "{x}", "a%2Fb", "a?b", "a#b")),
        *(({"auth_token": token}, "printable ASCII") for token in ("", " a ", "a\nb")),
        ({"shop_id": "demo", "auth_token": "demo"}, "shop_id and auth_token are equal"),
        ({"shop_url": "javascript:alert(1)"}, "shop_url"),
        ({"faults": "nonsense"}, "did you mean"),
        *(({"faults": faults}, "faults must be strings") for faults in ([500], 500, None)),
        *(({"state": state}, "is not a file") for state in ("", ":memory:")),
        *(({name: 0}, "must be 1 or more") for name in ("journal", "customers")),
        ({"refusal": "422"}, "refusal '422' must be one of 422, 201"),
        ({"evaluates": "both"}, "evaluates 'both' must be one of 'customer', 'order'"),
    ],
)
def test_invalid_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Sandbox(**options)


def test_localhost_in_upper_case_is_this_machine() -> None:
    Sandbox(host="LOCALHOST")


def ipv6_is_there() -> bool:
    with socket.socket(socket.AF_INET6) as attempt:
        try:
            attempt.bind(("::1", 0))
        except OSError:
            return False
    return True


@pytest.mark.skipif(not ipv6_is_there(), reason="this machine has no IPv6 loopback")
async def test_ipv6_is_served(raw: Raw) -> None:
    async with Sandbox(host="::1") as sandbox, raw.session.get(f"{sandbox.base_url}/_sandbox/health") as page:
        assert (page.status, sandbox.base_url[:13]) == (200, "http://[::1]:")


def test_sandbox_in_a_zip_file_shows_its_pages(tmp_path: Path) -> None:
    package = Path(loanasync.__file__).parent
    archive = shutil.make_archive(str(tmp_path / "package"), "zip", package.parent, package.name)
    script = (
        f"import sys; sys.path.insert(0, {archive!r}); from loanasync.sandbox import pages;"
        "print(pages.__file__, pages.asset('icon.svg')[:4], len(pages.missing()))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    file, asset, size = done.stdout.rsplit(maxsplit=2)
    assert (file.startswith(archive), asset, int(size) > 100) == (True, "<svg", True)
