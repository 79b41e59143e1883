"""The start of a client's runtime: one pipeline and one memory for a client, its copies and all threads."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter

import pytest

from loanasync import Approved, ClientClosedError, LoanClient, Timeout
from loanasync._runtime.flights import Flights
from loanasync._runtime.pipeline import Pipeline
from loanasync.testing import ScriptedTransport, approval_request, approved, fiscal_code, scripted_client

LONGER = Timeout(total=120, attempt=90)


@pytest.mark.parametrize(("part", "created"), [("_pipeline", Pipeline), ("_flights", Flights)])
def test_threads_that_start_a_client_at_once_share_its_parts(
    part: str, created: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = scripted_client()
    if created is Flights:
        assert client._pipeline is not None  # only the memory is created below
    both_start = threading.Barrier(2, timeout=30)
    create = vars(created)["__init__"]
    number = 0

    def create_slowly(self: object, *arguments: object, **options: object) -> None:
        nonlocal number
        number += 1
        time.sleep(0.05)  # the other thread finds nothing created
        create(self, *arguments, **options)

    def start(copied: LoanClient) -> object:
        both_start.wait()
        return getattr(copied._start, part[1:])()

    monkeypatch.setattr(created, "__init__", create_slowly)
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(start, [client.with_options(timeout=LONGER) for _ in range(2)])
    assert one is other
    assert number == 1
    assert attrgetter(part)(client) is one


async def test_copy_made_before_the_first_call_shares_the_memory() -> None:
    transport = ScriptedTransport(approved())
    client = transport.client()
    copied = client.with_options(timeout=LONGER)
    code, request = fiscal_code(), approval_request()
    decision = await copied.approve(code, request)
    assert isinstance(decision, Approved)
    assert isinstance(await client.approve(code, request), Approved)
    assert len(transport.sent) == 1


async def test_copy_of_a_client_that_closes_before_its_first_call_is_closed() -> None:
    client = scripted_client(approved())
    copied = client.with_options(timeout=LONGER)
    await client.aclose()
    with pytest.raises(ClientClosedError):
        await copied.approve(fiscal_code(), approval_request())


async def test_entered_client_opens_no_transport_of_the_user() -> None:
    transport = ScriptedTransport()
    async with transport.client():
        pass
    assert transport.closed == 0


async def test_entered_client_opens_its_session_once() -> None:
    async with LoanClient("https://loans.example.com", shop_id="shop", auth_token="token") as client:
        (opened,) = values_of(client)
        assert client._pipeline._per_loop.current() is opened
    assert values_of(client) == []


async def test_closed_client_opens_no_session_when_it_is_entered() -> None:
    client = LoanClient("https://loans.example.com", shop_id="shop", auth_token="token")
    await client.aclose()
    async with client:
        assert values_of(client) == []


def values_of(client: LoanClient) -> list[object]:
    return [entry.value for entry in client._pipeline._per_loop._values.values()]


async def test_opening_a_transport_takes_no_time_of_the_call() -> None:
    """The first transport loads aiohttp, which may take longer than the time limit of a call."""
    transport = ScriptedTransport(approved())

    def open_slowly() -> ScriptedTransport:
        transport.clock.time += 1000
        return transport

    client = transport.client(transport=open_slowly)
    decision = await client.approve(fiscal_code(), approval_request())
    assert isinstance(decision, Approved)
    assert decision.meta.elapsed == 0
