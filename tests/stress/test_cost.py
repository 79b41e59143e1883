"""Upper bounds of function calls and objects per call, which are equal on every machine."""

import json
import sys
from pathlib import Path

import pytest

from support.benchmarks import printed

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the service reads commands from a pipe")

# Lower the bounds when the client improves: `python benchmarks/counts.py` prints the figures, and a bound is
# one or two percent above them. The last row also applies to newer Pythons. When the bounds were set, plain
# aiohttp took 240, 201 and 200 functions over a socket, and 45 objects.
BOUNDS = {
    (3, 11): {"function calls, script": 116, "function calls, socket": 189, "objects in flight": 19},
    (3, 12): {"function calls, script": 115, "function calls, socket": 186, "objects in flight": 19},
    (3, 13): {"function calls, script": 115, "function calls, socket": 186, "objects in flight": 19},
}
PLAIN = ("function calls of plain aiohttp, socket", "objects in flight of plain aiohttp")


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    file = tmp_path_factory.mktemp("counts") / "figures.json"
    printed("counts.py", f"--json={file}")
    figures: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))
    return figures


@pytest.mark.parametrize("figure", BOUNDS[3, 11])
def test_approval_stays_below_its_bound(figure: str, counted: dict[str, float]) -> None:
    version = max(row for row in BOUNDS if row <= sys.version_info[:2])
    bound = BOUNDS[version][figure]
    plain = ", ".join(f"{counted[name]:.0f} {name}" for name in PLAIN)
    assert counted[figure] <= bound, (
        f"{counted[figure]:.1f} {figure}; the bound is {bound}. Find the work that was added to a call. "
        f"If plain aiohttp has more as well, aiohttp is the cause, and the bound may be raised: now {plain}"
    )


def test_call_in_flight_uses_no_more_memory_than_plain_aiohttp(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    printed("growth.py", "--parts=memory", "--in-flight=200", "--rounds=1", f"--json={file}")
    for row in json.loads(file.read_text(encoding="utf-8")):
        assert row["ratio"]["median"] <= 1, row
