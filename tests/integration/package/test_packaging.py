"""Content and metadata of the installed package."""

import pickle
import re
from importlib.metadata import distribution, entry_points
from pathlib import Path
from types import FunctionType

import pytest

import loanasync
import loanasync.bulk
import loanasync.errors
import loanasync.ledger
import loanasync.sandbox
import loanasync.testing
import loanasync.worker


def test_the_installed_package_is_what_is_tested() -> None:
    files = {str(file) for file in distribution("loanasync").files or ()}
    if "loanasync/__init__.py" not in files:
        pytest.skip("an editable install has no files; the tests session installs the wheel")
    here = Path(__file__).parents[3] / "loanasync"
    source = {
        f"loanasync/{file.relative_to(here)}"
        for file in here.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    find_in_package = {file for file in files if file.startswith("loanasync/") and "__pycache__" not in file}
    assert find_in_package == source
    assert not [file for file in files if file.startswith(("tests", "docs", "noxfile"))]


def test_the_package_is_typed_and_licensed() -> None:
    assert (Path(loanasync.__file__).parent / "py.typed").is_file()
    metadata = distribution("loanasync").metadata
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.11"


def test_version_is_defined_once() -> None:
    assert loanasync.__version__ == distribution("loanasync").version


@pytest.mark.parametrize(
    "module",
    [loanasync, loanasync.bulk, loanasync.ledger, loanasync.sandbox, loanasync.testing, loanasync.worker],
)
def test_public_names_are_named_by_their_package(module: object) -> None:
    package: str = module.__name__  # type: ignore[attr-defined]
    named = [getattr(module, name) for name in module.__all__]  # type: ignore[attr-defined]
    paths = {f"{each.__module__}.{each.__name__}" for each in named if isinstance(each, type | FunctionType)}
    assert paths
    assert {path.rpartition(".")[0] for path in paths} == {package}
    for each in named:
        if isinstance(each, type):
            assert pickle.loads(pickle.dumps(each)) is each  # noqa: S301  (our own)


def test_every_error_is_importable_from_the_package() -> None:
    assert set(loanasync.errors.__all__) <= set(loanasync.__all__)


def test_core_has_few_dependencies_and_extras_the_rest() -> None:
    required = distribution("loanasync").requires or []
    core = {re.split("[<>=!;]", line)[0] for line in required if "extra ==" not in line}
    fast = {"httptools", "orjson"}
    assert core == {"aiohttp", "attrs", "cattrs", "opentelemetry-api", "tenacity", "yarl", *fast}
    assert set(distribution("loanasync").metadata.get_all("Provides-Extra") or []) == {
        "cli",
        "notebook",
        "postgres",
        "redis",
        "sandbox",
        "strict",
        "taskiq",
    }


def test_the_command_is_installed() -> None:
    [command] = entry_points(group="console_scripts", name="loanasync")
    assert command.value == "loanasync.cli:main"
