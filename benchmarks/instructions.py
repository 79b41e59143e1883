"""Count the CPU instructions of a call with valgrind, for loanasync and plain aiohttp.

The process of a client runs twice under valgrind, with more calls the second time. The difference is
divided by the additional calls. The service runs outside of valgrind.
"""

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import sys

from byhand import recording
from clients_loanasync import recorded, through_users_session, with_loanasync
from clients_plain import plain
from order import Opener, Scenario
from rounds import calling
from service import Service, serving

CLIENTS: dict[str, Opener] = {
    "loanasync": with_loanasync,
    "loanasync, session of the user": through_users_session,
    "loanasync, recording": lambda scenario: recorded(scenario, recording()),
    "plain aiohttp": plain,
}
FEW = 20  # calls that fill the caches
VALGRIND = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")


async def call(name: str, base_url: str, calls: int) -> None:
    """Make calls, one after another, in the process of a client."""
    async with CLIENTS[name](Scenario(base_url)) as client:
        await calling(client, calls, 1)


def counted(name: str, service: Service, calls: int) -> int:
    """Return the instructions of a process that makes this number of calls."""
    command = [*VALGRIND, sys.executable, __file__, "--client", name, service.base_url, str(calls)]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONHASHSEED": "0"},  # for equal runs
    )
    found = re.search(r"Collected *: *([0-9]+)", done.stderr)
    if done.returncode or not found:
        sys.exit(f"valgrind failed:\n{done.stderr}")
    return int(found[1])


def run(calls: int) -> dict[str, float]:
    """Return the instructions per call of each client."""
    with serving() as service:
        service.respond_late()
        for name in CLIENTS:  # otherwise the first run under valgrind would compile the modules
            asyncio.run(call(name, service.base_url, FEW))
        return {
            name: (counted(name, service, FEW + calls) - counted(name, service, FEW)) / calls
            for name in CLIENTS
        }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200, help="calls to count")
    parser.add_argument("--client", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        name, base_url, calls = options.client
        asyncio.run(call(name, base_url, int(calls)))
        return
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not installed: on Debian, `apt-get install valgrind`")
    figures = run(options.calls)
    for name, figure in figures.items():
        print(f"{name:32}{figure:14,.0f} instructions per call{figure / figures['plain aiohttp']:8.2f}")


if __name__ == "__main__":
    main()
