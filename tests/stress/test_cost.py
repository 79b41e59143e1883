"""Upper bounds of function calls and objects per call, which are equal on every machine."""

import json
import sys
from pathlib import Path

import pytest

from support.benchmarks import printed

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the service reads commands from a pipe")

# For the full order, with Python 3.11, 3.12, and 3.13 or later. Calls are exactly those that
# `python benchmarks/counts.py` prints; objects are a few more. Lower all of them when the client improves.
BOUNDS = {
    "function calls, script": (143, 142, 142),
    "function calls, own session": (142, 141, 140),
    "function calls, session of the user": (156, 155, 154),
    "function calls, recording": (437, 436, 435),
    "C calls, script": (134, 134, 132),
    "C calls, own session": (146, 146, 143),
    "C calls, session of the user": (154, 154, 151),
    "C calls, recording": (368, 370, 357),
    "objects in flight, own session": (19, 19, 19),
    "objects in flight, session of the user": (19, 19, 19),
}
COLUMN = min(sys.version_info[1], 13) - 11
# The same figures of plain aiohttp, which the client may not exceed.
PLAIN = {
    "function calls, own session": "function calls, plain aiohttp",
    "function calls, recording": "function calls, plain aiohttp + telemetry",
    "objects in flight, own session": "objects in flight, plain aiohttp",
    "objects in flight, session of the user": "objects in flight, plain aiohttp",
    "objects in flight, recording": "objects in flight, plain aiohttp + telemetry",
}


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    file = tmp_path_factory.mktemp("counts") / "figures.json"
    printed("counts.py", f"--json={file}")
    figures: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))["counts"]
    return figures


@pytest.mark.parametrize("figure", BOUNDS)
def test_approval_stays_below_its_bound(figure: str, counted: dict[str, float]) -> None:
    plain = ", ".join(f"{counted[name]:.0f} {name}" for name in sorted({*PLAIN.values()}))
    bound = BOUNDS[figure][COLUMN]
    assert counted[figure] <= bound, (
        f"{counted[figure]:.1f} {figure}; the bound is {bound}. Find the work that was added to it."
        f" If plain aiohttp has more as well, aiohttp is the cause, and the bound may be raised: now {plain}"
    )


@pytest.mark.parametrize("figure", PLAIN)
def test_approval_costs_no_more_than_with_plain_aiohttp(figure: str, counted: dict[str, float]) -> None:
    assert counted[figure] <= counted[PLAIN[figure]]


def test_call_in_flight_uses_no_more_memory_than_plain_aiohttp(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    printed("growth.py", "--parts=memory", "--in-flight=200", "--rounds=1", f"--json={file}")
    for row in json.loads(file.read_text(encoding="utf-8"))["rows"]:
        assert row["ratios"].keys() == {"loanasync", "user"}
        assert all(ratio["median"] <= 1 for ratio in row["ratios"].values()), row
