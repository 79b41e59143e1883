"""A complete bulk run: many rows, faults after the decision, two interruptions, and resolved entries."""

import json
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from loanasync.sandbox import Sandbox
from support.cli import create, make_row, read, run, start, statuses, wait_for, write
from support.ledger_file import change, create_at, listed, run_ledger

ROWS = 10_000 if os.environ.get("LOANASYNC_SOAK") else 160  # `nox -s soak` sets it
CONCURRENCY = 16

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def decided(sandbox: Sandbox) -> dict[str, str]:
    """Return the service's decision by customer."""
    names = {True: "approved", False: "refused"}
    records = {code: json.loads(record) for code, record in sandbox.snapshot().items()}
    return {code: names[each["approved"]] for code, each in records.items() if each["approved"] is not None}


def interrupted_and_killed(
    sandbox: Sandbox, command: tuple[object, ...], out: Path, ledger: Path
) -> set[str]:
    """Interrupt one run and kill another. Return the entry keys of the requests in flight at the kill."""
    first = start(sandbox, *command)
    wait_for(lambda: len(sandbox.journal.calls(operation="approve")) >= ROWS // 4)
    first.send_signal(signal.SIGINT)
    _, output = first.communicate(timeout=60)
    assert (first.returncode, "Traceback" in output) == (130, False), output
    assert statuses(out).keys() == decided(sandbox).keys(), "every requested customer has a result"
    second = start(sandbox, *command)
    wait_for(lambda: len(sandbox.journal.calls(operation="approve")) >= ROWS // 2)
    second.kill()
    second.communicate()
    killed = {each["key"][:12] for each in listed(ledger) if each["state"] == "inflight"}
    assert len(killed) <= CONCURRENCY
    change(ledger, "UPDATE entries SET lease_end = 0 WHERE state = 'inflight'")  # their leases expire
    return killed


def test_interrupted_runs_keep_every_decision_and_mark_lost_ones_unknown(
    tmp_path: Path,
) -> None:
    source = random.Random(7)  # noqa: S311  (not a secret)
    tags = source.choices(["approved", "refused", "500after", "resetafter"], [67, 30, 2, 1], k=ROWS)
    rows = [make_row(tag) for tag in tags]
    lost = {row["fiscal_code"] for row, tag in zip(rows, tags, strict=True) if "after" in tag}
    out, ledger, file = (tmp_path / name for name in ("out.jsonl", "decisions.db", "rows.jsonl"))
    write(file, rows)
    command = ("approve-many", file, "-o", out, "--ledger", ledger, "--concurrency", CONCURRENCY)
    with Sandbox.in_thread(customers=2 * ROWS, journal=4 * ROWS) as sandbox:
        create(sandbox, rows)
        create_at(ledger, sandbox.base_url)

        killed = interrupted_and_killed(sandbox, command, out, ledger)
        done = run(sandbox, *command, "--report", tmp_path / "report.json")
        assert done.returncode == 3, done.stderr
        found = statuses(out)
        entries = {line["fiscal_code"]: line["entry"] for line in read(out)}
        unknown = {code for code, status in found.items() if status == "unknown"}
        assert unknown == lost | {code for code, entry in entries.items() if entry in killed}
        known = {code: status for code, status in found.items() if status != "unknown"}
        assert known == {code: decision for code, decision in decided(sandbox).items() if code not in unknown}
        assert found.keys() == {row["fiscal_code"] for row in rows}
        open_ones = {each["key"][:12] for each in listed(ledger) if each["state"] in ("unknown", "lost")}
        assert open_ones == {entries[code] for code in unknown}, "the ledger agrees"
        report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
        assert report["counts"]["unknown"]["rows"] == len(unknown)

        calls = sandbox.journal.calls(operation="approve")
        evaluated = Counter(call.fiscal_code for call in calls if call.fiscal_code not in lost)
        assert max(evaluated.values()) == 1, "no customer is requested twice, except after HTTP 500"
        assert sandbox.findings == [], "no refusal was repeated"
        again = run(sandbox, *command)
        assert again.returncode == 3
        assert len(sandbox.journal.calls(operation="approve")) == len(calls), (
            "the same command again sends nothing"
        )

        # A person asks the service about each one, and records its decision.
        service = decided(sandbox)
        for resolution in ("approved", "refused", "released"):
            keys = [entries[code] for code in unknown if service.get(code, "released") == resolution]
            if keys:
                settled = run_ledger("resolve", ledger, *keys, "--as", resolution, "--note", "ticket 17")
                assert settled.exit_code == 0, settled.stderr
        run(sandbox, *command)
        final = decided(sandbox)
        states = {each["key"][:12]: each["state"] for each in listed(ledger)}
        # Killed before the request arrived, and requested again after that.
        lost_again = lost - service.keys()
        resolved = {code: states[entry] for code, entry in entries.items() if code not in lost_again}
        assert resolved == {code: decision for code, decision in final.items() if code not in lost_again}
        assert len(lost_again) <= len(killed)
        assert sandbox.findings == []
