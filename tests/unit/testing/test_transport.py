"""`ScriptedTransport` and `scripted_client` of `loanasync.testing`."""

import asyncio
import inspect

import pytest

import loanasync
from loanasync import ConfigurationError, InvalidRequestError, LoanClient, testing
from loanasync._protocol import endpoints
from loanasync._transport.session import SessionTransport
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    SentRequest,
    approval_request,
    approved,
    computed,
    fiscal_code,
    refused,
    response,
    scripted_client,
    system_error,
    user_data,
)

CODE = "TSTXYZ50A01X000A"


def test_argument_that_is_not_a_scripted_response_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"scripted response, not function: call the function, as in approved\(\)"
    ):
        ScriptedTransport(approved)  # type: ignore[arg-type]
    script = ScriptedTransport(approved())
    with pytest.raises(TypeError, match="expected a scripted response, not int: use"):
        script.add(refused(), 422)  # type: ignore[arg-type]
    assert script.left == 1


@pytest.mark.parametrize(
    ("responses", "message"),
    [
        ((), "0 responses were scripted, but the client sent another request: "),
        ((approved(),), "1 response was scripted, but the client sent another request: "),
        ((approved(), approved()), "2 responses were scripted, but the client sent another request: "),
    ],
)
async def test_exhausted_script_names_its_length_and_the_request(
    responses: tuple[ScriptedResponse, ...], message: str
) -> None:
    script = ScriptedTransport()
    for number, each in enumerate(responses, 1):
        script.add(each)
        assert script.left == number
    client = script.client()
    for _ in responses:
        await client.approve(fiscal_code(), approval_request())
    with pytest.raises(AssertionError) as caught:
        await client.complete(CODE, user_data())
    assert str(caught.value) == f"{message}complete, PATCH /api/shops/{{shopId}}/requests/{{fiscalCode}}"
    with pytest.raises(AssertionError, match=r"^1 response was .*after a 500 the client retries"):
        await scripted_client(system_error()).approve(CODE, approval_request())


async def test_each_request_is_recorded() -> None:
    script = ScriptedTransport(response(201), approved(), response(200, b"{}"), response(200, {"iban": "x"}))
    client = script.client(base_url="https://loans.example.com/v1", shop_id="a:b")
    await client.create_request({"fiscalCode": CODE})
    await client.approve(CODE, approval_request(amount=70_000))
    await client.upload_documents(CODE, {"front": {"page": [1]}})
    assert (await client.complete(CODE, user_data())).iban == "x"
    template, path = "/api/shops/{shopId}/requests", "/v1/api/shops/a%3Ab/requests"
    for sent, (operation, method, rest) in zip(
        script.sent,
        [
            ("create_request", "POST", ""),
            ("approve", "POST", "/{fiscalCode}"),
            ("upload_documents", "POST", "/{fiscalCode}/documents"),
            ("complete", "PATCH", "/{fiscalCode}"),
        ],
        strict=True,
    ):
        assert (sent.operation, sent.method, sent.template) == (operation, method, template + rest)
        assert sent.path == path + rest.replace("{fiscalCode}", CODE)
        assert sent.fiscal_code == (CODE if rest else None)
    created, approval, documents, completion = script.sent
    assert (created.body, documents.body) == ({"fiscalCode": CODE}, {"front": {"page": [1]}})
    assert (approval.body["amount"], approval.within) == (70_000, 30)
    assert completion.body["documentOfType"] == "identity_card"


def test_sent_request_knows_all_endpoints_of_the_client() -> None:
    known = {each.operation for each in testing.sent._ENDPOINTS}
    every = {each.operation for each in vars(endpoints).values() if isinstance(each, endpoints.Endpoint)}
    assert known == every - {"known"}


async def test_sent_request_has_plain_attributes_and_a_masked_repr() -> None:
    script = ScriptedTransport(approved())
    await script.client(auth_token="zzq-token").approve(CODE, approval_request(last_name="Zzqmark"))
    [sent] = script.sent
    assert (sent.headers["X-Auth-Token"], sent.headers["x-auth-token"]) == ("zzq-token", "zzq-token")
    assert ("x-auth-token" in sent.headers, "X-Other" in sent.headers) == (True, False)
    assert dict(sent.headers)["Content-Type"] == "application/json"
    assert len(sent.headers) == len(list(sent.headers))
    assert sent.body["lastname"] == "Zzqmark"
    shown = repr(sent) + repr(sent.headers) + repr(sent.body)
    assert not [secret for secret in ("zzq-token", "Zzqmark", CODE, "shopper-") if secret in shown]
    assert "'X-Auth-Token': '***'" in shown
    assert "operation='approve'" in shown
    assert isinstance(hash(sent), int)


async def test_scripted_client_validates_requests_and_opens_no_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("aiohttp.ClientSession.__init__", forbidden)
    script = ScriptedTransport(approved(), refused())
    client = script.client(limits=loanasync.Limits(amount_min=1), session=None)
    assert type(client) is LoanClient
    assert repr(client) == "LoanClient('https://loans.example.com', shop_id='test-shop', auth_token=***)"
    with pytest.raises(InvalidRequestError):
        await client.approve(CODE, approval_request(amount=0))
    assert script.sent == []
    copy = client.with_options(shop_id="other", auth_token="t")
    async with client:
        assert (await client.approve(CODE, approval_request())).approved
        assert not (await copy.approve(CODE, approval_request())).approved
    assert [sent.path.split("/")[3] for sent in script.sent] == ["test-shop", "other"]
    await client.aclose()
    assert script.closed == 1
    with pytest.raises(loanasync.ClientClosedError):
        await client.approve(CODE, approval_request())
    for options in ({"session": object()}, {"shop_id": "a/b"}):
        with pytest.raises(ConfigurationError):
            scripted_client(**options)


def test_script_is_continued_in_another_event_loop() -> None:
    client = scripted_client(approved(), refused())
    first = asyncio.run(client.approve(CODE, approval_request(), order_id="1"))
    second = asyncio.run(client.approve(CODE, approval_request(), order_id="2"))
    assert (first.approved, second.approved) == (True, False)


async def test_concurrent_calls_take_responses_in_order_within_the_slots() -> None:
    in_flight = most = 0

    async def slowly(_: SentRequest) -> ScriptedResponse:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0.001)
        in_flight -= 1
        return approved()

    script = ScriptedTransport(*[computed(slowly)] * 20)
    client = script.client(max_concurrency=3)
    requests = [approval_request(amount=5_000 + number) for number in range(20)]
    decisions = await asyncio.gather(
        *(client.approve(f"{CODE[:-2]}{number:02}", each) for number, each in enumerate(requests))
    )
    amounts = [request.amount for request in requests]
    assert [decision.amount for decision in decisions] == amounts
    assert [sent.body["amount"] for sent in script.sent] == amounts
    assert most == 3, "other calls are sent before one has its response"


async def test_wait_of_the_clock_lets_other_tasks_run() -> None:
    clock, order = testing.Clock(), list[str]()

    async def sleep() -> None:
        await clock.sleep(60)
        order.append("slept")

    async def run() -> None:
        order.append("ran")

    await asyncio.gather(sleep(), run())
    assert (order, clock.now()) == (["ran", "slept"], 1060)


def test_scripted_transport_has_the_signatures_of_session_transport() -> None:
    for name in ("check", "send", "aclose"):
        scripted = inspect.signature(getattr(ScriptedTransport, name))
        assert scripted == inspect.signature(getattr(SessionTransport, name)), name
