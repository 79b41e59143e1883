"""README, pages and docstrings: code that runs, public names, links, and coverage of the specification."""

import ast
import asyncio
import doctest
import importlib
import logging
import os
import pkgutil
import re
from collections.abc import Callable, Coroutine, Iterator
from datetime import date
from inspect import CO_COROUTINE
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import loanasync
from loanasync import LoanClient
from loanasync.sandbox import Sandbox
from support.agents.collector import Collector, collecting
from support.builders import FISCAL_CODE, approval_request
from support.memory_order import MemoryOrder
from support.pages import PACKAGES, PAGES, ROOT, fences, name_of
from support.specification import SPECIFICATION

MODULES = [
    importlib.import_module(module.name)
    for module in pkgutil.walk_packages(loanasync.__path__, "loanasync.")
    if not module.name.endswith("__main__")
]
PROGRAM_PAGES = [page for page in PAGES if fences(page).strip()]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Return the collector that pages export to, and restore logging and environment afterwards."""
    logger = logging.getLogger("loanasync")
    handlers, level = logger.handlers.copy(), logger.level
    with mock.patch.dict(os.environ), collecting() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{running.address}")
        yield running
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.mark.parametrize("page", PROGRAM_PAGES, ids=name_of)
async def test_code_of_each_page_runs(
    page: Path,
    collector: Collector,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, server in {"VALKEY_URL": "valkey", "NATS_URL": "nats", "DATABASE_URL": "postgres"}.items():
        if f'os.environ["{name}"]' in fences(page):
            monkeypatch.setenv(name, request.getfixturevalue(server).url)
    program = compile(fences(page), str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    running = eval(program, {"__name__": "__page__"})  # noqa: S307  (our own pages)
    if program.co_flags & CO_COROUTINE:
        await running
    exports = "OTLPSpanExporter()" in fences(page)
    assert {path for path, _, _ in collector.received} == (
        {"/v1/traces", "/v1/metrics"} if exports else set()
    )


async def test_tutorial_prints_the_output_that_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "docs" / "tutorial.md"
    expected = "".join(re.findall(r"```text\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    program = compile(fences(page), str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(program, {"__name__": "__page__"})  # noqa: S307  (our own page)
    printed = capsys.readouterr().out
    assert doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS), printed


def test_readme_has_an_example_of_at_most_13_lines() -> None:
    example = fences(ROOT / "README.md")
    assert len([line for line in example.splitlines() if line]) <= 13


def test_path_to_a_web_shop_in_production_has_at_most_6000_words() -> None:
    """Included files are read, too."""
    docs = ROOT / "docs"
    pages = [
        ROOT / "README.md",
        *(docs / f"{name}.md" for name in ("tutorial", "howto/web", "howto/production")),
    ]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    included = [docs / "howto" / name for name in re.findall(r"literalinclude\} (\S+)", "".join(texts))]
    texts += (file.read_text(encoding="utf-8") for file in included)
    assert len(included) == 4
    assert sum(len(text.split()) for text in texts) <= 6000


def examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for module in MODULES:
        yield from (each for each in finder.find(module) if each.examples)


class Shop:
    """An event loop, a sandbox and a client for one docstring."""

    def __enter__(self) -> dict[str, Any]:
        self._runner = asyncio.Runner()
        self._sandbox = Sandbox()
        run: Callable[[Coroutine[Any, Any, Any]], Any] = self._runner.run
        run(self._sandbox.start())
        self._client = LoanClient(
            self._sandbox.base_url, shop_id=self._sandbox.shop_id, auth_token=self._sandbox.auth_token
        )
        run(self._client.create_request({"fiscalCode": FISCAL_CODE}))
        public = {name: getattr(loanasync, name) for name in loanasync.__all__} | {"Sandbox": Sandbox}
        return {
            **public,
            "client": self._client,
            "sandbox": self._sandbox,
            "date": date,
            "fiscal_code": FISCAL_CODE,
            "order": MemoryOrder(),
            "request": approval_request(),
            "run": run,
        }

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.aclose())
        self._runner.run(self._sandbox.stop())
        self._runner.close()


@pytest.mark.parametrize("example", list(examples()), ids=lambda example: example.name)
def test_docstring_examples_run(
    example: doctest.DocTest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with Shop() as names:
        example.globs.update(names)
        results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    assert results.attempted > 0
    assert results.failed == 0


# Names in code are public.

PROGRAMS = sorted((ROOT / "docs" / "examples").glob("*.py"))


def private(program: str) -> Iterator[str]:
    """Yield each import of a name that no public package lists, and private attributes of others."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            ours = [alias.name for alias in node.names if alias.name.partition(".")[0] == "loanasync"]
            yield from (name for name in ours if name not in PACKAGES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "loanasync":
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            listed = importlib.import_module(str(node.module)).__all__ if node.module in PACKAGES else ()
            yield from sorted(names - {f"{node.module}.{name}" for name in listed} - set(PACKAGES))
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) != "self":
            yield from [node.attr] if node.attr.startswith("_") and not node.attr.endswith("__") else ()


@pytest.mark.parametrize("page", PROGRAM_PAGES, ids=name_of)
def test_page_uses_public_names_only(page: Path) -> None:
    assert list(private(fences(page))) == []


@pytest.mark.parametrize("program", PROGRAMS, ids=name_of)
def test_example_program_uses_public_names_only(program: Path) -> None:
    assert list(private(program.read_text(encoding="utf-8"))) == []


def test_docstrings_use_public_names_only() -> None:
    found = {each.name: list(private("".join(part.source for part in each.examples))) for each in examples()}
    assert found
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("program", "named"),
    [
        ("from loanasync._client import LoanClient", "loanasync._client.LoanClient"),
        ("from loanasync.ledger.model import Entry", "loanasync.ledger.model.Entry"),
        ("import loanasync.cli", "loanasync.cli"),
        ("client._flights", "_flights"),
    ],
)
def test_private_name_in_a_program_is_found(program: str, named: str) -> None:
    assert list(private(program)) == [named]


# Links, files and tables.


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_have_a_target(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        if anchor:
            text = linked.read_text(encoding="utf-8")
            headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
            names = {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}
            assert anchor in names | set(re.findall(r"^\((.+)\)=$", text, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    files = re.findall(r"`((?:loanasync|tests|docs(?!/_build)|benchmarks)/[\w/.]+)`", text)
    modules = [name.replace(".", "/") for name in re.findall(r"`(_[a-z]\w*\.[a-z]\w*)`", text)]
    files += [f"loanasync/{name}{'.py' * (not (ROOT / 'loanasync' / name).is_dir())}" for name in modules]
    assert [name for name in files if not (ROOT / name).exists()] == []


def test_architecture_page_and_its_picture_name_the_packages() -> None:
    package = ROOT / "loanasync"
    page = (ROOT / "docs" / "contributing" / "architecture.md").read_text(encoding="utf-8")
    layers = page.partition("## Layers")[2].partition("\n## ")[0]
    assert {file.parent.name for file in package.glob("*/__init__.py")} <= set(re.findall(r"`(\w+)`", layers))
    picture = (ROOT / "docs" / "_static" / "architecture.svg").read_text(encoding="utf-8")
    drawn = {name for names in re.findall(r'class="modules".*?>(.+)<', picture) for name in names.split()}
    assert drawn
    assert drawn <= {file.stem for file in package.iterdir()}


TABLE = ROOT / "docs" / "contributing" / "spec-coverage.md"


def coverage() -> list[list[str]]:
    """Return the rows of the page: paragraph, rows of the specification, code, tests."""
    lines = TABLE.read_text(encoding="utf-8").partition("## Not shown")[0].splitlines()
    return [line.strip("|").split("|") for line in lines if line.startswith("| §")]


def test_coverage_table_has_each_row_of_the_specification_once() -> None:
    listed = sorted(
        (paragraph.strip(" §"), row)
        for paragraph, rows, _, _ in coverage()
        for row in re.findall(r"`(.+?)`", rows)
    )
    assert listed == sorted((paragraph, row) for paragraph, rows in SPECIFICATION.items() for row in rows)


def test_coverage_table_names_existing_code() -> None:
    for _, row, code, _ in coverage():
        names = re.findall(r"`([^`]+)`", code)
        assert names, row
        for name in names:
            module, *attributes = name.split(":")
            found: object = importlib.import_module(module)
            for attribute in attributes:
                members = [each.name for each in getattr(found, "__attrs_attrs__", ())]
                assert attribute in members or hasattr(found, attribute), name
                found = getattr(found, attribute, None)


def test_coverage_table_names_existing_tests() -> None:
    for _, row, _, tests in coverage():
        names = re.findall(r"`([^`]+)`", tests)
        assert names, row
        for name in names:
            file, function = name.split("::")
            assert f"def {function}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), name


def test_changelog_has_the_current_version() -> None:
    assert f"## {loanasync.__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
