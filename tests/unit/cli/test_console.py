"""The texts of numbers on the command line."""

import pytest

from loanasync.cli.console import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1.0, "0 s"),
        (119.0, "119 s"),
        (120.0, "2 min"),
        (7_199.0, "120 min"),
        (7_200.0, "2 h"),
        (172_800.0, "2 d"),
        (86_400_000.0, "1,000 d"),
    ],
)
def test_duration_has_the_largest_unit_of_which_there_are_two(seconds: float, text: str) -> None:
    assert duration(seconds) == text
