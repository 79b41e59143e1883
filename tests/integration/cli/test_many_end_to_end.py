"""A complete bulk run: many rows, faults after the decision, two interruptions, and resolved entries."""

import os
import random
import signal
from pathlib import Path

import pytest

from loanasync.sandbox import Sandbox
from support.cli import Bulk, read, start, statuses, wait_for
from support.ledger_file import change, create_at, listed, run_ledger

ROWS = 10_000 if os.environ.get("LOANASYNC_SOAK") else 160  # `nox -s soak` sets it
CONCURRENCY = 16

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def decided(sandbox: Sandbox) -> dict[str, str]:
    """Return the service's decision by customer."""
    names = {True: "approved", False: "refused"}
    found = {code: customer.order.approved for code, customer in sandbox._engine.customers.items()}
    return {code: names[approved] for code, approved in found.items() if approved is not None}


def interrupted_and_killed(bulk: Bulk, ledger: Path) -> set[str]:
    """Interrupt one run and kill another. Return the entry keys of the requests in flight at the kill."""
    first = start(bulk.sandbox, *bulk.command("--concurrency", CONCURRENCY))
    wait_for(lambda: len(bulk.requests) >= ROWS // 4)
    first.send_signal(signal.SIGINT)
    _, output = first.communicate(timeout=60)
    assert (first.returncode, "Traceback" in output) == (130, False), output
    assert [line["line"] for line in read(bulk.out)] == [*range(1, ROWS + 1)]
    sent = {line["fiscal_code"] for line in read(bulk.out) if line["status"] != "not_sent"}
    assert sent == decided(bulk.sandbox).keys(), "every requested customer has a result"
    second = start(bulk.sandbox, *bulk.command("--concurrency", CONCURRENCY))
    wait_for(lambda: len(bulk.requests) >= ROWS // 2)
    second.kill()
    second.communicate()
    killed = {each["key"][:12] for each in listed(ledger) if each["state"] == "inflight"}
    assert len(killed) <= CONCURRENCY
    change(ledger, "UPDATE entries SET lease_end = 0 WHERE state = 'inflight'")  # their leases expire
    return killed


def test_interrupted_runs_keep_every_decision_and_mark_lost_ones_unknown(tmp_path: Path) -> None:
    source = random.Random(7)  # noqa: S311  (not a secret)
    tags = source.choices(["approved", "refused", "500after", "resetafter"], [67, 30, 2, 1], k=ROWS)
    ledger = tmp_path / "decisions.db"
    with Sandbox.in_thread(customers=2 * ROWS, journal=4 * ROWS) as sandbox:
        create_at(ledger, sandbox.base_url)
        bulk = Bulk(tmp_path, sandbox, *tags, ledger=ledger)
        lost = {code for code, tag in zip(bulk.codes, tags, strict=True) if "after" in tag}
        killed = interrupted_and_killed(bulk, ledger)
        code, output = bulk.run()
        assert code == 3, output
        found = statuses(bulk.out)
        entries = {line["fiscal_code"]: line["entry"] for line in read(bulk.out)}
        unknown = {code for code, status in found.items() if status == "unknown"}
        assert unknown == lost | {code for code, entry in entries.items() if entry in killed}
        known = {code: status for code, status in found.items() if status != "unknown"}
        assert known == {code: decision for code, decision in decided(sandbox).items() if code not in unknown}
        assert found.keys() == {*bulk.codes}
        open_ones = {each["key"][:12] for each in listed(ledger) if each["state"] in ("unknown", "lost")}
        assert open_ones == {entries[code] for code in unknown}, "the ledger agrees"
        requests = bulk.requests
        evaluated = [code for code in requests if code not in lost]
        assert len({*evaluated}) == len(evaluated), "no customer is requested twice, except after HTTP 500"
        assert (bulk.run()[0], len(bulk.requests)) == (3, len(requests)), "the same command sends nothing"

        # A person asks the service about each one, and records its decision.
        service = decided(sandbox)
        for resolution in ("approved", "refused", "released"):
            keys = [entries[code] for code in unknown if service.get(code, "released") == resolution]
            if keys:
                settled = run_ledger("resolve", ledger, *keys, "--as", resolution, "--note", "ticket 17")
                assert settled.exit_code == 0, settled.stderr
        bulk.run()
        states = {each["key"][:12]: each["state"] for each in listed(ledger)}
        # Killed before the request arrived, and requested again after that.
        lost_again = lost - service.keys()
        assert len(lost_again) <= len(killed)
        resolved = {code: states[entry] for code, entry in entries.items() if code not in lost_again}
        final = decided(sandbox)
        assert resolved == {code: decision for code, decision in final.items() if code not in lost_again}
        assert sandbox.findings == [], "no refusal was repeated"
