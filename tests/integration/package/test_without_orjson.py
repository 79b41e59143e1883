"""The package in a process that cannot import orjson."""

import asyncio
import subprocess
import sys
from pathlib import Path

from loanasync import Approved
from loanasync.ledger import LedgerPolicy, SqliteLedger
from loanasync.sandbox import Sandbox
from support.builders import FISCAL_CODE, approval_request

SHOP = r"""
import asyncio, sys

sys.modules["orjson"] = None

from loanasync import LoanClient
from loanasync.ledger import LedgerPolicy, SqliteLedger
from loanasync.testing import approval_request, user_data

base_url, shop_id, auth_token, file, fiscal_code, email = sys.argv[1:]
request = approval_request(email=email)

async def main():
    policy = LedgerPolicy(key=b"0123456789abcdef")
    async with (
        SqliteLedger(file) as ledger,
        LoanClient(
            base_url, shop_id=shop_id, auth_token=auth_token, ledger=ledger, ledger_policy=policy
        ) as client,
    ):
        await client.create_request({"fiscalCode": fiscal_code})
        decision = await client.approve(fiscal_code, request)
        await client.upload_documents(fiscal_code, {"front": "...", "back": "..."})
        await client.complete(fiscal_code, user_data())
        again = await client.approve(fiscal_code, request)
        print(decision.redirect_url, again.redirect_url == decision.redirect_url, again.meta.attempts)

asyncio.run(main())
"""


async def test_client_and_ledger_work_without_orjson(tmp_path: Path) -> None:
    """The ledger then replays the decision in this process, which has orjson: keys and digests are equal."""
    file, request = tmp_path / "decisions.db", approval_request()
    async with Sandbox() as sandbox, SqliteLedger(file) as ledger:
        address = [sandbox.base_url, sandbox.shop_id, sandbox.auth_token]
        arguments = [*address, str(file), FISCAL_CODE, request.email]
        command = [sys.executable, "-W", "error", "-c", SHOP, *arguments]
        ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
        assert not ended.stderr, ended.stderr
        redirect, is_same, attempts = ended.stdout.split()
        assert (is_same, attempts) == ("True", "0")
        policy = LedgerPolicy(key=b"0123456789abcdef")
        async with sandbox.client(ledger=ledger, ledger_policy=policy) as client:
            decision = await client.approve(FISCAL_CODE, request)
        assert isinstance(decision, Approved)
        assert (decision.redirect_url, decision.meta.attempts) == (redirect, 0)
        calls = [each.operation for each in sandbox.journal]
    assert calls == ["create_request", "approve", "upload_documents", "complete"]
