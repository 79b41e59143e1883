"""Check that the memory of the sandbox stays flat under many customers, some of them with faults.

An application is created and an approval requested for each customer; after a 500 it is requested again,
as the specification allows. The sandbox stores a limited number of customers and calls. Its memory grows
until these limits (20,000 requests) and must not grow afterwards. Exits with 1 if it grows in the second
half.
"""

import argparse
import asyncio
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator

import psutil
from load import LOST, Shop, connected, fiscal_codes

from loanasync.sandbox import Sandbox

CONNECTIONS = 16
TAGGED = 10  # one customer in ten has a tag
# Tags, and the status of the response to the approval.
TAGS = {
    "+refused": 422,
    "+500": 500,
    "+500after": 500,
    "+resetbefore": LOST,
    "+resetafter": LOST,
    "+html502": 502,
    "+emptyafter": 201,
    "+truncafter": LOST,
    "+garbage": 201,
    "+conflict": 409,
    "+invalid.city": 400,
    "+slow5": 201,
    "+nosuchtag": 400,
}
MARKS = (10, 50, 100)  # percent of the run, at which memory is printed
MEGABYTE = 1e6


def batch(shop: Shop, codes: Iterator[str], people: int) -> tuple[list[list[bytes]], Counter[int]]:
    """Return lists of requests, to be sent one list after another, and the expected statuses."""
    tags = itertools.cycle(TAGS)
    tagged = [
        (code, "" if number % TAGGED else next(tags))
        for number, code in enumerate(itertools.islice(codes, people))
    ]
    again = [code for code, tag in tagged if tag == "+500"]
    expected = Counter(TAGS.get(tag, 201) for _, tag in tagged)
    expected[201] += people + len(again)
    return [
        [shop.creation(code) for code, _ in tagged],
        [shop.approval(code, tag) for code, tag in tagged],
        [shop.approval(code, "+500") for code in again],
    ], +expected


async def run(requests: int, minutes: float, people: int) -> tuple[int, float, dict[int, float]]:
    """Return the number of requests, the seconds, and the megabytes at each mark."""
    codes = fiscal_codes()
    sent, seconds, progress = 0, 0.0, 0.0
    memory: dict[int, float] = {}
    with Sandbox.subprocess() as sandbox:
        shop = Shop(sandbox.base_url, sandbox.shop_id, sandbox.auth_token)
        process = psutil.Process(sandbox.pid)
        started = time.perf_counter()
        async with connected(sandbox.base_url, CONNECTIONS) as connections:
            while progress < 1:
                parts, expected = batch(shop, codes, people)
                statuses: Counter[int] = sum([await connections.send(part) for part in parts], Counter())
                if statuses != expected:
                    sys.exit(f"statuses {dict(statuses)}, expected {dict(expected)}")
                sent += statuses.total()
                seconds = time.perf_counter() - started
                progress = sent / requests if requests else seconds / 60 / minutes
                for mark in MARKS:
                    if progress >= mark / 100 and mark not in memory:
                        memory[mark] = process.memory_info().rss / MEGABYTE
                        print(f"{mark:3} %  {sent:11,} requests  {memory[mark]:8.1f} MB", flush=True)
    return sent, seconds, memory


def main() -> None:
    """Run the soak test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="duration")
    parser.add_argument("--requests", type=int, default=0, help="number of requests, instead of a duration")
    parser.add_argument("--people", type=int, default=1000, help="customers in one batch")
    parser.add_argument(
        "--tolerance", type=float, default=5.0, help="percent by which memory may grow in the second half"
    )
    options = parser.parse_args()
    sent, seconds, memory = asyncio.run(run(options.requests, options.minutes, options.people))
    early, half, end = (memory[mark] for mark in MARKS)
    growth = (end / half - 1) * 100
    print(f"rate   {sent / seconds:,.0f} requests per second for {seconds:,.0f} seconds")
    print(f"growth {(end / early - 1) * 100:.1f} % since the first tenth, {growth:.1f} % in the second half")
    if growth > options.tolerance:
        sys.exit(f"memory grew by more than {options.tolerance} % in the second half")


if __name__ == "__main__":
    main()
