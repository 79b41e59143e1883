"""Failed rows of `approve_many`, grouped by cause: in the summary, in `repr()` and in a notebook."""

import attrs
import pytest

from loanasync import ConnectError, ConnectionLostError, LoanError, Meta, Problem, RejectedError, ServiceError
from loanasync.bulk import FailureGroup, Row, RowResult, Summary
from loanasync.bulk.causes import CauseTally
from loanasync.bulk.rows import result_of
from loanasync.bulk.summary import Tally
from support.builders import FISCAL_CODE, approval_request
from support.bulk import DECISION

REFUSED = ConnectError("approve", "ClientConnectorError errno 111", "not_sent", 1)
UNREACHABLE = ConnectError("approve", "ClientConnectorError errno 113", "not_sent", 1)


def service_error(status: int, message: str = "Sorry") -> ServiceError:
    return ServiceError("approve", (Problem("domain", "domain", message),), Meta(status, 1, 0.1))


def summary_of(*errors: Exception) -> Summary:
    tally = Tally()
    for index, error in enumerate(errors):
        tally.add(result_of(index, Row(FISCAL_CODE, approval_request()), error))
    return tally.summary()


def test_failures_of_one_cause_are_one_group_with_the_first_rows() -> None:
    lost = ConnectionLostError("approve", "ServerDisconnectedError", "unknown", 1)
    assert summary_of(lost, *[attrs.evolve(REFUSED)] * 5).failures == (
        FailureGroup(f"ConnectError: {REFUSED}", 5, "not_sent", (1, 2, 3)),
        FailureGroup(f"ConnectionLostError: {lost}", 1, "unknown", (0,)),
    )


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        (("line 7 of 9", "line 12 of 9"), "line … of 9"),
        (("try at 2026-11-23T02:17:50 again", "try at 2026-11-24T03:00:00 again"), "try at …:…:… again"),
        (
            ("id 0f8fad5b-d9cb-469f-a165-70867728950e!", "id 7c9e6679-7425-40de-944b-e07fc1f90ae7!"),
            "id …!",
        ),
        (("entry 491687359f07", "entry c7ee1cbfc005", "entry c7ee1cbfc005"), "entry …"),
        (("amount 5", "amount 5"), "amount 5"),
    ],
)
def test_messages_that_differ_in_numbers_and_ids_are_one_cause(messages: tuple[str, ...], shown: str) -> None:
    tally: CauseTally[str] = CauseTally()
    for number, message in enumerate(messages):
        tally.add("field", message, number)
    (cause,) = tally.causes()
    assert (cause.kind, cause.text, cause.count) == ("field", shown, len(messages))


def test_tally_counts_causes_after_a_thousand_as_other_causes() -> None:
    tally: CauseTally[str] = CauseTally()
    for row in range(3_000):
        letters = f"{row:012b}".translate({ord("0"): "a", ord("1"): "b"})
        tally.add("field", f"{letters} in row {row}", row)
    tally.add("field", "aaaaaaaaaaaa in row 3000", 3_000)
    largest, second, *others = tally.causes()
    assert (largest.text, largest.count, largest.rows) == ("other causes", 2_000, [1_000, 1_001, 1_002])
    assert (second.text, second.count) == ("aaaaaaaaaaaa in row …", 2)
    assert len(others) == 999


def test_long_word_without_a_number_is_searched_only_once() -> None:
    """A search from each letter would take hours."""
    tally: CauseTally[str] = CauseTally()
    tally.add("field", "a" * 1_000_000, 0)
    assert [cause.count for cause in tally.causes()] == [1]


@pytest.mark.parametrize(
    "errors",
    [
        (REFUSED, UNREACHABLE),
        (service_error(500), service_error(503)),
        (service_error(500), service_error(500, "Closed")),
        (REFUSED, attrs.evolve(REFUSED, outcome="unknown")),
    ],
)
def test_failures_with_another_status_errno_or_outcome_are_other_causes(
    errors: tuple[LoanError, ...],
) -> None:
    assert [group.count for group in summary_of(*errors).failures] == [1, 1]


def test_group_has_the_first_rows_of_the_file_in_any_order_of_arrival() -> None:
    tally: CauseTally[str] = CauseTally()
    for row in (9, 4, 7, 1, 8, 2):
        tally.add("field", "amount", row)
    (cause,) = tally.causes()
    assert cause.rows == [1, 2, 4]


def test_rejected_rows_are_grouped_by_their_problems() -> None:
    city, postal = (Problem(name, name, "This value should not be blank.") for name in ("city", "postal"))
    errors = [RejectedError("approve", (each,), Meta(400, 1, 0.1)) for each in (city, postal, city)]
    largest, _ = summary_of(*errors).failures
    assert (largest.count, largest.rows, largest.outcome) == (2, (0, 2), "not_evaluated")
    assert "(city: This value should not be blank.)" in largest.cause


def test_error_of_another_library_is_shown_without_its_message() -> None:
    (group,) = summary_of(ValueError(f"no such customer: {FISCAL_CODE}"), ValueError("other")).failures
    assert group.cause.startswith("TransportError: approve: no response (ValueError): ")
    assert (group.count, group.outcome, group.rows) == (2, "unknown", (0, 1))
    assert FISCAL_CODE not in group.cause


def test_decided_rows_are_no_failures() -> None:
    tally = Tally()
    tally.add(RowResult(0, Row(FISCAL_CODE, approval_request()), "approved", DECISION))
    assert tally.summary().failures == ()


def test_summary_repr_counts_failures_by_type() -> None:
    shown = repr(summary_of(service_error(500), REFUSED, UNREACHABLE))
    assert shown.endswith("; failures: 2 × ConnectError, 1 × ServiceError>")


def test_summary_in_a_notebook_lists_ten_causes() -> None:
    html = summary_of(*(service_error(status) for status in range(500, 512)))._repr_html_()
    assert "1 × ServiceError: approve failed with status 500 (domain: Sorry): " in html
    assert html.count("1 × ServiceError") == 10
    assert "and 2 other causes, see failures" in html
    assert "other causes" not in summary_of(REFUSED)._repr_html_()
