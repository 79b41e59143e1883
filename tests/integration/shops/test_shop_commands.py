"""The commands of docs/howto/web.md start each example shop, and a signal stops it cleanly."""

import re
import shlex
import shutil
import signal
from pathlib import Path

import httpx
import pytest

from loanasync.sandbox import Sandbox
from support.example_shops import EXAMPLES, FORM, SHOPS, started

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
