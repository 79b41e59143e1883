"""The example shop with two worker processes, one of which is killed during an approval."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from checkout import APPROVAL, SHORT

from loanasync.ledger import LedgerPolicy, PostgresLedger, create_ledger
from loanasync.sandbox import Sandbox
from support.example_shops import FORM
from support.servers import Postgres

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
PAGE = EXAMPLES.parent / "howto" / "web.md"
[OPTIONS] = re.findall(r"^uvicorn --factory \S+ --port 8000 (.+)$", PAGE.read_text("utf-8"), re.MULTILINE)
HANGING = {**FORM, "fiscal_code": "TSTXYZ00A00A000B", "email": "anna+hangafter@example.com"}


@contextmanager
def serving(
    served: Sandbox, folder: Path, *options: str, shop: str = "fastapi", **settings: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start uvicorn with a shop; yield its process and its address."""
    # No coverage in the subprocess: it would not be written after a kill.
    env = {name: os.environ[name] for name in os.environ if not name.startswith(("COV", "PYTHONSAFE"))}
    env |= {"LOANASYNC_BASE_URL": served.base_url, "LOANASYNC_SHOP_ID": served.shop_id}
    env |= {"LOANASYNC_AUTH_TOKEN": served.auth_token, **settings}
    command = ["-m", "uvicorn", "--factory", f"shop_{shop}:app", "--app-dir", str(EXAMPLES), "--port", "0"]
    with subprocess.Popen(
        [sys.executable, *command, *options],
        cwd=folder, env=env, stderr=subprocess.PIPE, encoding="utf-8",
    ) as running:  # fmt: skip
        assert running.stderr is not None
        try:
            for line in running.stderr:
                if found := re.search(r"unning on (http://127\.0\.0\.1:[0-9]+)", line):
                    break
            else:
                pytest.fail("the shop has not started")
            yield running, found[1]
        finally:
            running.terminate()
            running.stderr.read()


def approvals_of(served: Sandbox, form: dict[str, str]) -> int:
    return len(served.journal.calls(operation="approve", fiscal_code=form["fiscal_code"].upper()))


def heading(response: httpx.Response) -> str:
    return "".join(re.findall("<h1>(.*)</h1>", response.text))


def test_click_after_a_kill_is_answered_by_another_worker(served: Sandbox, tmp_path: Path) -> None:
    """Both workers know the orders and the approval, and the second one does not wait for the first."""
    with ExitStack() as stack:
        (first, address), (_, other_address) = (
            stack.enter_context(serving(served, tmp_path)) for _ in range(2)
        )
        browser = stack.enter_context(httpx.Client(base_url=address, timeout=60))
        other = stack.enter_context(httpx.Client(base_url=other_address, timeout=60))
        browser.get("/")
        assert browser.post("/pay", data=FORM).status_code == 303
        other.cookies = browser.cookies
        assert "Your loan is approved." in other.get("/order").text

        browser.cookies.clear()
        browser.get("/")
        click = stack.enter_context(ThreadPoolExecutor()).submit(browser.post, "/pay", data=HANGING)
        while not approvals_of(served, HANGING):
            time.sleep(0.05)
            assert not click.done()
        first.kill()
        assert isinstance(click.exception(), httpx.RemoteProtocolError)
        other.cookies = browser.cookies
        started = time.monotonic()
        page = other.post("/pay", data=HANGING)
        assert (page.status_code, heading(page)) == (
            202,
            "Your request is still being decided. Please check again in a minute.",
        )
        assert time.monotonic() - started < APPROVAL.total  # the default is 2 seconds
    assert approvals_of(served, HANGING) == 1


def test_double_click_in_two_workers_with_postgresql_sends_one_approval(
    served: Sandbox, postgres: Postgres, tmp_path: Path
) -> None:
    key = b"the same for all workers"
    settings = {"LOANASYNC_LEDGER": postgres.url, "LOANASYNC_LEDGER_KEY": key.decode()}
    policy = LedgerPolicy(key=key)
    asyncio.run(create_ledger(PostgresLedger(postgres.url), base_url=served.base_url, policy=policy))
    slow = {**FORM, "email": "anna+slow300@example.com"}
    with ExitStack() as stack:
        shops = [
            stack.enter_context(serving(served, tmp_path, shop="litestar", **settings)) for _ in range(2)
        ]
        browsers = [stack.enter_context(httpx.Client(base_url=url, timeout=60)) for _, url in shops]
        browsers[0].get("/")
        browsers[1].cookies = browsers[0].cookies
        pool = stack.enter_context(ThreadPoolExecutor())
        clicks = [pool.submit(browser.post, "/pay", data=slow) for browser in browsers]
        pages = [click.result() for click in clicks]
        again = [browser.post("/pay", data=slow) for browser in browsers]
    assert {page.status_code for page in pages} <= {303, 202}
    assert {page.headers["Location"] for page in again} == {
        page.headers["Location"] for page in pages if page.status_code == 303
    }
    assert approvals_of(served, slow) == 1


def test_health_check_of_the_command_outlasts_each_page() -> None:
    """Uvicorn kills a worker that does not respond to a health check, with the approvals in progress."""
    assert APPROVAL.total + SHORT.total == 20  # as on the page
    context = uvicorn.main.make_context("uvicorn", ["shop_fastapi:app", *OPTIONS.split()])
    assert context.params["timeout_worker_healthcheck"] > APPROVAL.total + SHORT.total


@pytest.mark.scheduled
def test_approval_of_killed_workers_is_unknown_after_its_lease(served: Sandbox, tmp_path: Path) -> None:
    """Run the command of the page. Uvicorn starts new workers, which find the orders and the entry."""
    headings: list[str] = []
    with ExitStack() as stack:
        running, address = stack.enter_context(serving(served, tmp_path, *OPTIONS.split()))
        starting = httpx.HTTPTransport(retries=8)  # the server prints its address before workers listen
        browser = stack.enter_context(httpx.Client(base_url=address, timeout=60, transport=starting))
        browser.get("/")
        click = stack.enter_context(ThreadPoolExecutor()).submit(browser.post, "/pay", data=HANGING)
        while not approvals_of(served, HANGING):
            time.sleep(0.05)
        for worker in workers_of(running.pid):
            os.kill(worker, signal.SIGKILL)
        assert isinstance(click.exception(), httpx.HTTPError)
        until = time.monotonic() + 300
        while not any(each.startswith("We have not received") for each in headings):
            assert time.monotonic() < until
            try:
                headings.append(heading(browser.post("/pay", data=HANGING)))
            except httpx.TransportError:  # the new workers are starting
                time.sleep(0.5)
    assert all(each.startswith("Your request is still being decided") for each in headings[:-1])
    assert approvals_of(served, HANGING) == 1


def workers_of(process: int) -> list[int]:
    """Return the process ids of the workers that uvicorn started."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()
    commands = {child: Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8") for child in children}
    found = [int(child) for child, command in commands.items() if "spawn_main" in command]
    assert len(found) == 2
    return found
