"""Interrupt approvals at their lines, as Ctrl-C does, and print what is wrong then: `STEP KIND...`."""

import asyncio
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import Any

import loanasync
from loanasync import Approved, LoanClient, LoanError, RetryPolicy, Timeout, errors
from loanasync.ledger import MemoryLedger
from loanasync.testing import approval_request

FOLDER = str(Path(loanasync.__file__).parent)
INTERRUPTED = tuple(f"{FOLDER}/{name}" for name in ("_runtime/", "_transport/", "_telemetry/"))
LIMITS = Timeout(total=0.5, attempt=0.1)
SHORT = Timeout(total=0.5, attempt=0.03)  # for a request without a response
PATIENCE = 5.0  # seconds, on a busy machine
PAUSE = 0.02  # seconds before a retry
TURNS = 5_000  # iterations of the event loop, of a millisecond or more
UNINTERRUPTED = Timeout(total=2 * PATIENCE, attempt=PATIENCE)


class Interrupt(KeyboardInterrupt):
    """An interrupt of the test; another KeyboardInterrupt is a person's."""


class Service:
    """Approves each request, or responds with 500 to the first one of each customer, or to some never."""

    def __init__(self, *, fails_first: bool) -> None:
        self.fails_first = fails_first
        self.silent = ""  # the customer without a response
        self.requests: Counter[str] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := (await reader.readuntil(b"\r\n\r\n")).decode():
            await reader.readexactly(int(head.partition("Content-Length: ")[2].split()[0]))
            code = head.split()[1].rpartition("/")[2]
            self.requests[code] += 1
            if code == self.silent:
                continue
            fails = self.fails_first and self.requests[code] == 1
            body = json.dumps({"error": "x"} if fails else {"approved": True, "fiscalCode": code}).encode()
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (500 if fails else 201, len(body)))
            writer.write(body)


class InterruptAt:
    """A trace function that raises `Interrupt` at a line, counted from 1 in the first call of a function."""

    def __init__(self, number: int, first: str) -> None:
        self.left = number
        self.first = first
        self.place = ""

    def __call__(self, frame: FrameType, _: str, __: object) -> Any:
        if self.first in frame.f_code.co_qualname:
            self.first = ""
        return self.count if not self.first and frame.f_code.co_filename.startswith(INTERRUPTED) else None

    def count(self, frame: FrameType, event: str, _: object) -> Any:
        self.left -= event == "line"
        if event == "line" and not self.left:
            sys.settrace(None)
            self.place = f"{frame.f_code.co_filename.removeprefix(FOLDER)}:{frame.f_lineno}"
            raise Interrupt
        return self.count


class Interrupted:
    """A client whose approvals are interrupted, and its event loop, which is run again after that."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.service = Service(fails_first=kind == "retry")
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda _, __: None)
        server = self.loop.run_until_complete(asyncio.start_server(self.service.serve, "127.0.0.1", 0))
        self.client = LoanClient(
            f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",
            shop_id="shop",
            auth_token="token",
            max_concurrency=3,
            timeout=LIMITS,
            retry=RetryPolicy(base=PAUSE, cap=PAUSE),
            breaker=None,
            ledger=MemoryLedger() if kind == "ledger" else None,
        )
        self.order = approval_request()
        self.codes = (f"TSTXYZ{number % 100:02}A{number // 100:02}A000A" for number in range(10_000))
        self.approve(next(self.codes))
        self.approves = 2 if kind == "pair" else 1
        self.is_sent_late = False  # a request was sent after its call had ended
        [self.resources] = self.client._pipeline._per_loop.values()

    def run(self, steps: Callable[[], Coroutine[Any, Any, object]]) -> object:
        """Run the event loop. It may stop for a future of an interrupted run."""
        result: object = None
        for _ in range(3):
            try:
                return self.loop.run_until_complete(steps())
            except (Interrupt, RuntimeError, LoanError) as error:
                result = error
        return result

    def approve(self, code: str) -> object:
        """Return the decision or the error of an approval."""
        return self.run(lambda: self.client.approve(code, self.order, wait=0))

    def approve_others(self) -> list[object]:
        """Return the results of new customers, as many at once as are interrupted."""
        codes = [next(self.codes) for _ in range(self.approves)]

        async def approve_all() -> list[object]:
            calls = (self.client.approve(code, self.order, wait=0, timeout=UNINTERRUPTED) for code in codes)
            return [*await asyncio.gather(*calls, return_exceptions=True)]

        results = self.run(approve_all)
        return results if isinstance(results, list) else [results]

    def prepare_connection(self) -> None:
        """Leave idle connections, or none."""
        direct = self.resources.direct
        assert direct is not None
        if self.kind != "new connection":
            self.approve_others()
            return
        for connection in tuple(direct._scheduler.connections):
            connection.close()

    def interrupt(self, code: str, line: int) -> str:
        """Interrupt an approval; return the place, or an empty text if it has fewer lines."""
        is_late = self.kind == "time limit"
        tracer = InterruptAt(line, "SharedTimer._run" if is_late else "")
        self.service.silent = code if is_late else ""
        self.client._pipeline.quota.used = 0  # else no further attempt would be made after some interrupts
        codes = [code, *(next(self.codes) for _ in range(1, self.approves))]
        sys.settrace(tracer)
        timeout = SHORT if is_late else None
        approving = [
            self.loop.create_task(self.client.approve(each, self.order, wait=0, timeout=timeout))
            for each in codes
        ]
        try:
            for each in approving:
                self.loop.run_until_complete(each)
        except (Interrupt, LoanError):
            pass
        finally:
            sys.settrace(None)
        for each in approving:
            each.cancel()  # as `asyncio.run` does
        if is_late:
            self.approve_others()  # a timer that was interrupted in its first line starts with the next call
        self.run(self.wait_for_the_end)
        return tracer.place

    async def wait_for_the_end(self) -> None:
        """Wait until no call is in progress. If its response was lost, that takes as long as an attempt."""
        for _ in range(TURNS):  # not until a time: the machine may stop for seconds
            await asyncio.sleep(0.001)
            if not self.resources.calls:
                break
        if self.kind == "retry":
            await asyncio.sleep(0.002)  # until the service has received what was written
            sent = self.service.requests.total()
            await asyncio.sleep(PAUSE)  # a task that the interrupt has left would repeat the request
            self.is_sent_late = self.service.requests.total() > sent

    def faults(self, code: str) -> list[str]:
        """Return what is wrong after an interrupted approval."""
        direct, counts = self.resources.direct, self.client._pipeline.telemetry.metrics.inflight.counts
        assert direct is not None
        left = {
            "slot": self.resources.slots.free < 3,
            "call": bool(self.resources.calls),
            "exchange": bool(direct._scheduler.busy),
            "in the metric": counts["approve"] != 0,
            "sent after its end": self.is_sent_late,
        }
        faults = [name for name, is_left in left.items() if is_left]
        result = self.approve(code)
        is_leased = self.kind == "ledger" and isinstance(result, errors.InFlightError)  # unknown after that
        if not (is_leased or isinstance(result, Approved | errors.OutcomeUnknownError)):
            faults.append(type(result).__name__)
        if self.kind != "retry" and self.service.requests[code] > 1:
            faults.append("sent twice")
        if self.approves > 1:  # they share the queues of the connections, which the interrupt must not stop
            others = self.approve_others()
            faults += [type(each).__name__ for each in others if not isinstance(each, Approved)]
        return faults


def main(kind: str, step: int) -> None:
    """Interrupt one approval after the other, each some lines later. Print faults, and the last line."""
    interrupted, line = Interrupted(kind), 1
    while True:
        code = next(interrupted.codes)
        interrupted.prepare_connection()
        if not (place := interrupted.interrupt(code, line)):
            break
        if faults := interrupted.faults(code):
            sys.stdout.write(f"{place} {faults}\n")
        line += step
    sys.stdout.write(f"{line - step} lines\n")


if __name__ == "__main__":
    random.uniform = lambda _, high: high  # type: ignore[assignment]  # the longest pause before a retry
    step, *kinds = sys.argv[1:]
    for kind in kinds:
        if child := os.fork():
            os.waitpid(child, 0)
            continue
        main(kind, int(step))
        sys.stdout.flush()
        os._exit(0)  # sockets that an interrupt has left are not closed
