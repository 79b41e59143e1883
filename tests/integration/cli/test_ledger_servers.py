"""``loanasync ledger`` and ``approve-many`` with a ledger on a server; its password is never shown."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from secrets import token_hex

import pytest

from loanasync.ledger import Entry, Ledger, State
from loanasync.ledger.address import ledger_at
from loanasync.sandbox import Sandbox
from support.cli import Bulk, read, statuses
from support.ledger_clients import KEY
from support.ledger_file import create_at, listed, name_on, put, run_ledger


@pytest.fixture(params=["valkey", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """Return the name of a new ledger on a server of each kind."""
    return name_on(request.getfixturevalue(request.param))


def using(url: str, work: Callable[[Ledger], Awaitable[Entry]]) -> Entry:
    async def done() -> Entry:
        ledger = ledger_at(url)
        try:
            return await work(ledger)
        finally:
            await ledger.aclose()

    return asyncio.run(done())


def state(url: str, key: str) -> str:
    return str(json.loads(run_ledger("show", url, key, "--json").stdout)["state"])


def test_ledger_on_a_server_show_resolve_and_sweep(url: str) -> None:
    create_at(url)
    unknown, expired = token_hex(32), token_hex(32)
    using(url, lambda ledger: put(ledger, "x", State.UNKNOWN, under=unknown, note="ReadTimeoutError"))
    using(url, lambda ledger: put(ledger, "x", State.INFLIGHT, under=expired, lease=0.0))
    assert state(url, unknown[:12]) == "unknown"
    swept = run_ledger("sweep", url)
    assert swept.exit_code == 3
    assert f"{expired[:12]}  unknown" in swept.stdout
    assert run_ledger("sweep", url).stderr.startswith("0 leases expired")
    done = run_ledger("resolve", url, unknown[:12], expired[:12], "--as", "refused", "--note", "ticket 17")
    assert done.exit_code == 0, done.output
    assert state(url, unknown) == state(url, expired) == "refused"
    corrected = run_ledger("resolve", url, expired, "--as", "released", "--note", "x")
    assert (corrected.exit_code, corrected.stderr.split(": ")[1]) == (
        0,
        "corrected; the earlier state is kept in the history\n",
    )
    assert state(url, expired) == "released"
    history = json.loads(run_ledger("show", url, expired, "--json").stdout)["history"]
    assert [(each["state"], each["note"]) for each in history][-1] == ("refused", "ticket 17")
    exported = [each["key"] for each in listed(url)]
    assert {unknown, expired} <= {*exported}


def test_approve_many_resumes_from_a_ledger_on_a_server(
    tmp_path: Path, url: str, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_at(url, served.base_url)
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", KEY.decode())
    # Both servers accept any password of this user.
    scheme, _, rest = url.partition("://")
    user = "default" if scheme == "redis" else "postgres"
    secret = f"{scheme}://{user}:s3cret@{rest.rpartition('@')[2]}"
    bulk = Bulk(tmp_path, served, "approved", "refused", "resetafter", ledger=secret)
    code, output = bulk.run()
    assert (code, "s3cret" in output, b"s3cret" in bulk.job.read_bytes()) == (3, False, False)
    unknown = read(bulk.out)[2]["entry"]
    run_ledger("resolve", url, unknown, "--as", "approved", "--note", "ticket 17")
    elsewhere = tmp_path / "elsewhere.jsonl"
    assert bulk.run(out=elsewhere)[0] == 0
    assert [*statuses(elsewhere).values()] == ["approved", "refused", "approved"]
    assert bulk.calls == 3


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_unreachable_server_is_reported_without_its_password(
    tmp_path: Path, served: Sandbox, scheme: str
) -> None:
    url = f"{scheme}://shop:SECRET@127.0.0.1:1/0"
    done = run_ledger("ls", url)
    code, output = Bulk(tmp_path, served, "approved", ledger=url).run()
    for exit_code, text in ((done.exit_code, done.output), (code, output)):
        assert exit_code == 2
        assert text.startswith("the ledger is not available (")
        assert "SECRET" not in text
    assert served.journal.calls(operation="approve") == []
    assert [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"]
