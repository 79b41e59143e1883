"""Imports of modules; `nox -s lint` checks the order of the layers with import-linter."""

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import aiohttp
import pytest

import loanasync

PACKAGE = Path(loanasync.__file__).parent


def modules() -> dict[str, Path]:
    files = sorted(PACKAGE.rglob("*.py"))
    return {".".join(file.relative_to(PACKAGE).with_suffix("").parts): file for file in files}


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def imports(file: Path) -> set[str]:
    """Return all imports of a module, also within functions and for type checking only."""
    found: set[str] = set()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_sandbox_shares_no_code_with_the_sdk() -> None:
    """It creates a client, with typed options; otherwise both could be wrong in the same way."""
    sandbox = {name: file for name, file in modules().items() if within(name, "sandbox")}
    assert sandbox
    for name, file in sandbox.items():
        own = {each for each in imports(file) if within(each, "loanasync")}
        others = {each for each in own if not within(each, "loanasync.sandbox")}
        assert others <= {
            "loanasync.LoanClient",
            "loanasync._client",
            "loanasync._models.classes.LazyModule",
        }, name


def test_undocumented_aiohttp_is_used_in_one_module_only() -> None:
    for name, file in modules().items():
        allowed = ("_transport.aiohttp_internals", "sandbox.")
        if not name.startswith(allowed):
            parts = {each.split(".")[1] for each in imports(file) if each.startswith("aiohttp.")}
            assert parts <= set(aiohttp.__all__), name
            if name.startswith("_transport."):
                assert not re.search(r"getattr\([^()]+, \"_[^_]", file.read_text("utf-8")), name


def test_opentelemetry_sdk_is_imported_by_extras_only() -> None:
    """import-linter sees `opentelemetry` as one package, so it cannot tell the API from the SDK."""
    found = {
        name
        for name, file in modules().items()
        for each in imports(file)
        if within(each, "opentelemetry.sdk")
    }
    assert found
    assert {name.partition(".")[0] for name in found} <= {"cli", "testing"}


def test_log_records_are_written_by_functions_that_never_raise() -> None:
    """A log handler of the user may raise an error, which must not replace the result of a call."""
    writers = [name for name, file in modules().items() if "loanasync._telemetry.log.LOGGER" in imports(file)]
    assert writers == []


# Slow to import: importing the package must not load them.
LOADED_BY_NAMES = {
    *("aiohttp", "asyncio", "attrs", "cattrs", "email", "json", "logging", "opentelemetry", "ssl"),
    *("tenacity", "loanasync._client", "loanasync.errors", "loanasync._protocol.endpoints"),
}
# Modules that an import must not load, beside those of the lines above it: one process imports all in order.
NOT_LOADED = {
    "loanasync": LOADED_BY_NAMES,
    "loanasync._api": {
        *("aiohttp.web", "sqlite3", "typer", "click", "rich", "stdnum", "pytest", "opentelemetry.sdk"),
        *("loanasync.sandbox", "loanasync.cli", "loanasync.testing", "loanasync.pytest_plugin"),
        *("loanasync.bulk", "loanasync.bulk.pool", "tqdm", "loanasync._models.notebook"),
        "loanasync.ledger",
    },
    "loanasync.ledger": {"redis", "asyncpg"},
    "loanasync.worker": {"taskiq", "redis", "nats"},
    "loanasync.testing": {"typer", "rich", "stdnum", "pytest", "opentelemetry.sdk"},
    "loanasync.cli.app": {"loanasync.sandbox", "opentelemetry.sdk"},
}
NOT_LOADED_BY_PYTEST = {
    *("aiohttp.web", "jinja2", "pytest_asyncio", "anyio", "loanasync.sandbox", "loanasync.testing")
}


def test_imports_load_only_what_they_need() -> None:
    loaded = loaded_after(*NOT_LOADED)
    for module, absent in NOT_LOADED.items():
        assert module in loaded[module]
        assert not loaded[module] & absent, module
    assert loaded["loanasync._api"] >= LOADED_BY_NAMES  # the first name loads what a client needs


CREATE = """
import sys
from loanasync import LoanClient
client = LoanClient("https://loans.example.com", shop_id="shop", auth_token="token")
"""
# A call of a service that fails once, then refuses. It prints the loaded modules before the call, when each
# request has arrived, and after the call.
CALL = """
import asyncio
from loanasync.testing import approval_request, fiscal_code

responses = iter((("500 Error", b"{}"), ("422 Refused", b'{"approved": false}')))

async def respond(reader, writer):
    await reader.readuntil(b"}")
    print(*sys.modules)
    status, body = next(responses)
    head = f"HTTP/1.1 {status}\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
    writer.write(head.encode() + body)

async def main():
    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    client = LoanClient("http://%s:%d" % server.sockets[0].getsockname(), shop_id="shop", auth_token="token")
    print(*sys.modules)
    decision = await client.approve(fiscal_code(), approval_request())
    assert (decision.approved, decision.meta.attempts) == (False, 2)
    print(*sys.modules)
    await client.aclose()

asyncio.run(main())
"""


def test_command_line_loads_no_client() -> None:
    """It takes longer to load than most commands need."""
    [loaded] = printed_modules("import sys, loanasync.ledger, loanasync.cli.app; print(*sys.modules)")
    assert not {"aiohttp", "loanasync._client"} & {*loaded}


def test_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'loanasync' has no attribute 'Client'"):
        loanasync.Client  # type: ignore[attr-defined]  # noqa: B018
    assert {"LoanClient", "__version__"} <= {*dir(loanasync)}


def test_call_loads_nothing() -> None:
    """Loading a module can fail, for example if the process has too many open files."""
    before, *_, after = printed_modules(CREATE + CALL)
    assert after == before


WITHOUT = """
import sys

sys.modules["fastapi"] = None  # which taskiq would import: it takes longer than all others
for library, use in [
    ("taskiq", "from loanasync.worker import register; register(None, None)"),
    *((each, "import loanasync.worker.redis") for each in ("taskiq", "taskiq_redis", "redis")),
    *((each, "import loanasync.worker.nats") for each in ("taskiq", "taskiq_nats", "nats")),
]:
    for name in [*sys.modules]:
        if name.startswith("loanasync.worker") or name.partition(".")[0] == library:
            del sys.modules[name]
    sys.modules[library] = None
    try:
        exec(use)
    except ImportError as error:
        print(error)
    del sys.modules[library]
"""


def test_worker_without_its_extra_names_the_command() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], check=True, capture_output=True, encoding="utf-8")
    ends = [
        line.partition(" misses a package, or has one that is too old: ")[2]
        for line in done.stdout.splitlines()
    ]
    assert ends == ["run pip install -U '.[taskiq]' in a checkout"] * 7


def test_pytest_plugin_loads_only_what_it_needs() -> None:
    assert not loaded_after("loanasync.pytest_plugin")["loanasync.pytest_plugin"] & NOT_LOADED_BY_PYTEST


def test_no_module_depends_on_the_python_version() -> None:
    """Coverage is measured with one Python, so every line must run on all of them."""
    for file in modules().values():
        found = re.findall(r"sys\.version|version_info|hexversion", file.read_text("utf-8"))
        assert not found, file


def loaded_after(*names: str) -> dict[str, set[str]]:
    """Import modules in a new process, and return all loaded modules after each import."""
    script = "import sys\n" + "".join(f"import {name}; print(*sys.modules)\n" for name in names)
    return dict(zip(names, printed_modules(script), strict=True))


def printed_modules(script: str) -> list[set[str]]:
    """Run a program in a new process, and return the names in each line that it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=True, env=environment, capture_output=True, encoding="utf-8")
    return [{*line.split()} for line in done.stdout.splitlines()]


def test_module_names_say_what_the_module_contains() -> None:
    vague = {"utils", "helpers", "common", "base", "manager"}
    found = [name for name in modules() if vague & set(name.split("."))]
    assert found == ["_transport.base"], "it has the protocol of its package"
