"""Interrupts such as Ctrl-C at the lines of an approval."""

from pathlib import Path

import pytest

import support.interrupts
from support.processes import run_script

SCRIPT = Path(support.interrupts.__file__).read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["warm connection", "new connection", "retry", "pair", "ledger"])
@pytest.mark.parametrize("step", ["11", pytest.param("1", marks=pytest.mark.scheduled)])
def test_interrupt_at_any_line_leaves_nothing_in_flight(kind: str, step: str) -> None:
    done = run_script(SCRIPT, kind, step, warning="ignore")
    [lines] = done.stdout.splitlines()
    assert int(lines.split()[0]) > 200
