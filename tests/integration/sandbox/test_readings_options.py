"""Readings on the command line and in a sandbox process."""

import asyncio
import re
import subprocess
import sys

import aiohttp
import pytest
from typer.testing import CliRunner

from loanasync.cli.app import app
from loanasync.sandbox import Readings, Sandbox
from support.raw_shop import BODY, CODE


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["refusl=201"], "unknown reading 'refusl': choose one of refusal, validation, conflict,"),
        (["refusal=200"], "reading refusal='200' must be one of '422', '201'"),
        (["refusal"], "reading refusal needs a value, for example refusal=422"),
        (["refusal=201", "refusal=422"], "reading refusal is given twice: choose one value"),
    ],
)
def test_invalid_reading_on_the_command_line_is_named(texts: list[str], message: str) -> None:
    options = [f"--reading={text}" for text in texts]
    done = CliRunner().invoke(app, ["sandbox", *options])
    assert done.exit_code == 2
    assert message in done.output
    command = [sys.executable, "-m", "loanasync.sandbox", *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.startswith("the sandbox cannot start: ")
    assert message in ended.stderr


@pytest.mark.parametrize("package", ["loanasync.sandbox", "loanasync"])
async def test_command_line_applies_the_readings(package: str) -> None:
    words = ["sandbox"] if package == "loanasync" else []
    command = [sys.executable, "-m", package, *words, "--reading=refusal=201", "--reading", "dates=time"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    found = re.search(r"http://\S+", (await process.stdout.readline()).decode())
    assert found
    await check_refusal(found[0])
    process.terminate()
    await process.communicate()


async def test_process_applies_the_readings() -> None:
    with Sandbox.subprocess(readings=Readings(refusal="201", dates="time")) as process:
        await check_refusal(process.base_url)


async def check_refusal(base_url: str) -> None:
    requests = f"{base_url}/api/shops/sandbox-shop/requests"
    body = {**BODY, "email": "anna+refused@example.com"}
    async with aiohttp.ClientSession(headers={"X-Auth-Token": "sandbox-token"}) as session:
        async with session.post(requests, json={"fiscalCode": CODE}) as created:
            assert created.status == 201
        async with session.post(f"{requests}/{CODE}", json=body) as refused:
            assert (refused.status, (await refused.json())["approved"]) == (201, False)
