"""pytest plugin that runs tests in forked processes: `pytest --forks 4`.

Each worker of pytest-xdist imports and collects all tests again, a quarter of the time of a run. Here, the
tests are collected once, before the fork.
"""

import multiprocessing
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

# Each worker has its own session fixtures. One worker runs all tests of a slow server, first of all.
SLOW_SERVER = "postgres"
MOST = 10
_SIZE = 4  # bytes of the number of a batch; a pipe holds 64 kB


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="number of processes that run the tests")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the files whose tests took most of the time of the workers."""
    if config.option.forks < 2:
        return
    seconds = defaultdict[str, float](float)
    for report in chain(*terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section(f"the {MOST} files that took longest")
    for file in sorted(seconds, key=seconds.__getitem__, reverse=True)[:MOST]:
        terminalreporter.write_line(f"{seconds[file]:6.1f} s  {file}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    config = session.config
    if config.option.forks < 2 or config.option.collectonly or session.testsfailed:
        return None
    config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all workers
    run = Run(batches(session.items), session)
    try:
        for data in run.results():
            report = config.hook.pytest_report_from_serializable(config=config, data=data)
            config.hook.pytest_runtest_logreport(report=report)
            if session.shouldfail or session.shouldstop:
                raise session.Failed(str(session.shouldfail or session.shouldstop))
    finally:
        run.end()
    return True


def batches(items: list[pytest.Item]) -> list[list[pytest.Item]]:
    """Return the tests that a worker takes at once: those of a module that share a fixture, or one test."""
    files: dict[object, list[pytest.Item]] = defaultdict(list)
    for item in items:
        slow = SLOW_SERVER in item.nodeid or SLOW_SERVER in getattr(item, "fixturenames", ())
        files[SLOW_SERVER if slow else item.path].append(item)
    found = [files.pop(SLOW_SERVER)] if SLOW_SERVER in files else []
    for tests in files.values():
        found += [tests] if any(map(_shares_a_fixture, tests)) else [[test] for test in tests]
    return found


def _shares_a_fixture(item: pytest.Item) -> bool:
    fixtures = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    return any(each[-1].scope in ("class", "module", "package") for each in fixtures.values())


class Reporter:
    """pytest plugin of a worker that sends its reports to the first process."""

    def __init__(self, sending: Connection, config: pytest.Config) -> None:
        self._send, self._config = sending.send, config

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._send(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))


class Run:
    """Workers that take one batch after the other."""

    def __init__(self, work: list[list[pytest.Item]], session: pytest.Session) -> None:
        self._work, self._session, self._config = work, session, session.config
        # A pipe with the numbers of the batches, from which each worker reads the next one.
        self._numbers, writing = os.pipe()
        for number in range(len(work)):
            os.write(writing, number.to_bytes(_SIZE))
        os.close(writing)
        context = multiprocessing.get_context("fork")
        self._workers = {}
        for _ in range(session.config.option.forks):
            receiving, sending = context.Pipe(duplex=False)
            worker = context.Process(target=self._work_and_exit, args=[sending])
            worker.start()
            sending.close()  # so that the end of the worker closes the pipe
            self._workers[receiving] = worker

    def results(self) -> Iterator[dict[str, Any]]:
        """Yield the reports of all workers.

        Raises:
            pytest.UsageError: A worker died.
        """
        running: dict[Any, str] = dict.fromkeys(self._workers, "no test")
        while running:
            ready: list[Any] = wait(list(running))
            for connection in ready:
                try:
                    message = connection.recv()
                except EOFError:
                    raise pytest.UsageError(f"a worker ended while it ran {running[connection]}") from None
                if message is None:
                    del running[connection]
                    self._workers[connection].join()
                elif isinstance(message, str):
                    running[connection] = message
                else:
                    yield message

    def end(self) -> None:
        """Wait until the workers have ended their batches; no worker takes another one."""
        while self._next():
            pass
        os.close(self._numbers)
        for connection, worker in self._workers.items():
            while worker.is_alive():  # reads on, since a full pipe stops the worker
                with suppress(EOFError):
                    connection.poll(0.1) and connection.recv()

    def _work_and_exit(self, sending: Connection) -> None:
        """Run batches in the forked process until none is left."""
        plugins, hook = self._config.pluginmanager, self._config.hook
        plugins.unregister(name="terminalreporter")
        plugins.register(Reporter(sending, self._config))
        capture = plugins.getplugin("capturemanager")  # its files are shared with the other workers
        capture.stop_global_capturing()
        capture.start_global_capturing()
        try:
            batch = self._next()
            while batch:
                *others, last = batch
                for item, following in zip(others, batch[1:], strict=True):
                    hook.pytest_runtest_protocol(item=item, nextitem=following)
                batch = self._next()
                hook.pytest_runtest_protocol(item=last, nextitem=batch[0] if batch else None)
            sending.send(None)
        finally:  # after Ctrl-C, too: ends the servers
            self._session._setupstate.teardown_exact(None)

    def _next(self) -> list[pytest.Item]:
        number = os.read(self._numbers, _SIZE)
        return self._work[int.from_bytes(number)] if number else []
