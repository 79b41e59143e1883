"""Pytest fixtures `loan_sandbox` and `loan_client`. A test fails if it misuses the protocol.

Before each test, the plugin calls `loanasync.testing.forget_approvals`.

pytest loads this module in every run where loanasync is installed, so it imports the package lazily.
"""

import difflib
import inspect
import sys
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from loanasync._models.classes import LazyModule

if TYPE_CHECKING:
    from loanasync import _client as sdk
    from loanasync import sandbox as sandboxes
else:
    sdk, sandboxes = LazyModule("loanasync._client"), LazyModule("loanasync.sandbox")

__all__ = ["loan_client", "loan_sandbox"]

_MARK = "loan_sandbox"
_MARK_HELP = (
    "loan_sandbox(dialect=..., faults=[...], seed=..., allow=[...], **options): arguments of"
    " loanasync.sandbox.Sandbox for the fixture loan_sandbox, and protocol rules that the test may break"
    " (allow='all' for any). Of several marks, the closest one sets an argument; allowed rules add up."
)
_LISTS = ("allow", "faults")
_MAX_CALLS = 20  # calls in the report of a failed test
_CLOSE_TIMEOUT = 5.0  # seconds to wait for calls that are still in progress after the test

_sandboxes = pytest.StashKey["sandboxes.Sandbox"]()


@pytest.fixture
def loan_sandbox(request: pytest.FixtureRequest) -> Iterator["sandboxes.Sandbox"]:
    """Provide a running `loanasync.sandbox.Sandbox` in a separate thread.

    It works with async tests, blocking clients and tests that use several event loops. The mark
    ``@pytest.mark.loan_sandbox(...)`` sets the sandbox's arguments. If the test broke a rule of the protocol,
    it fails in teardown, unless the mark allows that rule.
    """
    from loanasync.sandbox import Sandbox  # noqa: PLC0415  (imported on first use)

    options, allowed = _read_marks(request.node)
    try:
        running = Sandbox.in_thread(**options)
    except (TypeError, ValueError) as error:
        _refuse(str(error))
    with running as sandbox:
        request.node.stash[_sandboxes] = sandbox
        yield sandbox
    # Read after the sandbox has stopped, so that the last calls are included.
    findings = [found for found in sandbox.findings if found.rule not in allowed]
    if findings:
        pytest.fail(_misuse_report(findings), pytrace=False)


@pytest.fixture
def loan_client(
    request: pytest.FixtureRequest, loan_sandbox: "sandboxes.Sandbox"
) -> Iterator["sdk.LoanClient"]:
    """Provide a `loanasync.LoanClient` for `loan_sandbox`, which the fixture closes.

    It waits about a millisecond between attempts, and at most five seconds for a response. It uses the
    dialect in the mark, if there is one.
    """
    from loanasync import Dialect, RetryPolicy, Timeout  # noqa: PLC0415  (imported on first use)

    timeout = Timeout(total=_CLOSE_TIMEOUT, attempt=_CLOSE_TIMEOUT, connect=_CLOSE_TIMEOUT)
    options: dict[str, Any] = {"retry": RetryPolicy(base=0.001, cap=0.002), "timeout": timeout}
    dialect = _read_marks(request.node)[0].get("dialect")
    if dialect is not None:
        options["dialect"] = getattr(Dialect, dialect)()
    client = loan_sandbox.client(**options)
    yield client
    # No event loop runs here: those of the test are closed, stopped or in other threads.
    client.close(_CLOSE_TIMEOUT)


def _read_marks(node: pytest.Item) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the sandbox's arguments and the names of the rules that may be broken."""
    from loanasync.sandbox import Sandbox  # noqa: PLC0415  (imported on first use)
    from loanasync.sandbox.linter import RULES  # noqa: PLC0415  (imported on first use)

    known = [*inspect.signature(Sandbox).parameters, "allow"]
    options: dict[str, Any] = {}
    allowed: set[str] = set()
    for mark in node.iter_markers(_MARK):  # the closest first
        if mark.args:
            _refuse(f"unexpected positional argument {mark.args[0]!r}: pass it by name, such as seed=7")
        for name, value in mark.kwargs.items():
            _require_known("argument", name, known)
            # Wrap a single string in a list, so that its characters are not iterated over.
            given = [value] if name in _LISTS and isinstance(value, str) else value
            if name == "allow":
                allowed.update(_rules(given, RULES))
            else:
                options.setdefault(name, given)
    return options, frozenset(allowed)


def _rules(given: Iterable[str], known: Mapping[str, str]) -> Iterator[str]:
    for rule in given:
        if rule == "all":
            yield from known
        else:
            _require_known("rule to allow", rule, [*known, "all"])
            yield rule


def _require_known(kind: str, name: object, known: Collection[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)[0]
        _refuse(f"unknown {kind} {name!r}, did you mean {near!r}? Known: {', '.join(known)}")


def _refuse(reason: str) -> NoReturn:
    pytest.fail(f"@pytest.mark.{_MARK}: {reason}", pytrace=False)


def _misuse_report(findings: Iterable["sandboxes.Finding"]) -> str:
    rules = sorted({found.rule for found in findings})
    lines = "".join(f"\n  {found}" for found in findings)
    return (
        f"The sandbox found misuse of the protocol:{lines}\n"
        f"If the test does this on purpose, mark it: @pytest.mark.{_MARK}(allow={rules})"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", _MARK_HELP)


@pytest.hookimpl(tryfirst=True)  # before the fixtures of the test
def pytest_runtest_setup() -> None:
    """Forget the approvals of earlier tests, if there are any."""
    if (flights := sys.modules.get("loanasync._runtime.flights")) is not None:
        flights.MEMORIES.forget()


@pytest.hookimpl(hookwrapper=True)  # `wrapper=True` needs pytest 8
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Add the sandbox's calls to the report of a failed test, with personal data masked."""
    report: pytest.TestReport = (yield).get_result()
    sandbox = item.stash.get(_sandboxes, None)
    if sandbox is None:
        return
    if report.failed:
        report.sections.append(("Calls to the loan sandbox", _calls_report(sandbox.journal)))
    if report.failed or report.when == "teardown":
        del item.stash[_sandboxes]  # the item lives longer than its test


def _calls_report(journal: "sandboxes.Journal") -> str:
    left_out = max(len(journal) - _MAX_CALLS, 0)
    first = f"The last {_MAX_CALLS} of {len(journal)} calls:\n" if left_out else ""
    return first + "\n".join(map(str, journal[left_out:])) or "There were no calls."
