"""The benchmarks run, and their figures are figures; how good these are is for people to judge."""

import json
import re
from pathlib import Path

from benchmarked import printed, run


def test_the_sandbox_is_measured_beside_a_bare_handler(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    told = printed("sandbox.py", "--rounds=2", "--approvals=1000", f"--json={file}")
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert [row["name"] for row in rows] == ["approvals a second", "µs of CPU an approval"]
    for row in rows:
        assert re.search(rf"^{row['name']} +[0-9,]+ +[0-9,]+ +[0-9.]+ ", told, re.MULTILINE)
        assert min(row[name] for name in ("bare", "sandbox", "ratio", "lowest", "highest")) > 0


def test_the_soak_tells_the_memory_on_its_way() -> None:
    told = printed("soak.py", "--requests=600", "--people=100", "--tolerance=100")
    assert [int(mark) for mark in re.findall(r"^ *([0-9]+) %  +[0-9,]+ requests", told, re.MULTILINE)] == [
        *(10, 50, 100)
    ]
    assert all(float(size) > 0 for size in re.findall(r"([0-9.]+) MB$", told, re.MULTILINE))
    assert re.search(r"^rate +[1-9][0-9,]* requests a second", told, re.MULTILINE)


def test_what_telemetry_costs_is_measured_beside_what_is_written_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    told = printed("telemetry.py", "--rounds=5", "--calls=20", f"--json={file}")
    rows = {row["name"]: row for row in json.loads(file.read_text(encoding="utf-8"))}
    assert list(rows) == ["removed", "no SDK", "sampled out", "recording", "by hand", "by hand, out"]
    assert rows["removed"]["added"] == 0
    assert rows["by hand"]["by hand"] == 1
    assert rows["recording"]["added"] > rows["no SDK"]["added"]
    assert all(re.search(rf"^{name} +[0-9.]+ ", told, re.MULTILINE) for name in rows)


def test_a_soak_that_grows_more_than_it_may_says_so() -> None:
    done = run("soak.py", "--requests=600", "--people=100", "--tolerance=-100")
    assert (done.returncode, done.stderr) == (1, "the second half grew by more than -100.0 %\n")
