"""What a notebook shows of our values: masked as they are printed, never taken for HTML, in any theme."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import attrs
import pytest
from bulking import bulk, rows
from playwright.sync_api import Browser, sync_playwright
from visitor import CHROMIUM, luminance, program

from loanasync import (
    AlreadyEvaluatedError,
    Approved,
    ClientClosedError,
    ConfigurationError,
    ConnectionLostError,
    DecisionNotRecordedError,
    InvalidRequestError,
    Meta,
    OutcomeUnknownError,
    Problem,
    Refused,
    RejectedError,
    UnexpectedReplyError,
)
from loanasync._display import notebook as html
from loanasync.bulk import Row, RowResult, Summary
from loanasync.ledger import Entry, State
from loanasync.testing import approval_request, fiscal_code

META = Meta(status=201, attempts=1, elapsed=0.01234, trace_id="4bf92f3577b34da6a3ce929d0e0e4736")
HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>\u202e\x07$e^x$"
SECRET = "Zzqperson"


def entry(**changes: Any) -> Entry:
    values: dict[str, Any] = {
        "key": "0f" * 32, "state": State.UNKNOWN, "token": "c1aa", "payload": "d0" * 32,
        "claimed": 1_700_000_000.0, "changed": 1_700_000_001.0, "expires": 1_700_000_090.0,
        "note": "ConnectionLostError",
    }  # fmt: skip
    return Entry(**{**values, **changes})


def shown(value: Any) -> str:
    card: str = value._repr_html_()
    return card


def texts(text: Any) -> list[object]:
    """A problem's message, a note or an error's reason: wherever a text stands that is not masked."""
    problem = Problem(text, text, text)
    return [
        problem,
        InvalidRequestError((problem,)),
        RejectedError("approve", (problem, problem), Meta(400, 1, 0.1, text, (text,))),
        UnexpectedReplyError("approve", (text,), "unknown", META),
        ConfigurationError(text, text),
        OutcomeUnknownError("approve", text, "lost", text),
        Approved(amount=45_000, meta=Meta(201, 1, 0.1, text)),
        Refused(instalments=text, amount=text, meta=META),
        RowResult(0, (fiscal_code(), approval_request()), "rejected", None, InvalidRequestError((problem,))),
        entry(key=text, note=text, fault=text, claimed=text),
    ]


class Page(HTMLParser):
    """The elements of a page, their attributes, and its text."""

    def __init__(self, card: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: set[tuple[str, str]] = set()
        self.text = ""
        self.open: list[str] = []
        self.feed(card)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.open.append(tag)
        self.attributes |= {(name, value or "") for name, value in attributes}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_no_text_of_anybodys_is_taken_for_html_or_for_a_formula() -> None:
    for harmless, hostile in zip(texts("harmless"), texts(HOSTILE), strict=True):
        usual, page = Page(shown(harmless)), Page(shown(hostile))
        assert (page.elements, page.attributes) == (usual.elements, usual.attributes), hostile
        assert "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>  $e^x$" in page.text, hostile
        assert {name for name, _ in page.attributes} == {"class", "style"}
        assert ("class", "tex2jax_ignore mathjax_ignore") in page.attributes


MASKED = sorted(each.name for each in attrs.fields(Approved) if callable(each.repr))


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("kind", [Approved, Refused])
def test_a_decision_names_what_is_masked_and_shows_none_of_it(kind: type, name: str) -> None:
    if name in attrs.fields_dict(kind):
        page = Page(shown(kind(**{name: SECRET}, meta=META)))
        assert SECRET not in page.text
        assert f"masked, and there to be read as attributes: {name}" in page.text
        assert "masked" not in shown(kind(meta=META))


def test_a_decision_shows_its_order_and_how_it_came_about() -> None:
    decision = Approved(
        amount=123_450, net_amount=119_747, instalments=12, zero_interest_rate=False, meta=META
    )
    page = Page(shown(decision))
    assert page.text.startswith("Approved")
    assert "amount1,234.50 euro" in page.text
    assert "net_amount1,197.47 euro" in page.text
    assert "zero_interest_rateFalse" in page.text
    assert (
        "status: 201, attempts: 1, elapsed: 0.0123, trace_id: 4bf92f3577b34da6a3ce929d0e0e4736" in page.text
    )
    assert "payment_day_of_month" not in page.text
    assert Page(shown(Refused(meta=META))).text.startswith("Refusedstatus: 201")


def test_an_error_shows_what_to_do_and_each_problem_once() -> None:
    problems = (Problem("amount", "amount", "must be more"), Problem("last_name", "lastname", "is required"))
    page = Page(shown(InvalidRequestError(problems)))
    assert page.text == (
        "InvalidRequestErrornothing was sent, correct this first: see below"
        "fieldwire namemessageamountamountmust be morelast_namelastnameis required"
    )
    page = Page(shown(AlreadyEvaluatedError("approve", problems[:1], META)))
    assert "approve was answered with 201 (see below): this customer was evaluated before" in page.text
    assert page.text.count("must be more") == 1
    assert page.text.endswith("trace_id: 4bf92f3577b34da6a3ce929d0e0e4736")
    assert str(ClientClosedError()) in Page(shown(ClientClosedError())).text


def test_an_error_that_carries_a_decision_does_not_show_it() -> None:
    decision = Approved(redirect_url=SECRET, last_name=SECRET, meta=META)
    error = DecisionNotRecordedError("approve", "0f" * 32, "approved", decision, None, "OSError")
    result = RowResult(3, Row(SECRET, approval_request(), id=SECRET), "approved", decision, error)
    assert SECRET not in shown(error)
    assert SECRET not in shown(result)
    page = Page(shown(result))
    assert page.text.startswith("Row 3: approvedApproved")
    assert str(error) in page.text


def test_an_error_that_is_not_ours_is_shown_by_its_class_alone() -> None:
    result = RowResult(3, (SECRET, approval_request()), "unknown", None, ValueError(SECRET))
    assert Page(shown(result)).text == "Row 3: unknownValueError"


def test_a_row_of_unknown_outcome_says_so() -> None:
    error = ConnectionLostError("approve", "ServerDisconnectedError", "unknown", 1)
    page = Page(shown(RowResult(0, (SECRET, approval_request()), "unknown", None, error)))
    assert page.text == f"Row 0: unknownConnectionLostError{error}"


def test_a_summary_shows_each_kind_there_is_with_its_sum() -> None:
    summary = Summary(
        approved=2, unknown=1, error=1, amount_approved=90_000, amount_unknown=10_000, net_amount=88_000,
        elapsed=2.5, latency_50=0.1, latency_95=0.2, latency_99=0.3, latency_max=0.4,
    )  # fmt: skip
    assert Page(shown(summary)).text == (
        "Summary of 4 rowsstatusrowsamountapproved2900.00 eurounknown1100.00 euroerror1"
        "net amount 880.00 euro; 2.5 s since the first row"
        "of the decisions half within 0.1 s, 95 % within 0.2 s, 99 % within 0.3 s, all within 0.4 s"
    )


async def test_a_bulk_shows_how_far_it_is() -> None:
    async def refuse(*_: object, **__: object) -> Refused:
        return Refused(meta=META)

    async with bulk(refuse, rows(3)) as results:
        async for _ in results:
            pass
    assert Page(shown(results)).text.startswith(
        "Approvals: 3 rows taken, 0 results to be readSummary of 3 rowsstatusrowsamountrefused31,350.00 euro"
    )


def test_an_entry_shows_times_as_people_read_them_and_no_body() -> None:
    page = Page(shown(entry(body=SECRET.encode())))
    assert page.text.startswith(f"Entry: unknownkey{'0f' * 32}stateunknown")
    assert "claimed2023-11-14 22:13:20 UTC" in page.text
    assert "noteConnectionLostError" in page.text
    assert page.text.endswith("masked, and there to be read as attributes: body")
    assert SECRET not in page.text


@pytest.mark.parametrize("time", [float("nan"), float("inf"), -1e300, 1e300, None, "soon"])
def test_a_time_that_is_none_is_shown_as_it_is(time: Any) -> None:
    assert html.instant(time) == (f"{time:.3g}" if isinstance(time, float) else str(time))


def test_what_is_no_sum_is_shown_as_it_is() -> None:
    assert (html.euro(5), html.euro("x"), html.euro(1.23456)) == ("0.05 euro", "x", "1.23")


def test_a_field_that_is_written_in_its_own_way_is_masked_all_the_same() -> None:
    decision = Approved(email=SECRET, meta=META)
    assert dict(html.rows(decision, email=str))["email"] == "***"


THEMES = {"light": ("#ffffff", "#111111"), "dark": ("#111111", "#eeeeee")}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = program(*CHROMIUM)
    arguments = ["--headless", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


def ratio(one: str, other: str) -> float:
    """How well a colour is seen on another, as WCAG has it: 3 for what is no text."""
    dark, light = sorted(luminance(each) + 0.05 for each in (one, other))
    return light / dark


@pytest.mark.parametrize("theme", THEMES)
def test_a_card_is_read_in_the_colours_of_its_notebook(browser: Browser, theme: str) -> None:
    ground, ink = THEMES[theme]
    tones: Any = ("good", "bad", "doubt", "plain")
    cards = "".join(html.card("Title", tone, said="said", pairs=[("a", "b")], notes=["n"]) for tone in tones)
    page = browser.new_page()
    page.set_content(f'<body style="background:{ground};color:{ink}">{cards}')
    used = "(all) => all.map(each => [getComputedStyle(each).color, getComputedStyle(each).backgroundColor])"
    colours = {tuple(each) for each in page.locator("body *").evaluate_all(used)}
    assert len(colours) == 1, "text and ground are the notebook's own"
    [(text, behind)] = colours
    assert ratio(text, ground_of(ground)) > 10
    assert behind == "rgba(0, 0, 0, 0)"
    edges = page.locator("body > div").evaluate_all(
        "(all) => all.map(each => getComputedStyle(each).borderLeftColor)"
    )
    assert len(set(edges)) == 4
    assert min(ratio(edge, ground_of(ground)) for edge in edges) >= 3
    page.close()


def ground_of(colour: str) -> str:
    """As a browser tells it."""
    return " ".join(str(int(part, 16)) for part in re.findall("[0-9a-f]{2}", colour))
