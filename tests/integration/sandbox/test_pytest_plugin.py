"""The pytest plugin in test suites of a shop; each runs in its own folder with warnings as errors."""

from importlib.metadata import entry_points

import pytest

from loanasync.sandbox.linter import RULES
from support.builders import FISCAL_CODE
from support.pages import ROOT, fences

SHOP = """
import asyncio, contextlib, gc, threading
import pytest
from loanasync import Approved, LoanError, Refused
from loanasync.testing import approval_request, fiscal_code, user_data

pytestmark = []
CODE = "TSTXYZ00A00A000A"

@pytest.fixture(autouse=True)
def collect_garbage():
    yield
    gc.collect()

async def buy(client, code=None, **changes):
    code = code or fiscal_code()
    await client.create_request({"fiscalCode": code})
    return await client.approve(code, approval_request(**changes))

def misuse(sandbox):  # breaks two rules, in calls 3 and 4
    async def run():
        async with sandbox.client() as client, sandbox.client() as other:
            await buy(client, CODE)
            with contextlib.suppress(LoanError):
                await other.approve(CODE, approval_request())
            with contextlib.suppress(LoanError):
                await client.complete(CODE, user_data())
    asyncio.run(run())
"""


# Plugins of libraries, which would be imported again for each run.
OTHERS = "-p no:anyio -p no:faker -p no:hypothesispytest -p no:platformdirs -p no:valkey"


class Run:
    """Runs pytest for the tests of a shop."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester

    def __call__(self, tests: str, *options: str, apart: bool = False) -> pytest.RunResult:
        """Run the tests in this process, which is ten times as fast, or in a new one (`apart`)."""
        self._pytester.makepyfile(test_shop=SHOP + tests)
        scope = "" if "no:asyncio" in options else "asyncio_default_fixture_loop_scope = function\n"
        self._pytester.makeini(
            f"[pytest]\n{scope}filterwarnings = error\n"
            f"addopts = --strict-markers --strict-config -p no:cacheprovider {OTHERS}\n"
        )
        start = self._pytester.runpytest_subprocess if apart else self._pytester.runpytest_inprocess
        return start(*options)


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    return Run(pytester)


NAME = "loanasync.pytest_plugin"


def test_pytest_loads_the_plugin() -> None:
    [plugin] = entry_points(group="pytest11", name=NAME)
    assert plugin.value == NAME


@pytest.mark.parametrize(
    ("autoload", "options", "conftest", "passed"),
    [
        (True, (), f"pytest_plugins = [{NAME!r}]", 1),
        (False, ("-p", "no:asyncio"), f"pytest_plugins = [{NAME!r}]", 1),
        (False, ("-p", "no:asyncio", "-p", NAME), "", 1),
        (True, ("-p", f"no:{NAME}"), "", 0),
    ],
)
def test_plugin_works_with_and_without_its_entry_point(
    run: Run,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    autoload: bool,  # noqa: FBT001  (a parameter)
    options: tuple[str, ...],
    conftest: str,
    passed: int,
) -> None:
    if not autoload:
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(conftest)
    test = "@pytest.mark.loan_sandbox(seed=7)\ndef test_buying(loan_client): assert loan_client\n"
    result = run(test.replace("@pytest.mark", "@pytest.mark" if passed else "#"), *options)
    result.assert_outcomes(passed=passed, errors=1 - passed)


ASYNC = """
async def test_buying(loan_client, loan_sandbox):
    assert isinstance(await buy(loan_client), Approved)
    assert [call.status for call in loan_sandbox.journal] == [201, 201]
    assert loan_client._options.timeout.longest == 10, "a call that hangs delays the end of a test no longer"

async def test_a_loop_of_the_module(loan_client):
    assert isinstance(await buy(loan_client, tag="500x2.refused"), Refused)

async def test_a_client_closed_by_the_test(loan_client):
    async with loan_client:
        assert (await buy(loan_client)).approved

async def test_a_call_left_in_progress(loan_client, loan_sandbox):
    loan_sandbox.fault("hang")
    left = asyncio.create_task(loan_client.create_request({"fiscalCode": CODE}))
    await asyncio.sleep(0.02)
"""
STRICT = ASYNC.replace(
    "async def test_a_loop", "@pytest.mark.asyncio(loop_scope='module')\nasync def test_a_loop"
)


ANYIO = "pytestmark = [pytest.mark.anyio]\n@pytest.fixture\ndef anyio_backend(): return 'asyncio'\n"


@pytest.mark.parametrize(
    ("tests", "options"),
    [
        ("pytestmark = [pytest.mark.asyncio]" + STRICT, ["--asyncio-mode=strict"]),
        (STRICT, ["--asyncio-mode=auto"]),
        (ANYIO + ASYNC, ["-p", "no:asyncio", "-p", "anyio"]),
    ],
    ids=["strict", "auto", "anyio"],
)
def test_async_tests_leave_nothing_open(run: Run, tests: str, options: list[str]) -> None:
    run(tests, *options).assert_outcomes(passed=4)


LOOPS = """
def test_two_runs(loan_client):
    assert asyncio.run(buy(loan_client)).approved
    assert asyncio.run(buy(loan_client)).approved

def test_a_loop_that_runs_on_in_another_thread(loan_client):
    global loop, thread
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    assert asyncio.run_coroutine_threadsafe(buy(loan_client), loop).result().approved

def test_and_is_stopped_by_another_test():
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()

def test_a_client_kept_beyond_its_test(loan_client):
    global kept
    kept = loan_client

def test_takes_no_more_calls():
    with pytest.raises(LoanError, match="closed"):
        asyncio.run(buy(kept))
"""


def test_tests_with_own_event_loops_leave_nothing_open(run: Run) -> None:
    run(LOOPS, "-p", "no:asyncio").assert_outcomes(passed=5)


def test_protocol_misuse_fails_a_passing_test_unless_a_mark_allows_it(run: Run) -> None:
    marks = ["()", "(allow=['patch-before-documents'])", "(allow='post-after-201')", "(allow='all')"]
    tests = [
        f"@pytest.mark.loan_sandbox{mark}\ndef test_{number}(loan_sandbox): misuse(loan_sandbox)"
        for number, mark in enumerate(marks)
    ]
    result = run("\n".join(tests))
    result.assert_outcomes(passed=4, errors=3)
    output, _, _ = result.stdout.str().partition("short test summary")  # which repeats it if CI is set
    assert output.count(f"  call 3: post-after-201: {RULES['post-after-201']}") == 2
    assert output.count(f"  call 4: patch-before-documents: {RULES['patch-before-documents']}") == 2
    for allowed in ("['patch-before-documents', 'post-after-201']", "['post-after-201']"):
        assert f"@pytest.mark.loan_sandbox(allow={allowed})" in output
    assert "pytest_plugin.py" not in output, "no traceback of the plugin"


def test_marks_add_up_allowed_rules_and_closest_argument_wins(run: Run) -> None:
    run(
        """
pytestmark = [pytest.mark.loan_sandbox(allow=["post-after-201"], shop_id="of-the-module", auth_token="a")]

@pytest.mark.loan_sandbox(allow="patch-before-documents", shop_id="of-the-class")
class TestShop:
    @pytest.mark.loan_sandbox(shop_id="of-the-function")
    def test_function(self, loan_sandbox):
        assert (loan_sandbox.shop_id, loan_sandbox.auth_token) == ("of-the-function", "a")
        misuse(loan_sandbox)

    def test_class(self, loan_sandbox):
        assert loan_sandbox.shop_id == "of-the-class"

def test_module(loan_sandbox):
    assert loan_sandbox.shop_id == "of-the-module"
"""
    ).assert_outcomes(passed=3)


def test_mark_arguments_configure_the_sandbox(run: Run) -> None:
    run(
        """
@pytest.mark.loan_sandbox(faults=["approve=500x2"])
def test_faults(loan_client, loan_sandbox):
    assert asyncio.run(buy(loan_client)).approved
    assert [call.status for call in loan_sandbox.journal] == [201, 500, 500, 201]

def drawn(sandbox):
    sandbox.fault("500:0.5")
    return [sandbox._engine.faults.choose("approve", CODE, number) is None for number in range(50)]

DRAWN = []

@pytest.mark.parametrize("turn", ["first", pytest.param("other", marks=pytest.mark.loan_sandbox(seed=7))])
def test_seed(loan_sandbox, turn):
    DRAWN.append(drawn(loan_sandbox))
    assert DRAWN.count(DRAWN[-1]) == 1

@pytest.mark.loan_sandbox(dialect="civic_number")
def test_client_uses_the_dialect_of_the_mark(loan_client, loan_sandbox):
    assert asyncio.run(buy(loan_client, order_token="token")).approved
    assert "civicNumber" in loan_sandbox.journal[-1].request

"""
    ).assert_outcomes(passed=4)


INVALID_MARKS = {
    "dialekt='civic_number'": "unknown argument 'dialekt', did you mean 'dialect'? Known: host, *",
    "allow=['post-after-402']": "unknown rule to allow 'post-after-402', did you mean 'post-after-4*",
    "allow=['al']": "unknown rule to allow 'al', did you mean 'all'? Known: post-after-422, *, all",
    "allow=[7]": "unknown rule to allow 7, *",
    "'civic_number'": "unexpected positional argument 'civic_number': pass it by name, such as seed=7",
    "dialect='civic'": "dialect 'civic' must be one of None, 'street_number', 'civic_number'",
    "faults=['approve=50x1']": "*did you mean*500xN*",
    "faults=[500]": "faults must be strings*",
}


def test_invalid_mark_argument_names_valid_ones(run: Run) -> None:
    tests = [
        f"@pytest.mark.loan_sandbox({arguments})\ndef test_{number}(loan_sandbox): assert False\n"
        for number, arguments in enumerate(INVALID_MARKS)
    ]
    result = run("".join(tests))
    result.assert_outcomes(errors=len(INVALID_MARKS))
    result.stdout.fnmatch_lines(
        [f"*@pytest.mark.loan_sandbox: {message}" for message in INVALID_MARKS.values()]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_mark_is_listed_by_pytest(run: Run) -> None:
    run("", "--markers").stdout.fnmatch_lines(["@pytest.mark.loan_sandbox(dialect=..., *"])


FAILING = """
def test_failing(loan_sandbox):
    misuse(loan_sandbox)
    assert False
"""
SECTION = "*- Calls to the loan sandbox -*"


def test_failure_report_has_the_masked_calls_once(run: Run) -> None:
    result = run(FAILING)
    result.assert_outcomes(failed=1, errors=1)
    output = result.stdout.str()
    assert output.count("Calls to the loan sandbox") == 1
    result.stdout.fnmatch_lines(
        [
            "<JournalEntry #1 create_request -> 201> customer *",
            "<JournalEntry #2 approve -> 201, evaluated> customer *",
            "<JournalEntry #3 approve -> 400> ?post-after-201? customer * ms",
        ]
    )
    assert FISCAL_CODE not in output.partition("Calls to the loan sandbox")[2]


def test_failure_report_has_the_last_calls_only(run: Run) -> None:
    result = run(
        "def test_many(loan_client):\n    asyncio.run(many(loan_client))\n    assert False\n"
        "async def many(client):\n    for _ in range(30): await client.create_request({'fiscalCode': CODE})\n"
        "def test_none(loan_sandbox): assert False\n"
        "def test_without(): assert False\n"
    )
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines([SECTION, "The last 20 of 30 calls:", "<JournalEntry #11 *"])
    result.stdout.no_fnmatch_line("<JournalEntry #10 *")
    result.stdout.fnmatch_lines([SECTION, "There were no calls."])
    assert result.stdout.str().count("Calls to the loan sandbox") == 2


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.scheduled)])
def test_plugin_works_with_xdist(run: Run, workers: str) -> None:
    result = run(STRICT + FAILING, "-n", workers, "--asyncio-mode=auto", apart=True)
    result.stdout.fnmatch_lines(
        [f"*{workers} worker*", "*call 3: post-after-201: *", SECTION, "<JournalEntry #1 *"]
    )
    result.assert_outcomes(passed=4, failed=1, errors=1)


PAGE = ROOT / "docs" / "howto" / "pytest.md"


def test_examples_of_the_page_pass(run: Run) -> None:
    examples = fences(PAGE)
    run(examples, "--asyncio-mode=auto").assert_outcomes(passed=examples.count("def test_"))


FORGOTTEN = """
from loanasync import LoanClient

@pytest.fixture(scope="module")
def address():
    from loanasync.sandbox import Sandbox
    with Sandbox.in_thread() as sandbox:
        asyncio.run(sandbox.client().create_request({"fiscalCode": CODE}))
        yield sandbox

@pytest.mark.parametrize("sent", [1, 2])
def test_approval(address, sent):
    async def approve():
        async with LoanClient(address.base_url, shop_id="sandbox-shop", auth_token="sandbox-token") as client:
            with contextlib.suppress(LoanError):
                await client.approve(CODE, approval_request(email="a@example.com"))
    for _ in range(2):
        asyncio.run(approve())
    assert len(address.journal.calls(operation="approve")) == sent
"""


def test_approvals_of_an_earlier_test_are_forgotten(run: Run) -> None:
    run(FORGOTTEN, "-W", "ignore::ResourceWarning").assert_outcomes(passed=2)
