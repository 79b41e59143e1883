"""The benchmarks run, and their figures are figures; how good these are is for people to judge."""

import json
import re
from pathlib import Path

import pytest

from support.benchmarks import printed, run


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
    told = printed("telemetry.py", "--rounds=5", "--calls=20", "--processes=1", f"--json={file}")
    rows = {row["name"]: row for row in json.loads(file.read_text(encoding="utf-8"))}
    ours, others = ["no SDK", "sampled out", "recording"], ["the SDK alone, out", "by hand", "by hand, out"]
    assert rows.keys() == {"removed", *ours, *others}
    assert rows["removed"]["added"] == 0
    assert rows["by hand"]["by hand"] == 1
    assert rows["recording"]["added"] > rows["no SDK"]["added"]
    assert all(re.search(rf"^{name} +[0-9.]+ ", told, re.MULTILINE) for name in rows)


def test_what_a_ledger_adds_is_measured_beside_the_call_without_one(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    told = printed("ledger.py", "--rounds=2", "--calls=10", "--in-flight=1,4", f"--json={file}")
    figures = json.loads(file.read_text(encoding="utf-8"))
    servers = {"Valkey", "PostgreSQL"} - figures["left_out"].keys()
    for level, in_flight in zip(figures["levels"], (1, 4), strict=True):
        rows = {row["name"]: row for row in level["rows"]}
        assert rows.keys() == {"no ledger", "memory", "SQLite"} | servers
        assert f"\n{in_flight} in flight" in told
        assert rows["no ledger"]["wall"]["ratio"] == {"median": 1, "low": 1, "high": 1}
        assert all(row["wall"]["cost"]["low"] > 0 for row in rows.values())
        assert all(row["again"]["low"] > 0 < row["cpu"]["cost"]["low"] for row in rows.values())
    assert all(f"left out: {name}: {reason}" in told for name, reason in figures["left_out"].items())


def test_clients_are_compared_and_those_that_are_not_there_are_named(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    told = printed("calls.py", "--rounds=2", "--calls=20", "--in-flight=1,4", f"--json={file}")
    figures = json.loads(file.read_text(encoding="utf-8"))
    for level, in_flight in zip(figures["levels"], (1, 4), strict=True):
        rows = {row["name"]: row for row in level["rows"]}
        assert {"plain aiohttp", "plain + telemetry by hand", "ours", "ours, recording"} <= rows.keys()
        assert {"ours, through own session", "ours, through user's session"} <= rows.keys()
        assert len(rows) + len(figures["left_out"]) == 19
        assert f"\n{in_flight} in flight" in told
        assert rows["plain aiohttp"]["ratio"] == {"median": 1, "low": 1, "high": 1}
        assert rows["lower bound"]["cost"]["median"] < rows["plain + telemetry by hand"]["cost"]["median"]
        assert all(row["cost"]["low"] > 0 <= row["service_busy"] for row in rows.values())
        assert all(goal["median"] > 0 for goal in level["goals"])
        assert len(level["goals"]) >= 2
    assert all(f"left out: {name}: {reason}" in told for name, reason in figures["left_out"].items())


def test_some_clients_only_are_compared_with_the_baseline_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="a picture is drawn where its library is")
    picture, again = tmp_path / "first.svg", tmp_path / "second.svg"
    file = tmp_path / "figures.json"
    short = ("--rounds=1", "--calls=5", "--in-flight=2", "--variants=lower,sampled")
    told = printed("calls.py", *short, f"--json={file}", f"--plot={picture}")
    assert "stripe" not in told.splitlines()[1:6]
    printed("plot.py", str(file), str(again))
    assert picture.read_bytes() == again.read_bytes()
    rows = json.loads(file.read_text(encoding="utf-8"))["levels"][0]["rows"]
    assert [row["name"] for row in rows] == [
        *("plain aiohttp", "ours, sampled out", "lower bound", "lower bound on uvloop")
    ]


def test_conversions_are_measured_as_a_whole_and_step_by_step(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    told = printed("conversions.py", "--rounds=3", "--times=50", f"--json={file}")
    rows = {row["name"]: row for row in json.loads(file.read_text(encoding="utf-8"))}
    ours = [f"{way}, ours" for way in ("order to bytes", "bytes to decision")]
    steps = ("build", "check", "unstructure", "dumps", "loads", "structure")
    assert {*ours, *steps} <= rows.keys()
    assert all(rows[name]["ratio"]["median"] == 1 for name in ours)
    assert all(row["cost"]["low"] > 0 for row in rows.values())
    assert all(library in told for library in ("pydantic", "msgspec")), "measured, or said to be left out"


def test_growth_is_measured_beside_plain_aiohttp(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    short = ("--in-flight=1,20,10000000", "--calls=700", "--items=100", "--rounds=1", f"--json={file}")
    told = printed("growth.py", *short)
    rows = {row["name"]: row for row in json.loads(file.read_text(encoding="utf-8"))}
    assert list(rows) == [
        *("µs of CPU a call, 1 in flight", "µs of CPU a call, 20 in flight"),
        *("µs of CPU a call, first tenth of 700", "µs of CPU a call, last tenth of 700"),
        "MB grown in 700 calls",
        *("bytes a call of 20 and its connection", "bytes a call of 20 in flight"),
        *("ms to an answer, 20 in flight, median", "ms to an answer, 20 in flight, p99"),
        *("ms in the loop's longest step, 20 in flight", "ms in the longest step, without collections"),
        *("µs of CPU an item of 100", "kB of memory at most, 100 items"),
        *("µs of CPU an item that is not sent", "ms of CPU to import"),
    ]
    assert all(re.search(rf"^{re.escape(name)} +[0-9-]", told, re.MULTILINE) for name in rows)
    assert all(min(row["ours"], row["plain"]) > 0 for name, row in rows.items() if not name.startswith("MB"))
    whole, kept = rows["bytes a call of 20 and its connection"], rows["bytes a call of 20 in flight"]
    assert all(whole[name] > kept[name] > 1000 for name in ("ours", "plain"))
    steps = rows["ms in the loop's longest step, 20 in flight"]
    bare = rows["ms in the longest step, without collections"]
    assert all(steps[name] >= bare[name] for name in ("ours", "plain"))
    assert "left out: 10,000,000 in flight: this system opens" in told


def test_instructions_are_not_counted_without_valgrind_and_it_says_so() -> None:
    done = run("instructions.py", PATH="")
    assert (done.returncode, done.stderr) == (
        1,
        "valgrind is not installed: on Debian, `apt-get install valgrind`\n",
    )


def test_a_soak_that_grows_more_than_it_may_says_so() -> None:
    done = run("soak.py", "--requests=600", "--people=100", "--tolerance=-100")
    assert (done.returncode, done.stderr) == (1, "the second half grew by more than -100.0 %\n")
