"""The commands of docs/howto/web.md start each example shop, with one process or several."""

import asyncio
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import uvicorn
from checkout import APPROVAL, SHORT

from loanasync.ledger import LedgerPolicy, PostgresLedger, create_ledger
from loanasync.sandbox import Sandbox
from support.example_shops import EXAMPLES, FORM, OTHER_CUSTOMER, SHOPS, started
from support.servers import Postgres

PAGE = EXAMPLES.parent / "howto" / "web.md"
COMMANDS = re.findall(r"`((?:uvicorn|python3 -m aiohttp\.web) .+)`", PAGE.read_text(encoding="utf-8"))


def test_page_has_a_command_for_each_shop() -> None:
    assert sorted(re.findall(r"shop_(\w+):app", "".join(COMMANDS))) == sorted(SHOPS)


def on_each_commit(command: str) -> bool:
    """Return True for one shop on each server; the others run every night."""
    return "shop_aiohttp" in command or "shop_fastapi" in command


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=[] if on_each_commit(command) else pytest.mark.scheduled)
        for command in COMMANDS
    ],
)
def test_command_starts_the_shop_and_signal_stops_it(command: str, served: Sandbox, tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES, tmp_path / "examples")
    words = shlex.split(command.removeprefix("python3 -m ").replace("8000", "0"))  # any free port
    with started(*words, sandbox=served, cwd=folder) as (running, address):
        with httpx.Client(base_url=address) as browser:
            browser.get("/")
            assert browser.post("/pay", data=FORM).status_code == 303
        running.send_signal(signal.SIGINT)
        assert running.stdout is not None
        output = running.stdout.read()
        running.wait(timeout=60)
    assert not re.search("Warning|Traceback|never closed", output), output
    for secret in ("/apply/", FORM["fiscal_code"], FORM["fiscal_code"].upper(), "anna"):
        assert secret not in output
    assert (folder / "decisions.db").exists()


[OPTIONS] = re.findall(r"^uvicorn --factory \S+ --port 8000 (.+)$", PAGE.read_text("utf-8"), re.MULTILINE)
HANGING = {**OTHER_CUSTOMER, "email": "anna+hangafter@example.com"}
WAIT = "<h1>Your request is still being decided. Please check again in a minute.</h1>"


class Shops:
    """Shops that share the files in a folder, and a browser for each."""

    def __init__(self, sandbox: Sandbox, folder: Path, stack: ExitStack) -> None:
        self._sandbox, self._folder, self._stack = sandbox, folder, stack
        self.pool = stack.enter_context(ThreadPoolExecutor())
        self._cookies = httpx.Cookies()

    def start(self, *options: str, **settings: str) -> tuple[int, httpx.Client]:
        """Start uvicorn; return its process id, and a browser whose order is that of the first one."""
        words = ("uvicorn", "--factory", "shop_fastapi:app", "--app-dir", str(EXAMPLES), "--port", "0")
        starting = started(*words, *options, sandbox=self._sandbox, cwd=self._folder, **settings)
        running, address = self._stack.enter_context(starting)
        listening = httpx.HTTPTransport(retries=8)  # the server prints its address before workers listen
        browser = httpx.Client(base_url=address, timeout=60, transport=listening, cookies=self._cookies)
        self._stack.enter_context(browser).get("/")
        self._cookies = browser.cookies
        return running.pid, browser

    def hang(self, browser: httpx.Client) -> "Future[httpx.Response]":
        """Click in another thread. Return when the service has decided, and its response does not arrive."""
        click = self.pool.submit(browser.post, "/pay", data=HANGING)
        self._sandbox.journal.wait(1, timeout=60, operation="approve")
        return click


@pytest.fixture
def shops(served: Sandbox, tmp_path: Path) -> Iterator[Shops]:
    with ExitStack() as stack:
        yield Shops(served, tmp_path, stack)
    served.journal.assert_once(operation="approve")


def test_click_after_a_kill_is_answered_by_another_worker(shops: Shops) -> None:
    """Both workers know the order and the approval, and the second one does not wait for the first."""
    (process, browser), (_, other) = shops.start(), shops.start()
    click = shops.hang(browser)
    os.kill(process, signal.SIGKILL)
    assert isinstance(click.exception(), httpx.RemoteProtocolError)
    begin = time.monotonic()
    page = other.post("/pay", data=HANGING)
    assert (page.status_code, WAIT in page.text) == (202, True)
    assert time.monotonic() - begin < APPROVAL.total  # the default is 2 seconds


def test_double_click_in_two_workers_with_postgresql_sends_one_approval(
    served: Sandbox, shops: Shops, postgres: Postgres
) -> None:
    key = b"the same for all workers"
    policy = LedgerPolicy(key=key)
    asyncio.run(create_ledger(PostgresLedger(postgres.url), base_url=served.base_url, policy=policy))
    settings = {"LOANASYNC_LEDGER": postgres.url, "LOANASYNC_LEDGER_KEY": key.decode()}
    browsers = [shops.start(**settings)[1] for _ in range(2)]
    slow = {**FORM, "email": "anna+slow300@example.com"}
    clicks = [shops.pool.submit(browser.post, "/pay", data=slow) for browser in browsers]
    pages = [click.result() for click in clicks]
    again = [browser.post("/pay", data=slow) for browser in browsers]
    assert {page.status_code for page in pages} <= {303, 202}
    assert {page.headers["Location"] for page in again} == {
        page.headers["Location"] for page in pages if page.status_code == 303
    }


def test_health_check_of_the_command_outlasts_each_page() -> None:
    """Uvicorn kills a worker that does not respond to a health check, with the approvals in progress."""
    context = uvicorn.main.make_context("uvicorn", ["shop_fastapi:app", *OPTIONS.split()])
    assert context.params["timeout_worker_healthcheck"] > APPROVAL.total + SHORT.total == 20  # as on the page


@pytest.mark.scheduled
def test_approval_of_killed_workers_is_unknown_after_its_lease(shops: Shops) -> None:
    """Run the command of the page. Uvicorn starts new workers, which find the orders and the entry."""
    process, browser = shops.start(*OPTIONS.split())
    click = shops.hang(browser)
    for worker in workers_of(process):
        os.kill(worker, signal.SIGKILL)
    assert isinstance(click.exception(), httpx.HTTPError)
    until, text = time.monotonic() + 300, WAIT
    while WAIT in text:
        assert time.monotonic() < until
        try:
            text = browser.post("/pay", data=HANGING).text
        except httpx.TransportError:  # the new workers are starting
            time.sleep(0.5)
    assert "<h1>We have not received" in text


def workers_of(process: int) -> list[int]:
    """Return the process ids of the workers that uvicorn started."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()
    commands = {child: Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8") for child in children}
    found = [int(child) for child, command in commands.items() if "spawn_main" in command]
    assert len(found) == 2
    return found
