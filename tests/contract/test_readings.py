"""The SDK sends once, loses no decision and reports no wrong outcome, in all readings of the spec."""

import logging
from itertools import combinations, product

import pytest

from loanasync.sandbox import Readings
from support.readings.flows import FLOWS
from support.readings.planted import PLANTED, Planted
from support.readings.runner import run
from support.readings.services import exhaustive, pairwise

# The readings of support.readings; R8, R9, R10 and R13 have neither a switch nor a state.
ROWS = {"R1", "R2", "R3", "R4", "R5", "R6", "R7", "R11", "R12", "R14"}


@pytest.fixture(autouse=True)
def _no_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "loanasync")  # otherwise pytest formats thousands of log records


async def test_readings_pairwise_have_no_violation() -> None:
    report = await run(pairwise())
    assert not report.numbers.evaluations
    assert not report.numbers.lost
    assert not report.numbers.wrong
    assert report.flows == 200 * report.services


@pytest.mark.scheduled  # shows that the test above notices faults
@pytest.mark.parametrize("planted", PLANTED, ids=[f"{each.row}: {each.name}" for each in PLANTED])
async def test_readings_planted_fault_is_detected(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.plant(monkeypatch)
    for readings, (name, flow) in product(pairwise(), FLOWS.items()):
        report = await run([readings], {name: flow})
        if any(report.numbers.figures):
            return
    pytest.fail("no number noticed it")


def test_planted_faults_break_every_row() -> None:
    assert {each.row for each in PLANTED} >= ROWS


def test_pairwise_services_have_all_pairs_of_values() -> None:
    choices, services = Readings.choices(), pairwise()
    for first, second in combinations(choices, 2):
        found = {(getattr(each, first), getattr(each, second)) for each in services}
        assert found == set(product(choices[first], choices[second]))


def test_exhaustive_services_are_4096_different_services() -> None:
    assert len(set(exhaustive())) == 4096
