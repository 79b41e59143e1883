"""One client in several event loops of each kind, threads and forked processes, and unclosed clients."""

import asyncio
import os
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from loanasync import Approved, ClientClosedError, LoanClient, Timeout
from loanasync._runtime.per_loop import PerLoop
from loanasync.sandbox import Sandbox
from loanasync.testing import approved, scripted_client
from support.builders import FISCAL_CODE, approval_request, user_data
from support.canned_server import APPROVAL, approve, serving
from support.direct_path import client_of
from support.faults.row import SESSIONS
from support.processes import credentials, run_script
from support.raw_server import Certificate, Play, RawServer, certificate, running
from support.unclosed_clients import approval, warned

HERE = Path(__file__).name


def connections(sandbox: Sandbox) -> int:
    """Return the number of this process's connections to a sandbox."""
    port = urlsplit(sandbox.base_url).port
    found = psutil.Process().net_connections("tcp")
    return sum(each.raddr[1:] == (port,) and each.status == psutil.CONN_ESTABLISHED for each in found)


async def open_connection(client: LoanClient, sandbox: Sandbox) -> None:
    assert isinstance(await approval(client), Approved)
    assert connections(sandbox) == 2  # one of the creation, which no approval uses, and one of the approval


def _loops() -> list[Any]:
    found = [pytest.param(asyncio.new_event_loop, id="asyncio")]
    try:
        import uvloop  # noqa: PLC0415  (not on every platform)
    except ImportError:
        return found
    return [*found, pytest.param(uvloop.new_event_loop, id="uvloop")]


@pytest.mark.parametrize("new_loop", _loops())
class TestUnderEachEventLoop:
    """Tests that each event loop runs."""

    def run(self, new_loop: Callable[[], asyncio.AbstractEventLoop], main: Any) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main)

    def test_loan_request_is_created_approved_and_completed(self, new_loop: Any, served: Sandbox) -> None:
        async def travel() -> None:
            async with served.client() as client:
                await client.create_request({"fiscalCode": FISCAL_CODE})
                assert isinstance(await client.approve(FISCAL_CODE, approval_request()), Approved)
                await client.upload_documents(FISCAL_CODE, {"front": "..."})
                assert await client.complete(FISCAL_CODE, user_data()) == user_data()

        self.run(new_loop, travel())

    @pytest.mark.parametrize("session", SESSIONS)
    def test_response_over_tls_is_read_whole(self, new_loop: Any, session: str) -> None:
        async def approve_twice() -> None:
            server = RawServer(((Play.READ, APPROVAL) * 2), tls=certificate(Certificate.GOOD), scheme="https")
            async with running(server), client_of(server.base_url, session) as client:
                for _ in range(2):
                    decision = await approve(client)
                    assert isinstance(decision, Approved)
                    assert (decision.redirect_url, decision.meta.unread) == ("https://example.com/#t", ())
                assert server.accepted == 1 or "through aiohttp" in session

        self.run(new_loop, approve_twice())

    def test_cancelled_call_closes_its_connection(self, new_loop: Any) -> None:
        async def give_up() -> None:
            async with serving(None) as server, server.client(timeout=Timeout(attempt=1)) as client:
                call = asyncio.create_task(approve(client))
                await server.arrived.wait()
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                await server.all_closed.wait()

        self.run(new_loop, give_up())

    def test_unclosed_client_is_closed_with_its_loop(
        self, new_loop: Any, served: Sandbox, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = served.client()

        async def use() -> None:
            await open_connection(client, served)

        def loops() -> None:
            nonlocal client
            for _ in range(3):
                self.run(new_loop, use())
                assert connections(served) == 0
            del client

        assert warned(loops) == []
        assert not caplog.records


def test_unclosed_client_in_a_running_loop_warns_with_its_line(served: Sandbox) -> None:
    async def leave_unclosed() -> None:
        client = LoanClient(served.base_url, shop_id=served.shop_id, auth_token=served.auth_token)
        line = sys._getframe().f_lineno - 1
        await open_connection(client, served)
        copy = client.with_options(timeout=Timeout(total=5))
        del client
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del copy
        [warning] = caught
        place = (Path(warning.filename).name, warning.lineno)
        assert (warning.category, place) == (ResourceWarning, (HERE, line))
        assert "unclosed LoanClient, created here; close it with aclose()" in str(warning.message)
        while connections(served):  # noqa: ASYNC110  (the loop closes it all the same)
            await asyncio.sleep(0)

    asyncio.run(leave_unclosed())


@pytest.mark.parametrize("make", ["sandbox", "environment", "subclass"])
def test_unclosed_client_warning_names_the_line_of_the_user(
    served: Sandbox, make: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Shop(LoanClient):
        pass

    for name, value in credentials(served).items():
        monkeypatch.setenv(name, value)
    makers: dict[str, Callable[[], LoanClient]] = {
        "sandbox": served.client,
        "environment": LoanClient.from_env,
        "subclass": Shop.from_env,
    }

    async def leave_unclosed() -> None:
        client = makers[make]()
        await approval(client)

    [warning] = warned(lambda: asyncio.run(leave_unclosed()))
    assert Path(warning.filename).name == HERE


def test_unclosed_client_without_own_connections_does_not_warn(served: Sandbox) -> None:
    import aiohttp  # noqa: PLC0415  (only this test needs it)

    async def drop() -> None:
        LoanClient(served.base_url, shop_id=served.shop_id, auth_token=served.auth_token)
        await approve(scripted_client(approved()))
        async with aiohttp.ClientSession() as session:
            await approval(served.client(session=session))

    assert warned(lambda: asyncio.run(drop())) == []


def test_aclose_while_the_loop_of_another_thread_ends_closes_once() -> None:
    closed: list[float | None] = []

    async def close(_: object, within: float | None) -> None:
        closed.append(within)

    values = PerLoop(object, close)
    ready, end = threading.Event(), threading.Event()

    def other() -> None:
        async def open_value() -> None:
            values.current()
            ready.set()
            # Block this event loop until `aclose` has scheduled the closing; then the loop ends without
            # running it.
            end.wait()

        asyncio.run(open_value())

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait()

    async def close_all() -> None:
        closing = asyncio.create_task(values.aclose(5.0))
        await asyncio.sleep(0)
        end.set()
        await closing

    asyncio.run(close_all())
    thread.join()
    assert closed in ([5.0], [None]), "closed once: by `aclose`, or by the end of the loop"


@pytest.mark.parametrize("runs", [False, True], ids=["stopped loop", "loop of another thread"])
def test_close_from_outside_closes_the_client(served: Sandbox, *, runs: bool) -> None:
    client = served.client()
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        loop.run_until_complete(open_connection(client, served))
        thread = threading.Thread(target=loop.run_forever)
        if runs:
            thread.start()
        client.close(1.0)
        assert connections(served) == 0
        if runs:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
        with pytest.raises(ClientClosedError):
            runner.run(approval(client))


FORKED = """
import asyncio, os, sys
from loanasync import LoanClient
from loanasync.testing import approval_request, fiscal_code
client = LoanClient(sys.argv[1], shop_id="sandbox-shop", auth_token="sandbox-token")
def report(line):
    os.write(1, f"{line}\\n".encode())  # in one write: several processes write
async def request_approval():
    code = fiscal_code()
    await client.create_request({"fiscalCode": code})
    return (await client.approve(code, approval_request())).approved
with asyncio.Runner() as runner:
    report(f"parent {runner.run(request_approval())}")
    children = []
    for number in range(3):
        child = os.fork()
        if child == 0:
            report(f"child {asyncio.run(request_approval())} {asyncio.run(request_approval())}")
            del client
            os._exit(0)
        children.append(child)
    report(f"parent {runner.run(request_approval())}")
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    report(f"parent {runner.run(request_approval())}")
    runner.run(client.aclose())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_forked_workers_and_their_parent_never_share_a_connection(served: Sandbox) -> None:
    done = run_script(FORKED, served.base_url)
    assert sorted(done.stdout.splitlines()) == ["child True True"] * 3 + ["parent True"] * 3, done.stderr
    assert done.stderr == ""
    assert len(served.journal) == 18


CLOSED_LOOP = """
import asyncio, sys
from loanasync import LoanClient
client = LoanClient(sys.argv[1], shop_id="sandbox-shop", auth_token="sandbox-token")
loop = asyncio.new_event_loop()
loop.run_until_complete(client.create_request({"fiscalCode": "TSTXYZ00A00A001Z"}))
loop.close()
asyncio.run(client.create_request({"fiscalCode": "TSTXYZ00A00A002Z"}))
"""


def test_loop_closed_without_its_client_warns_in_the_next_loop(served: Sandbox) -> None:
    done = run_script(CLOSED_LOOP, served.base_url, warning="default")
    assert "<string>:4: ResourceWarning: unclosed LoanClient, created here" in done.stderr
    assert done.stderr.count("unclosed LoanClient, created here") == 1
    assert done.returncode == 0


DEBUGGED = """
import asyncio, logging, sys
logging.basicConfig(level=logging.WARNING)
logging.getLogger("loanasync").setLevel(logging.CRITICAL)  # it logs the expected failures
from loanasync import LoanClient, LoanError, RetryPolicy, Timeout
from loanasync.testing import approval_request, fiscal_code
client = LoanClient(
    sys.argv[1], shop_id="sandbox-shop", auth_token="sandbox-token",
    retry=RetryPolicy(base=0.001), timeout=Timeout(total=3, attempt=2)
)
async def request_approval(tag):
    code = fiscal_code()
    await client.create_request({"fiscalCode": code})
    try:
        return await client.approve(code, approval_request(tag=tag))
    except LoanError as error:
        return error
async def everything():
    assert asyncio.get_running_loop().get_debug()
    tags = ["approved", "refused", "500x2", "500x9", "truncafter", "resetbefore", "garbage", "already"]
    results = await asyncio.gather(*map(request_approval, tags))
    call = asyncio.create_task(request_approval("hangbefore"))
    await asyncio.sleep(0.05)
    call.cancel()
    print(*(type(each).__name__ for each in results), *await asyncio.gather(call, return_exceptions=True))
asyncio.run(everything())
async def again():
    async with client:
        await everything()
asyncio.run(again())
"""


def test_asyncio_debug_mode_logs_nothing(served: Sandbox) -> None:
    done = run_script(DEBUGGED, served.base_url, PYTHONASYNCIODEBUG="1", PYTHONDEVMODE="1")
    assert done.stderr == ""
    names = "Approved Refused Approved SystemFaultError Approved ConnectionLostError"
    assert done.stdout.splitlines() == [f"{names} UnexpectedResponseError AlreadyEvaluatedError "] * 2
