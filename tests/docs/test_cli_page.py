"""The page on the command line has the options of the help, and the commands of resolve.md run."""

import re
import shlex
from functools import cache, partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli_page import commands, example_of, section
from loanasync.cli.app import app
from loanasync.ledger import State
from support import page_commands
from support.cli import PLAIN
from support.ledger_file import put, using
from support.pages import ROOT

RESOLVE_PAGE = ROOT / "docs" / "howto" / "resolve.md"
COMMANDS = dict(commands())


@cache
def help_of(name: str) -> str:
    result = CliRunner(env={**PLAIN, "TERM": "dumb"}).invoke(app, [*name.split()[1:], "--help"])
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_command_help_has_an_example(name: str) -> None:
    output = help_of(name)
    example = example_of(COMMANDS[name])
    own = re.sub(r" --(ledger|queue) \S+", "", example)  # options of the group
    assert own.startswith(name)
    assert example.split()[-1] in output
    options = re.findall("--[a-z-]+", own)
    assert not [option for option in options if option not in output.replace(example, "")]


@pytest.mark.parametrize("name", COMMANDS)
def test_cli_page_has_the_options_of_each_command(name: str) -> None:
    on_page = {
        option
        for line in section(name, COMMANDS[name]).splitlines()
        if line.startswith("- `-")
        for option in re.findall(r"(?<![\w-])-{1,2}[a-z][a-z-]*", line[2:].partition(": ")[0])
    }
    shown = re.split("─ options|\noptions:", help_of(name).lower(), maxsplit=1)[1].partition("─ commands")[0]
    typed = set(re.findall(r"(?<![\w-])-{1,2}[a-z][a-z-]*", shown))
    assert on_page == typed - {"-h", "--help"}


def test_commands_of_the_resolve_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = tmp_path / "decisions.db"
    for key, state in (("491687359f07", State.UNKNOWN), ("c7ee1cbfc005", State.LOST)):
        using(file, partial(put, name=key, state=state, under=key.ljust(64, "0")))
    shop = {"LOANASYNC_BASE_URL": "https://loans.example.com", "LOANASYNC_SHOP_ID": "shop"}
    for name, value in {**shop, "LOANASYNC_AUTH_TOKEN": "token", "LOANASYNC_LEDGER": str(file)}.items():
        monkeypatch.setenv(name, value)
    Path("outcomes.csv").write_text("cf;esito\nTSTXYZ00A00A000A;approvato\n", encoding="utf-8")
    exit_codes = {}
    lines = "".join(block for block, _ in page_commands.steps(RESOLVE_PAGE)).splitlines()
    typed_lines = (line.partition(" > ")[0] for line in lines if line.startswith("loanasync "))
    for words in (shlex.split(line)[1:] for line in typed_lines):
        typed = "TSTXYZ00A00A000A\n" if "--customer" in words else None
        done = CliRunner(env=PLAIN).invoke(app, words, input=typed)
        exit_codes[" ".join(words[:3])] = done.exit_code
        assert "Usage" not in done.output, words
    assert exit_codes == {
        "ledger sweep": 3,
        "ledger show --customer": 2,  # this ledger has no entry of the customer
        "ledger show 491687359f07": 0,
        "ledger resolve 491687359f07": 0,
        "ledger resolve --customer": 2,
        "ledger resolve --from": 2,
        "ledger ls --state": 0,
        "ledger ls --json": 0,
    }
