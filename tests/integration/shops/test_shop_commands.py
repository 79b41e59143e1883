"""The commands of docs/howto/web.md start each example shop, and a signal stops it cleanly."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from loanasync.sandbox import Sandbox
from support.example_shops import FORM, SHOPS

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
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
    shop = shutil.copytree(EXAMPLES, tmp_path / "examples")
    words = shlex.split(command.removeprefix("python3 ").replace("8000", "0"))  # any free port
    words = words if command.startswith("python3 ") else ["-m", *words]
    # No coverage in the subprocess: its warnings would be mistaken for warnings of the shop.
    env = {name: os.environ[name] for name in os.environ if not name.startswith(("COV", "PYTHONSAFE"))}
    env |= {"LOANASYNC_BASE_URL": served.base_url, "LOANASYNC_SHOP_ID": served.shop_id}
    env |= {"LOANASYNC_AUTH_TOKEN": served.auth_token, "PYTHONUNBUFFERED": "1"}
    running = subprocess.Popen(
        [sys.executable, "-X", "dev", *words],
        cwd=shop,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    with running:
        assert running.stdout is not None
        output = []
        for line in running.stdout:
            output.append(line)
            if found := re.search(r"unning on (http://127\.0\.0\.1:[0-9]+)", line):
                break
        else:
            pytest.fail("".join(output))
        with httpx.Client(base_url=found[1]) as browser:
            browser.get("/")
            assert browser.post("/pay", data=FORM).status_code == 303
        running.send_signal(signal.SIGINT)
        output += running.stdout.readlines()
        running.wait(timeout=60)
    assert [line for line in output if re.search("Warning|Traceback|never closed", line)] == []
    for secret in ("/apply/", FORM["fiscal_code"], FORM["fiscal_code"].upper(), "anna"):
        assert secret not in "".join(output)
    assert (shop / "decisions.db").exists()
