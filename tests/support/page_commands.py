"""Execution of the commands on a page of the documentation, with a check of their output."""

import doctest
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

END = "=== end of a block ==="


def steps(page: Path) -> list[tuple[str, str]]:
    """Return each block of commands with the output that the page shows for it."""
    return re.findall(r"```sh\n(.*?)```\n(?:```text\n(.*?)```)?", page.read_text(encoding="utf-8"), re.DOTALL)


def run(page: Path, folder: Path, environment: Mapping[str, str], addresses: Mapping[str, str]) -> None:
    """Run the commands of a page in one shell, and check their output against the page.

    Args:
        page: The page. Commands are in ``sh`` blocks, and their output in the ``text`` blocks below them.
        folder: The working directory.
        environment: Additional environment variables.
        addresses: The addresses on the page, and the addresses that replace them.
    """
    if not (shutil.which("curl") and shutil.which("bash")):
        assert not os.environ.get("CI"), "the gate needs bash and curl"
        pytest.skip("needs bash and curl")
    blocks = steps(page)
    script = f"\necho '{END}'\n".join(commands for commands, _ in blocks)
    for on_page, address in addresses.items():
        script = script.replace(on_page, address)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail"],  # noqa: S607  (any bash)
        input=script,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PATH": path, **environment},
    )
    assert done.returncode == 0, done.stderr
    output = done.stdout
    for on_page, address in addresses.items():
        output = output.replace(address, on_page)
    checker = doctest.OutputChecker()
    for (commands, wanted), got in zip(blocks, output.split(f"{END}\n"), strict=True):
        message = f"{commands}\nwanted:\n{wanted}\ngot:\n{got}"
        assert checker.check_output(wanted.rstrip(), got.rstrip(), doctest.ELLIPSIS), message
