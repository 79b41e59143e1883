"""HTML tables in notebooks: masked like `repr`, escaped, and in the colours of any theme."""

from html.parser import HTMLParser
from typing import Any

from loanasync import Approved, Meta, Problem, Refused, errors
from loanasync._models import notebook
from loanasync._models.decisions import Problems
from loanasync.bulk import Row, RowResult, Summary
from loanasync.bulk.rows import result_of
from loanasync.testing import approval_request, fiscal_code

META = Meta(status=201, attempts=1, elapsed=0.01234, trace_id="4bf92f3577b34da6a3ce929d0e0e4736")
HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>\u202e\x07$e^x$"
SECRET = "Zzqperson"


def shown(value: Any) -> str:
    table: str = value._repr_html_()
    return table


def texts(text: Any) -> list[object]:
    """Return values with this text as the message of a problem."""
    problem = Problem(text, text, text, text, hint=text)
    return [
        errors.InvalidRequestError((problem,)),
        errors.RejectedError("approve", (problem, problem), Meta(400, 1, 0.1, text, (text,))),
        errors.UnexpectedResponseError("approve", (text,), "unknown", META, (problem,)),
        RowResult(
            0, (fiscal_code(), approval_request()), "rejected", None, errors.InvalidRequestError((problem,))
        ),
        RowResult(0, (fiscal_code(), approval_request()), "refused", Refused(amount=text, meta=META)),
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


def test_table_texts_are_escaped() -> None:
    for harmless, hostile in zip(texts("harmless"), texts(HOSTILE), strict=True):
        usual, page = Page(shown(harmless)), Page(shown(hostile))
        assert (page.elements, page.attributes) == (usual.elements, usual.attributes), hostile
        assert "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>  $e^x$" in page.text, hostile
        assert {name for name, _ in page.attributes} == {"class", "style"}
        assert ("class", "tex2jax_ignore mathjax_ignore") in page.attributes


def test_error_html_shows_advice_and_each_problem_once() -> None:
    problems = (
        Problem("amount", "amount", "must be more", "amount.range", hint="in cents"),
        Problem("last_name", "lastname", "is required"),
    )
    page = Page(shown(errors.InvalidRequestError(problems)))
    assert page.text == (
        "InvalidRequestError: request not sent; fix these fields"
        "fieldmessagecodeamountmust be more; in centsamount.rangelast_nameis required"
    )
    assert (
        Page(shown(Problems(problems[:1]))).text
        == "problemsfieldmessagecodeamountmust be more; in centsamount.range"
    )
    assert Page(shown(Problems())).text == "no problemsfieldmessagecode"
    page = Page(shown(errors.AlreadyEvaluatedError("approve", problems[:1], META)))
    assert "approve failed with status 201 (see below): this customer was evaluated before" in page.text
    assert page.text.count("must be more") == 1
    for value in (
        errors.ClientClosedError()._repr_html_(),
        *(hasattr(each, "_repr_html_") for each in (META, *problems)),
    ):
        assert not value, "a notebook shows its `repr`"


def test_row_result_html_shows_no_personal_data() -> None:
    decision = Approved(redirect_url=SECRET, last_name=SECRET, meta=META)
    error = errors.DecisionNotRecordedError("approve", "0f" * 32, "approved", decision, None, "OSError")
    unrecorded = RowResult(3, Row(SECRET, approval_request()), "approved", decision, error)
    foreign = result_of(4, (SECRET, approval_request()), ValueError(SECRET))
    for result, text in (
        (unrecorded, f"approved3DecisionNotRecordedError: {error}"),
        (foreign, "unknown4TransportError: approve: no response (ValueError): "),
    ):
        assert SECRET not in shown(result)
        assert text in Page(shown(result)).text


def test_row_result_html_shows_the_result() -> None:
    error = errors.ConnectionLostError("approve", "ServerDisconnectedError", "unknown", 1)
    page = Page(shown(RowResult(0, (SECRET, approval_request()), "unknown", None, error)))
    head = "Result of a rowstatusrowamountnet amounterror"
    assert page.text == f"{head}unknown0ConnectionLostError: {error}"
    decision = Approved(amount=123_450, net_amount=119_747, email=SECRET, meta=META)
    page = Page(shown(RowResult(4, (SECRET, approval_request()), "approved", decision)))
    assert page.text == f"{head}approved41,234.50 euro1,197.47 euro"
    row = Row(SECRET, approval_request(), id="order 7")
    refused = Refused(amount=123_450, net_amount=119_747, meta=META)
    assert Page(shown(RowResult(4, row, "refused", refused))).text == f"{head}refusedorder 71,234.50 euro"


def test_summary_html_has_each_status_with_its_sum() -> None:
    summary = Summary(
        approved=2, unknown=1, failed=1, amount_approved=90_000, amount_unknown=10_000, net_amount=88_000,
        elapsed=2.5, errors={"ConnectionLostError": 1, "ConnectError": 1},
    )  # fmt: skip
    assert Page(shown(summary)).text == (
        "Summary of 4 rowsstatusrowsamountapproved2900.00 eurounknown1100.00 eurofailed1"
        "net amount 880.00 euro; 2.5 s since the first row"
        "1 × ConnectionLostError1 × ConnectError"
    )


def test_euro_returns_other_values_as_text() -> None:
    assert (notebook.euro(5), notebook.euro("x"), notebook.euro(None)) == ("0.05 euro", "x", "")
