"""`ScriptedTransport` and `scripted_client` of `loanasync.testing`."""

import asyncio
import inspect
import traceback

import pytest

import loanasync
from loanasync import (
    ApprovalRequest,
    ConfigurationError,
    InvalidRequestError,
    LoanClient,
    LoanError,
    testing,
)
from loanasync._protocol import endpoints
from loanasync._transport.session import SessionTransport
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    SentRequest,
    approval_request,
    approved,
    computed,
    conflict,
    refused,
    response,
    scripted_client,
    system_error,
    user_data,
)

CODE = "TSTXYZ50A01X000A"


async def failure(*responses: ScriptedResponse, **options: object) -> LoanError:
    with pytest.raises(LoanError) as caught:
        await scripted_client(*responses, **options).approve(CODE, approval_request())
    return caught.value


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
        ((approved(), refused()), "2 responses were scripted, but the client sent another request: "),
    ],
)
async def test_exhausted_script_names_its_length_and_the_request(
    responses: tuple[ScriptedResponse, ...], message: str
) -> None:
    script = ScriptedTransport(*responses)
    client = script.client()
    for number, _ in enumerate(responses):
        await client.approve(CODE, approval_request(), scope=str(number))
    with pytest.raises(AssertionError) as caught:
        await client.complete(CODE, user_data())
    assert str(caught.value) == f"{message}complete, PATCH /api/shops/{{shopId}}/requests/{{fiscalCode}}"
    assert len(script.sent) == len(responses) + 1


async def test_exhausted_script_after_a_500_mentions_the_retry() -> None:
    with pytest.raises(AssertionError, match=r"^1 response was .*after a 500 the client retries"):
        await scripted_client(system_error()).approve(CODE, approval_request())


async def test_responses_can_be_added_to_a_script() -> None:
    script = ScriptedTransport()
    assert script.left == 0
    script.add(response(201), approved())
    client = script.client()
    await client.create_request({"fiscalCode": CODE})
    assert script.left == 1
    assert (await client.approve(CODE, approval_request())).approved
    assert [sent.operation for sent in script.sent] == ["create_request", "approve"]


async def test_each_request_is_recorded() -> None:
    script = ScriptedTransport(
        response(201), approved(), response(200, b"{}"), response(200, {"profession": "baker"})
    )
    client = script.client(base_url="https://loans.example.com/v1", shop_id="a:b")
    await client.create_request({"fiscalCode": CODE})
    await client.approve(CODE, approval_request(amount=70_000))
    await client.upload_documents(CODE, {"front": {"page": [1]}})
    assert (await client.complete(CODE, user_data())).profession == "baker"
    assert [
        (sent.operation, sent.method, sent.template, sent.path, sent.fiscal_code) for sent in script.sent
    ] == [
        ("create_request", "POST", "/api/shops/{shopId}/requests", "/v1/api/shops/a%3Ab/requests", None),
        *(
            (
                operation,
                method,
                "/api/shops/{shopId}/requests/{fiscalCode}" + rest,
                f"/v1/api/shops/a%3Ab/requests/{CODE}{rest}",
                CODE,
            )
            for operation, method, rest in (
                ("approve", "POST", ""),
                ("upload_documents", "POST", "/documents"),
                ("complete", "PATCH", ""),
            )
        ),
    ]
    created, approval, documents, completion = script.sent
    assert created.body == {"fiscalCode": CODE}
    assert approval.body["amount"] == 70_000
    assert documents.body == {"front": {"page": [1]}}
    assert completion.body["documentOfType"] == "identity_card"
    assert approval.within == 30


def test_sent_request_knows_all_endpoints_of_the_client() -> None:
    known = {each.operation for each in testing.sent._ENDPOINTS}
    assert known == {
        each.operation for each in vars(endpoints).values() if isinstance(each, endpoints.Endpoint)
    }


async def test_sent_request_has_plain_attributes_and_a_masked_repr() -> None:
    script = ScriptedTransport(approved())
    await script.client(auth_token="zzq-token").approve(CODE, approval_request(last_name="Zzqmark"))
    [sent] = script.sent
    assert (sent.headers["X-Auth-Token"], sent.headers["x-auth-token"]) == ("zzq-token", "zzq-token")
    assert "x-auth-token" in sent.headers
    assert "X-Other" not in sent.headers
    assert dict(sent.headers)["Content-Type"] == "application/json"
    assert len(sent.headers) == len(list(sent.headers))
    assert sent.body["lastname"] == "Zzqmark"
    shown = repr(sent) + repr(sent.headers) + repr(sent.body)
    assert not [secret for secret in ("zzq-token", "Zzqmark", CODE, "shopper-") if secret in shown]
    assert "'X-Auth-Token': '***'" in shown
    assert "operation='approve'" in shown
    assert isinstance(hash(sent), int)


async def test_scripted_client_validates_requests() -> None:
    script = ScriptedTransport(approved())
    client = script.client(limits=loanasync.Limits(amount_min=1))
    assert type(client) is LoanClient
    with pytest.raises(InvalidRequestError):
        await client.approve(CODE, approval_request(amount=0))
    assert script.sent == []
    assert repr(client) == "LoanClient('https://loans.example.com', shop_id='test-shop', auth_token=***)"


async def test_copy_with_options_uses_the_same_script() -> None:
    script = ScriptedTransport(approved(), refused())
    client = script.client()
    copy = client.with_options(shop_id="other", auth_token="t")
    assert (await client.approve(CODE, approval_request())).approved
    assert not (await copy.approve(CODE, approval_request())).approved
    assert [sent.path.split("/")[3] for sent in script.sent] == ["test-shop", "other"]


def test_script_with_a_session_is_refused() -> None:
    assert scripted_client(session=None)
    with pytest.raises(ConfigurationError, match="session: cannot be used with transport="):
        scripted_client(session=object())
    with pytest.raises(ConfigurationError, match="shop_id"):
        scripted_client(shop_id="a/b")


async def test_scripted_client_opens_no_session_and_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("aiohttp.ClientSession.__init__", forbidden)
    async with scripted_client(approved()) as client:
        assert (await client.approve(CODE, approval_request())).approved


def test_script_is_continued_in_another_event_loop() -> None:
    script = ScriptedTransport(approved(), refused())
    client = script.client()
    first = asyncio.run(client.approve(CODE, approval_request()))
    second = asyncio.run(client.approve(CODE, approval_request(), scope="2"))
    assert (first.approved, second.approved) == (True, False)


async def test_aclose_is_counted_once_and_ends_the_client() -> None:
    script = ScriptedTransport(approved())
    async with script.client() as client:
        await client.approve(CODE, approval_request())
        assert script.closed == 0
    await client.aclose()
    assert script.closed == 1
    with pytest.raises(loanasync.ClientClosedError):
        await client.approve(CODE, approval_request())


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
    assert [decision.amount for decision in decisions] == [request.amount for request in requests]
    assert [sent.body["amount"] for sent in script.sent] == [request.amount for request in requests]
    assert most == 3


async def test_response_and_wait_let_other_tasks_run() -> None:
    in_flight: list[int] = []

    def count(_: SentRequest) -> ScriptedResponse:
        in_flight.append(len(script.sent))
        return refused()

    script = ScriptedTransport(computed(count), computed(count))
    client = script.client()
    await asyncio.gather(*(client.approve(code, approval_request()) for code in (CODE, f"{CODE[:-1]}B")))
    assert in_flight == [2, 2]
    order: list[str] = []

    async def sleep() -> None:
        await script.clock.sleep(60)
        order.append("slept")

    async def run() -> None:
        order.append("ran")

    await asyncio.gather(sleep(), run())
    assert order == ["ran", "slept"]
    assert script.clock.now() == 1060


async def test_error_of_a_scripted_call_has_no_personal_data_in_frames() -> None:
    error = await failure(conflict())
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    client_frames = [frame for frame in frames if frame.f_globals["__name__"].startswith("loanasync")]
    assert client_frames
    assert CODE not in " ".join(repr(frame.f_locals) for frame in client_frames)


def test_scripted_transport_has_the_signatures_of_session_transport() -> None:
    for name in ("check", "send", "aclose"):
        scripted = inspect.signature(getattr(ScriptedTransport, name))
        assert scripted == inspect.signature(getattr(SessionTransport, name)), name


@pytest.mark.parametrize("name", testing.__all__)
def test_public_docstring_has_an_example(name: str) -> None:
    if name != "ScriptedResponse":  # an alias of types
        assert ">>>" in (inspect.getdoc(getattr(testing, name)) or "")
    assert isinstance(approval_request(), ApprovalRequest)
