"""The picture of the architecture is up to date, and its page names every package."""

import importlib.util
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

import loanasync

DOCS = Path(__file__).parents[2] / "docs"
PACKAGE = Path(loanasync.__file__).parent


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("drawing", DOCS / "drawing.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def drawn(script: ModuleType) -> set[str]:
    return {name for box in script.boxes() for name in box.stage.packages.split()}


def top_level() -> set[str]:
    """Return the names of the packages and modules at the top of loanasync."""
    return {
        file.stem for file in PACKAGE.iterdir() if file.suffix == ".py" or (file / "__init__.py").is_file()
    }


def test_the_picture_in_the_pages_is_the_one_that_is_drawn_today(script: ModuleType) -> None:
    assert script.PICTURE.read_text(encoding="utf-8") == script.picture(), "draw it: nox -s pictures"


def test_each_package_in_the_picture_exists(script: ModuleType) -> None:
    assert drawn(script) <= top_level()


def test_architecture_page_names_every_package() -> None:
    page = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
    named = {name.removesuffix(".py") for name in re.findall(r"^[├└]── (\w+(?:\.py)?)", page, re.MULTILINE)}
    packages = {file.parent.name for file in PACKAGE.glob("*/__init__.py")}
    assert packages <= named <= top_level()


def test_a_stage_stands_within_the_one_around_it(script: ModuleType) -> None:
    boxes = list(script.boxes())
    for outer, inner in pairwise(boxes):
        if outer.stage.within is inner.stage:
            assert outer.left < inner.left
            assert outer.top + outer.stage.height > inner.top + inner.stage.height
