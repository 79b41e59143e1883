"""Pytest fixtures: a sandbox and a client for each test; a protocol misuse fails the test.

pytest loads this file in every run where loanasync is installed, so it imports lazily.
"""

import difflib
import inspect
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from loanasync import LoanClient
    from loanasync.sandbox import Finding, Journal, Sandbox

__all__ = ["loan_client", "loan_sandbox"]

_MARK = "loan_sandbox"
_MARKED = (
    "loan_sandbox(dialect=..., faults=[...], seed=..., allow=[...], **options): arguments of"
    " loanasync.sandbox.Sandbox for the fixture loan_sandbox, and the rules of the protocol that this test"
    " may break (allow='all': any). The nearest mark counts for each argument; what is allowed adds up."
)
_LISTS = ("allow", "faults")
_SHOWN = 20  # calls in the report of a failed test
_PATIENCE = 5.0  # seconds for calls that a test left under way

_sandboxes = pytest.StashKey["Sandbox"]()


@pytest.fixture
def loan_sandbox(request: pytest.FixtureRequest) -> Iterator["Sandbox"]:
    """A sandbox in a thread of its own: for async tests, blocking clients and loops that come and go.

    The mark ``@pytest.mark.loan_sandbox(...)`` gives it its arguments. When the test is over, whatever
    broke the protocol fails it, unless the mark allows it.
    """
    from loanasync.sandbox import Sandbox  # noqa: PLC0415  (loaded by those who use it)

    options, allowed = _read_marks(request.node)
    try:
        running = Sandbox.in_thread(**options)
    except ValueError as error:
        _refuse(str(error))
    with running as sandbox:
        request.node.stash[_sandboxes] = sandbox
        yield sandbox
    # Read after the end: also what came last is in it.
    findings = [found for found in sandbox.findings if found.rule not in allowed]
    if findings:
        pytest.fail(_told(findings), pytrace=False)
    if any(rule.outcome is None for rule in sandbox.rules):
        pytest.fail("a rule says nothing: sandbox.on(...) needs its .respond(...)", pytrace=False)


@pytest.fixture
def loan_client(request: pytest.FixtureRequest, loan_sandbox: "Sandbox") -> Iterator["LoanClient"]:
    """A client for `loan_sandbox` that waits a millisecond between attempts, and that is closed for you.

    It speaks the dialect of the mark, if that names one.
    """
    from loanasync import Dialect, RetryPolicy  # noqa: PLC0415  (loaded by those who use it)

    options: dict[str, Any] = {"retry": RetryPolicy(base=0.001, cap=0.002)}
    dialect = _read_marks(request.node)[0].get("dialect")
    if dialect is not None:
        options["dialect"] = getattr(Dialect, dialect)()
    client = loan_sandbox.client(**options)
    yield client
    # Outside of any event loop: those of the test have ended, are stopped, or run in other threads.
    client.close(_PATIENCE)


def _read_marks(node: pytest.Item) -> tuple[dict[str, Any], frozenset[str]]:
    """The sandbox's arguments and the rules that may be broken."""
    from loanasync.sandbox import Sandbox  # noqa: PLC0415  (loaded by those who use it)
    from loanasync.sandbox.linter import RULES  # noqa: PLC0415  (loaded by those who use it)

    known = [*inspect.signature(Sandbox).parameters, "allow"]
    options: dict[str, Any] = {}
    allowed: set[str] = set()
    for mark in node.iter_markers(_MARK):  # the nearest first
        if mark.args:
            _refuse(f"{mark.args[0]!r} has no name: every argument of it is named, as in seed=7")
        for name, value in mark.kwargs.items():
            _require_known("argument", name, known)
            # One word, forgotten to be put into a list, must not be read letter by letter.
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
        _refuse(f"{kind} {name!r} is unknown, did you mean {near!r}? Known: {', '.join(known)}")


def _refuse(why: str) -> NoReturn:
    pytest.fail(f"@pytest.mark.{_MARK}: {why}", pytrace=False)


def _told(findings: Iterable["Finding"]) -> str:
    rules = sorted({found.rule for found in findings})
    lines = "".join(f"\n  {found}" for found in findings)
    return (
        f"The sandbox saw misuse of the protocol:{lines}\n"
        f"A test that means it says so: @pytest.mark.{_MARK}(allow={rules})"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", _MARKED)


@pytest.hookimpl(hookwrapper=True)  # the old form, which every pytest knows
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Show beside a failure what the sandbox saw, once, with everything personal masked."""
    report: pytest.TestReport = (yield).get_result()
    sandbox = item.stash.get(_sandboxes, None)
    if sandbox is None:
        return
    if report.failed:
        report.sections.append(("What the loan sandbox saw", _seen(sandbox.journal)))
    if report.failed or report.when == "teardown":
        del item.stash[_sandboxes]  # the item outlives its test


def _seen(journal: "Journal") -> str:
    if not journal.on:
        return "The journal is off."
    left_out = max(len(journal) - _SHOWN, 0)
    first = f"The last {_SHOWN} of {len(journal)} calls:\n" if left_out else ""
    return first + "\n".join(map(str, journal[left_out:])) or "No call came."
