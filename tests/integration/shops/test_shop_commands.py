"""The commands of the page on web shops start each shop, and a signal ends it in order."""

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


def test_the_page_has_a_command_for_each_shop() -> None:
    assert sorted(re.findall(r"shop_(\w+):app", "".join(COMMANDS))) == sorted(SHOPS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_starts_a_shop_and_a_signal_ends_it(command: str, served: Sandbox, tmp_path: Path) -> None:
    shop = shutil.copytree(EXAMPLES, tmp_path / "examples")
    words = shlex.split(command.removeprefix("python3 ").replace("8000", "0"))  # a port that is free
    words = words if command.startswith("python3 ") else ["-m", *words]
    # Nobody measures what is covered there, nor would warnings of coverage's own say anything of the shop.
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
        said = []
        for line in running.stdout:
            said.append(line)
            if found := re.search(r"unning on (http://127\.0\.0\.1:[0-9]+)", line):
                break
        else:
            pytest.fail("".join(said))
        with httpx.Client(base_url=found[1]) as browser:
            browser.get("/")
            assert browser.post("/pay", data=FORM).status_code == 303
        running.send_signal(signal.SIGINT)
        said += running.stdout.readlines()
        running.wait(timeout=60)
    assert [line for line in said if re.search("Warning|Traceback|never closed", line)] == []
    for secret in ("/apply/", FORM["fiscal_code"], FORM["fiscal_code"].upper(), "anna"):
        assert secret not in "".join(said)
    assert (shop / "decisions.db").exists()
