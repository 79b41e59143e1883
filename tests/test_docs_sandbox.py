"""The pages about the sandbox: the walk with curl runs as it stands, and the tables are whole."""

import doctest
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tagpage
from attrs import evolve

from loanasync.sandbox import Sandbox
from loanasync.sandbox.__main__ import _parser
from loanasync.sandbox._linter import RULES
from loanasync.sandbox._outcomes._outcome import PLAIN
from loanasync.sandbox._outcomes._tags import KNOWN, read_words

HOWTO = Path(__file__).parent.parent / "docs" / "howto"
PAGE = HOWTO / "curl.md"
GUIDE = HOWTO / "sandbox.md"
SHOWN = "http://127.0.0.1:8080"
END = "=== end of a step ==="


def steps() -> list[tuple[str, str]]:
    """Each block of commands, with the text that is said to come of it."""
    found = re.findall(
        r"```sh\n(.*?)```\n(?:```text\n(.*?)```)?", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert len(found) > 10
    return found


def test_the_walk_with_curl_runs_and_says_what_is_answered() -> None:
    if not (shutil.which("curl") and shutil.which("bash")):
        assert not os.environ.get("CI"), "the gate needs bash and curl"
        pytest.skip("there is no bash or no curl")
    with Sandbox.in_thread() as sandbox:
        script = f"\necho '{END}'\n".join(commands for commands, _ in steps())
        done = subprocess.run(
            ["bash", "-euo", "pipefail"],  # noqa: S607  (whichever there is)
            input=script.replace(SHOWN, sandbox.base_url),
            capture_output=True,
            text=True,
            check=False,
        )
        answered = done.stdout.replace(sandbox.base_url, SHOWN).split(f"{END}\n")
    assert (done.returncode, done.stderr) == (0, "")
    checker = doctest.OutputChecker()
    for (commands, wanted), got in zip(steps(), answered, strict=True):
        told = f"{commands}\nwanted:\n{wanted}\ngot:\n{got}"
        assert checker.check_output(wanted.rstrip(), got.rstrip(), doctest.ELLIPSIS), told


def written(pattern: str) -> set[str]:
    return set(re.findall(pattern, GUIDE.read_text(encoding="utf-8")))


def test_the_reference_has_every_tag_and_no_other() -> None:
    plain = {word.replace("xN", "x2").replace("<ms>", "300").replace("<field>", "city") for word in KNOWN}
    assert sorted(tagpage.ASKED) == sorted(plain)


async def test_the_reference_says_what_each_tag_comes_to() -> None:
    page = tagpage.PAGE.read_text(encoding="utf-8")
    assert tagpage.with_tables(page, await tagpage.tables()) == page, "python tests/tagpage.py --write"


def test_each_tag_that_the_guide_names_works() -> None:
    told = written(r"`\+([a-z0-9.]+)`")
    assert told
    for tag in told:
        assert evolve(read_words(tag), name="") != PLAIN


def test_every_rule_of_the_linter_is_told_of() -> None:
    assert written(r"\| `([a-z0-9-]+)` \|") == RULES.keys()


def test_every_option_of_the_command_has_a_name_in_python() -> None:
    options = {action.dest for action in _parser()._actions} - {"help", "open"}
    assert options == set(inspect.signature(Sandbox).parameters)
    shown = subprocess.run(
        [sys.executable, "-m", "loanasync", "sandbox", "--help"], capture_output=True, text=True, check=True
    )
    for name in options - {"faults"}:
        assert f"--{name.replace('_', '-')[:12]}" in shown.stdout
