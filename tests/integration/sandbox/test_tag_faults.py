"""Fault counts of a tag: one response of the approval and one of the completion."""

import asyncio
import contextlib
from pathlib import Path

import aiohttp
import pytest

from loanasync.sandbox import Sandbox
from support.raw_shop import CODE, Raw

AFTER = ["500after", "resetafter", "hangafter", "html502after", "emptyafter", "truncafter", "garbage"]
BAKER = {"profession": "baker"}


async def complete(raw: Raw) -> int | None:
    """Complete the data and return the status; None if the response is incomplete."""
    try:
        return (await raw("PATCH", f"/{CODE}", BAKER, timeout=0.3))[0]
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None


async def prepare(raw: Raw, tag: str) -> None:
    """Create a request, use up the fault of its approval, and upload documents."""
    await raw.create()
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        await raw.approve(email=f"a+{tag}@example.com", timeout=0.3, decoded=False)
    await raw("POST", f"/{CODE}/documents", {})


@pytest.mark.parametrize("tag", AFTER)
async def test_completion_fault_after_processing_happens_once(raw: Raw, tag: str) -> None:
    await prepare(raw, tag)
    await complete(raw)
    await complete(raw)
    kind = tag.removesuffix("after")
    assert [call.fault for call in raw.sandbox.journal.calls(operation="complete")] == [f"{kind}after", ""]
    assert await complete(raw) == 200


async def test_completion_fault_is_remembered_across_a_restart(tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite"
    async with aiohttp.ClientSession() as session:
        async with Sandbox(state=state) as sandbox:
            raw = Raw(sandbox, session)
            await prepare(raw, "500after")
            assert await complete(raw) == 500
        async with Sandbox(state=state) as sandbox:
            assert await complete(Raw(sandbox, session)) == 200


async def test_rule_of_a_new_sandbox_counts_from_the_start(tmp_path: Path) -> None:
    """Rules end with their sandbox, so their fault counts must end, too."""
    async with aiohttp.ClientSession() as session:
        for expected in ([500, 201], [500, 201]):
            sandbox = Sandbox(state=tmp_path / "state.sqlite", faults=["create_request=500x1"])
            async with sandbox:
                raw = Raw(sandbox, session)
                assert [(await raw.create())[0] for _ in range(2)] == expected
        async with sandbox:  # the same object keeps its rules
            assert (await Raw(sandbox, session).create())[0] == 201


async def test_completion_fault_of_a_rule_applies_to_each_call(raw: Raw) -> None:
    await prepare(raw, "approved")
    raw.sandbox.on("complete").respond(500, phase="after")
    assert [await complete(raw) for _ in range(3)] == [500, 500, 500]


async def test_completion_without_a_change_keeps_the_fault(raw: Raw) -> None:
    """A rejected completion saves nothing and does not use up the fault."""
    await prepare(raw, "500after")
    assert (await raw("PATCH", f"/{CODE}", {"documentCity": ""}))[0] == 400
    assert [await complete(raw) for _ in range(2)] == [500, 200]


async def test_tag_counts_its_own_faults(raw: Raw) -> None:
    await raw.create()
    assert (await raw.approve(email="a+500x1@example.com"))[0] == 500
    assert (await raw.approve(email="a+html502@example.com", decoded=False))[0] == 502
    assert (await raw.approve(email="a+html502@example.com"))[0] == 201


async def test_concurrent_completions_get_one_fault(raw: Raw) -> None:
    await prepare(raw, "500after")
    assert sorted(await asyncio.gather(*(complete(raw) for _ in range(4))), key=str) == [200, 200, 200, 500]
