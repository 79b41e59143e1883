"""Interrupts such as Ctrl-C at the lines of an approval."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

import support.interrupts
from support.processes import run_script

SCRIPT = Path(support.interrupts.__file__).read_text(encoding="utf-8")


KINDS = ("warm connection", "new connection", "retry", "pair", "ledger")
LATE = "time limit"  # from the first line that ends the exchange


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only some systems fork")
@pytest.mark.parametrize(
    ("step", "kinds"),
    [
        ("11", KINDS),
        ("3", [LATE]),
        *(pytest.param("1", [kind], marks=pytest.mark.scheduled) for kind in (*KINDS, LATE)),
    ],
)
def test_interrupt_at_any_line_leaves_nothing_in_flight(step: str, kinds: Sequence[str]) -> None:
    done = run_script(SCRIPT, step, *kinds, warning="ignore")
    lines = re.fullmatch(r"(\d+) lines\n" * len(kinds), done.stdout)
    assert lines, done.stdout + done.stderr
    assert min(map(int, lines.groups())) > 200
