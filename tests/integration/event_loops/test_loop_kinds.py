"""The main behaviour of a client, with the event loops of asyncio and uvloop."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from loanasync import Approved, Timeout
from loanasync.sandbox import Sandbox
from support.builders import FISCAL_CODE, approval_request, user_data
from support.canned_server import APPROVAL, approve, serving
from support.direct_path import client_of
from support.faults.row import SESSIONS
from support.raw_server import Certificate, Play, RawServer, certificate, running
from support.unclosed_clients import approval, warned


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

    def test_five_hundred_calls_share_a_few_slots(self, new_loop: Any) -> None:
        async def crowd() -> None:
            async with serving(APPROVAL) as server, server.client(max_concurrency=10) as client:
                decisions = await asyncio.gather(*(approve(client) for _ in range(500)))
                assert {type(decision) for decision in decisions} == {Approved}
                assert (server.requests, server.most_open) == (500, 10)

        self.run(new_loop, crowd())

    def test_unclosed_client_is_closed_with_its_loop(self, new_loop: Any, served: Sandbox) -> None:
        client = served.client()

        def two_loops() -> None:
            for _ in range(2):
                self.run(new_loop, approval(client))

        assert warned(two_loops) == []
