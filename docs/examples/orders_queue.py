"""A queue of approvals: start `taskiq worker orders_queue:broker`, then run this to send three requests."""

import asyncio
import os
import sys

from taskiq_redis import RedisAsyncResultBackend

from loanasync import LoanClient
from loanasync.testing import approval_request, fiscal_code
from loanasync.worker import message, register
from loanasync.worker.redis import RedisStreams

if missing := {"VALKEY_URL", "LOANASYNC_LEDGER"} - os.environ.keys():
    sys.exit(f"set these environment variables: {', '.join(sorted(missing))}")
url = os.environ["VALKEY_URL"]
broker = RedisStreams(url).with_result_backend(RedisAsyncResultBackend(url, result_ex_time=3600))
client = LoanClient.from_env()
approve = register(broker, client)


async def checkout() -> None:
    """Send three approvals to the queue and wait for their results, as a shop does."""
    await broker.startup()
    async with client:
        for tag in ("approved", "refused", "resetafter"):
            customer = fiscal_code()  # a made-up customer
            await client.create_request({"fiscalCode": customer})
            task = await approve.kiq(message(customer, approval_request(tag=tag), order_id=f"A-{tag}"))
            result = (await task.wait_result(timeout=60)).return_value
            print(result["status"], ((result["error"] or {}).get("entry") or "")[:12])
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(checkout())
