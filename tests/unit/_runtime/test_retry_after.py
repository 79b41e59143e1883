"""The Retry-After header, in seconds or as a date, and the resulting wait."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from loanasync._runtime.retry import retry_after


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        pytest.param("3", 3, 3, id="seconds"),
        pytest.param("", 0, 0, id="empty"),
        pytest.param("soon", 0, 0, id="words"),
        pytest.param("-5", 0, 0, id="negative"),
        pytest.param("٣", 0, 0, id="other digits"),
        pytest.param("9" * 5000, 10**9, 10**10, id="enormous"),
        pytest.param("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0, id="past"),
        pytest.param("Wed, 21 Oct 2015 07:28:00 -0000", 0, 0, id="past without zone"),
        pytest.param("Wed, 21 Oct " + "9" * 20 + " 07:28:00 GMT", 0, 0, id="far year"),
        pytest.param("Wed, 21 Oct 2015 07:28:00 +" + "9" * 20, 0, 0, id="far zone"),
        pytest.param(
            format_datetime(datetime.now(UTC) + timedelta(hours=9)), 8 * 3600, 9 * 3600, id="future"
        ),
        pytest.param(
            format_datetime(datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=9)),
            8 * 3600,
            9 * 3600,
            id="future without zone",
        ),
    ],
)
def test_retry_after_reads_seconds_and_dates_and_never_fails(value: str, least: float, most: float) -> None:
    assert least <= retry_after({"Retry-After": value}) <= most
