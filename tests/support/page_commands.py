"""Runs the commands that a page shows, one block after the other in one shell, and looks at what they say."""

import doctest
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

__all__ = ["run", "steps"]

END = "=== end of a step ==="


def steps(page: Path) -> list[tuple[str, str]]:
    """Each block of commands, with the text that is said to come of it."""
    return re.findall(r"```sh\n(.*?)```\n(?:```text\n(.*?)```)?", page.read_text(encoding="utf-8"), re.DOTALL)


def run(page: Path, folder: Path, environment: Mapping[str, str], addresses: Mapping[str, str]) -> None:
    """Run a page's commands in a folder; each text below them is what they print, and nothing else is.

    Args:
        page: Its blocks of commands are ``sh``, and what comes of them is ``text``.
        folder: Where they run.
        environment: Variables that a reader has set.
        addresses: What the page calls an address, and where it is.
    """
    if not (shutil.which("curl") and shutil.which("bash")):
        assert not os.environ.get("CI"), "the gate needs bash and curl"
        pytest.skip("there is no bash or no curl")
    shown = steps(page)
    script = f"\necho '{END}'\n".join(commands for commands, _ in shown)
    for said, address in addresses.items():
        script = script.replace(said, address)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail"],  # noqa: S607  (whichever there is)
        input=script,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PATH": path, **environment},
    )
    assert done.returncode == 0, done.stderr
    answered = done.stdout
    for said, address in addresses.items():
        answered = answered.replace(address, said)
    checker = doctest.OutputChecker()
    for (commands, wanted), got in zip(shown, answered.split(f"{END}\n"), strict=True):
        told = f"{commands}\nwanted:\n{wanted}\ngot:\n{got}"
        assert checker.check_output(wanted.rstrip(), got.rstrip(), doctest.ELLIPSIS), told
