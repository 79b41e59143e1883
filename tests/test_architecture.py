"""The arrows between modules go one way, and the sandbox shares no code with the SDK."""

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import loanasync

PACKAGE = Path(loanasync.__file__).parent

# Each module may import those before it, and none after it.
ORDER = [
    *(
        "_html",
        "_closing",
        "_forks",
        "_display",
        "_meta",
        "errors",
        "_policy",
        "_limits",
        "_models",
        "_decisions",
        "_dialect",
        "_values",
    ),
    *(
        "_rules",
        "_configuration",
        "_certificates",
        "_json",
        "_codec",
        "_redaction",
        "_problems",
        "_echo",
        "_calls",
        "_options",
        "_origin",
        "_prepare",
        "_retry",
        "_events",
        "_metrics",
        "_propagation",
        "_telemetry",
    ),
    *(
        "_loops",
        "_replies",
        "_standstill",
        "_parser",
        "_splitter",
        "_tested",
        "_transport",
        "_wire",
        "_direct",
        "_sessions",
        "_pipeline",
        "_flights",
        "_memory",
    ),
    *("bulk", "_many", "_ledger", "_lifetime", "_client", "__init__"),
]

# And so within the rooms of more than one module. The ledgers stand on the core.
ROOMS = {
    "errors": ["_advice", "_failure", "_service", "_transport", "_ledger", "__init__"],
    "bulk": ["_pace", "_window", "_rows", "_summary", "_approvals", "__init__"],
    "ledger": [
        *("_entries", "_formats", "_moves", "_lists", "_protocol", "_polling", "_memory"),
        *("_clock", "_forking", "_sqlite_file", "_sqlite", "_sweeping"),
        *("_remote", "_lua", "_redis", "_sql", "_connections", "_postgres"),
        *("_policy", "_keys", "_settling", "_spool", "_resolving", "_withdrawals", "_guard"),
        *("_recording", "__init__"),
    ],
    "worker": [
        *("_message", "_answer", "_letters", "_delivery", "_pausing", "_taskiq", "__init__"),
        *("_cancelling", "_starting", "_streams_lua", "nats", "redis"),
    ],
}

# For the type checkers alone; or for a client that has a ledger.
NOT_LOADED = {
    "errors._ledger": {"_decisions"},
    "_ledger": {"ledger"},
    "_memory": {"ledger"},
    "_client": {"ledger"},
}

# And so within the sandbox.
SANDBOX = [
    *("_readings", "_customers", "_validation", "_nearest", "_logs"),
    *("_outcomes._outcome", "_outcomes._tags", "_outcomes._rules", "_outcomes.__init__"),
    *("_shapes", "_answers", "_linter"),
    *("_journal._masking", "_journal._entry", "_journal._matching", "_journal._journal", "_journal.__init__"),
    *("_engine", "_sdk", "_process", "_safety", "_delivery", "_service", "_sqlite", "_threads", "_openapi"),
    *("_pages._filters", "_pages._forms", "_pages._replay", "_pages._pages", "_pages._web"),
    "_pages.__init__",
    *("_server", "_command", "__init__", "__main__"),
]


def modules() -> dict[str, Path]:
    files = sorted(PACKAGE.rglob("*.py"))
    return {".".join(file.relative_to(PACKAGE).with_suffix("").parts): file for file in files}


def imports(file: Path) -> set[str]:
    """Whatever a module imports, also within functions and for type checking only."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


AROUND_THE_CORE = ("ledger.", "worker.", "sandbox.", "cli.", "testing.", "pytest_plugin", "__main__")
CORE = {name: file for name, file in modules().items() if not name.startswith(AROUND_THE_CORE)}


def test_every_module_of_the_core_has_its_place_in_the_order() -> None:
    assert {name.partition(".")[0] for name in CORE} == set(ORDER)


@pytest.mark.parametrize("name", CORE)
def test_arrows_go_one_way(name: str) -> None:
    place = ORDER.index(name.partition(".")[0])
    used = {each.split(".")[1] for each in imports(CORE[name]) if within(each, "loanasync") and "." in each}
    # `from loanasync import _calls as calls` names a module, `from loanasync import X` would name the package
    used -= NOT_LOADED.get(name, set()) | {room for room in ROOMS if name.startswith(f"{room}.")}
    assert used <= set(ORDER)
    assert not used & set(ORDER[place:]) - {"__init__"}


@pytest.mark.parametrize("room", ROOMS)
def test_arrows_go_one_way_within_a_room(room: str) -> None:
    found = {name: file for name, file in modules().items() if name.startswith(f"{room}.")}
    assert {name.removeprefix(f"{room}.") for name in found} == set(ROOMS[room])
    for name, file in found.items():
        earlier = ROOMS[room][: ROOMS[room].index(name.removeprefix(f"{room}."))]
        for used in (each for each in imports(file) if within(each, f"loanasync.{room}")):
            assert used.split(".")[2] in earlier, (name, used)


def test_the_ledgers_stand_on_the_core() -> None:
    below = {"ledger", *ORDER[: ORDER.index("_ledger")]}
    for name, file in modules().items():
        if name.startswith("ledger."):
            used = {each.split(".")[1] for each in imports(file) if within(each, "loanasync")}
            assert used <= below, name


def module_of(imported: str) -> str:
    """The module of the sandbox that an import names, or names something of."""
    name = imported.removeprefix("loanasync.sandbox").removeprefix(".")
    while name not in SANDBOX and f"{name}.__init__" not in SANDBOX and name:
        name = name.rpartition(".")[0]
    return name if name in SANDBOX else f"{name}.__init__".removeprefix(".")


def test_arrows_go_one_way_within_the_sandbox() -> None:
    found = {name: file for name, file in modules().items() if name.startswith("sandbox.")}
    assert {name.removeprefix("sandbox.") for name in found} == set(SANDBOX)
    for name, file in found.items():
        earlier = SANDBOX[: SANDBOX.index(name.removeprefix("sandbox."))]
        used = {module_of(each) for each in imports(file) if within(each, "loanasync.sandbox")}
        # A module may be asked for beside its room's own door, as `from room import _module`.
        assert used - {f"{name.removeprefix('sandbox.').rpartition('.')[0]}.__init__"} <= set(earlier), name


def test_only_the_ways_to_the_service_speak_aiohttp() -> None:
    speakers = {name for name, file in CORE.items() if any(within(each, "aiohttp") for each in imports(file))}
    ways = {
        "_certificates",
        "_parser",
        "_splitter",
        "_transport",
        "_wire",
        "_direct",
        "_replies",
        "_sessions",
    }
    typed_only = {"_client"}
    assert speakers == ways | typed_only
    loaded = ast.parse(CORE["_client"].read_text(encoding="utf-8")).body
    assert not [node for node in loaded if isinstance(node, ast.Import) and node.names[0].name == "aiohttp"]


def waits(file: Path) -> bool:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.AsyncFunctionDef) for node in ast.walk(tree))


def test_the_pure_layers_do_not_wait() -> None:
    waiting = {name for name, file in CORE.items() if waits(file)}
    calling = {
        "_retry",
        "_loops",
        "_replies",
        "_standstill",
        "_splitter",
        "_transport",
        "_direct",
        "_pipeline",
        "_client",
    }
    assert waiting == calling | {
        "bulk._pace",
        "bulk._window",
        "bulk._approvals",
        "_many",
        "_closing",
        "_lifetime",
        "_flights",
        "_memory",
    }


def test_the_sandbox_and_the_core_share_no_code() -> None:
    sandbox = {name: file for name, file in modules().items() if name.startswith("sandbox.")}
    assert sandbox
    doors = set()
    for name, file in sandbox.items():
        ours = {each for each in imports(file) if within(each, "loanasync")}
        if not all(within(each, "loanasync.sandbox") for each in ours):
            doors.add(name)
            assert {each for each in ours if not within(each, "loanasync.sandbox")} == {
                "loanasync.LoanClient"
            }
    assert doors == {"sandbox._sdk", "sandbox._server", "sandbox._process"}
    for file in CORE.values():
        assert not {each for each in imports(file) if within(each, "loanasync.sandbox")}


def test_the_help_for_tests_stands_on_the_core_and_the_core_does_not_know_it() -> None:
    helping = {name: file for name, file in modules().items() if name.startswith("testing.")}
    assert helping
    for name, file in helping.items():
        ours = {each for each in imports(file) if within(each, "loanasync")}
        used = {each.split(".")[1] for each in ours}
        assert used <= {*ORDER, "ledger", "testing"} - {"_transport", "__init__"}, (name, used)
    for file in CORE.values():
        assert not {each for each in imports(file) if within(each, "loanasync.testing")}


def test_only_the_recorder_wants_the_opentelemetry_sdk() -> None:
    wanting = {
        name
        for name, file in modules().items()
        if not name.startswith("cli.") and any(within(each, "opentelemetry.sdk") for each in imports(file))
    }
    assert wanting == {"testing._recorder"}


def test_the_core_needs_the_opentelemetry_api_and_never_its_sdk() -> None:
    for file in CORE.values():
        assert not {each for each in imports(file) if within(each, "opentelemetry.sdk")}


@pytest.mark.parametrize(
    "absent",
    [
        *("aiohttp.web", "sqlite3", "typer", "click", "rich", "stdnum", "pytest", "opentelemetry.sdk"),
        *("loanasync.sandbox", "loanasync.cli", "loanasync.testing", "loanasync.pytest_plugin"),
        *("loanasync.bulk", "loanasync.bulk._window", "tqdm", "loanasync._html"),
        "loanasync.ledger",
    ],
)
def test_importing_the_package_loads_only_what_a_call_needs(absent: str) -> None:
    assert absent not in loaded_by("loanasync")


@pytest.mark.parametrize("absent", ["typer", "rich", "stdnum", "pytest", "opentelemetry.sdk"])
def test_importing_the_help_for_tests_needs_no_extra(absent: str) -> None:
    assert absent not in loaded_by("loanasync.testing")


@pytest.mark.parametrize("absent", ["redis", "asyncpg"])
def test_importing_the_ledgers_needs_no_extra(absent: str) -> None:
    assert absent not in loaded_by("loanasync.ledger")


@pytest.mark.parametrize("absent", ["taskiq", "redis", "nats"])
def test_a_shop_with_a_queue_of_its_own_needs_none_of_ours(absent: str) -> None:
    assert absent not in loaded_by("loanasync.worker")


@pytest.mark.parametrize(
    "absent", ["aiohttp.web", "jinja2", "pytest_asyncio", "anyio", "loanasync.sandbox", "loanasync.testing"]
)
def test_the_pytest_plugin_loads_little_into_the_runs_of_others(absent: str) -> None:
    assert absent not in loaded_by("loanasync.pytest_plugin")


@pytest.mark.parametrize("absent", ["loanasync.sandbox", "opentelemetry.sdk"])
def test_no_command_waits_for_what_another_one_uses(absent: str) -> None:
    assert absent not in loaded_by("loanasync.cli._commands")


def test_the_pytest_plugin_imports_ours_only_once_a_test_asks_for_it() -> None:
    body = ast.parse(modules()["pytest_plugin"].read_text(encoding="utf-8")).body
    ours = [node.module for node in body if isinstance(node, ast.ImportFrom) and node.module is not None]
    assert not [name for name in ours if within(name, "loanasync")]


def test_nothing_of_ours_imports_the_pytest_plugin() -> None:
    for file in modules().values():
        assert not {each for each in imports(file) if within(each, "loanasync.pytest_plugin")}


def test_no_line_is_for_one_python_alone() -> None:
    """So what tests reach on one Python, where coverage is measured, they reach on all."""
    for file in modules().values():
        asked = re.findall(r"sys\.version|version_info|hexversion", file.read_text("utf-8"))
        assert not asked, file


@cache
def loaded_by(module: str) -> frozenset[str]:
    """All modules in a process that imported this one and nothing else."""
    script = f"import sys, {module}; print(*sys.modules)"
    alone = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, env=alone, capture_output=True, encoding="utf-8"
    )
    return frozenset(done.stdout.split())


@pytest.mark.parametrize("name", sorted(modules()))
def test_a_module_says_in_one_sentence_what_it_is(name: str) -> None:
    file = modules()[name]
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    assert docstring
    assert docstring.splitlines()[0].endswith((".", ":"))
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 400
    assert not {"utils", "helpers", "common", "base", "manager"} & set(name.split("."))
