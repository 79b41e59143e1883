"""The SDK sends once, loses no decision and reports no wrong outcome, in all readings of the spec."""

import logging
from itertools import combinations, product

import pytest

from loanasync.sandbox import Readings
from support.readings.runner import run
from support.readings.services import exhaustive, pairwise


@pytest.fixture(autouse=True)
def _no_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "loanasync")  # otherwise pytest formats thousands of log records


async def test_readings_pairwise_have_no_violation() -> None:
    report = await run(pairwise())
    assert not report.numbers.evaluations
    assert not report.numbers.lost
    assert not report.numbers.wrong
    assert report.flows == 200 * report.services


def test_pairwise_services_have_all_pairs_of_values() -> None:
    choices, services = Readings.choices(), pairwise()
    for first, second in combinations(choices, 2):
        found = {(getattr(each, first), getattr(each, second)) for each in services}
        assert found == set(product(choices[first], choices[second]))


def test_exhaustive_services_are_4096_different_services() -> None:
    assert len(set(exhaustive())) == 4096
