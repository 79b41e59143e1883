"""The picture of the architecture is the one that is drawn today, and no module is left out of its page."""

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


def drawn(script: ModuleType) -> list[str]:
    return [name for box in script.boxes() for name in box.stage.modules.split()]


def test_the_picture_in_the_pages_is_the_one_that_is_drawn_today(script: ModuleType) -> None:
    assert script.PICTURE.read_text(encoding="utf-8") == script.picture(), "draw it: nox -s pictures"


def test_each_module_in_the_picture_is_there(script: ModuleType) -> None:
    for name in drawn(script):
        assert (PACKAGE / f"{name}.py").is_file() or (PACKAGE / name).is_dir(), name


def test_each_module_of_the_core_is_in_the_picture_or_on_its_page(script: ModuleType) -> None:
    page = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
    told = {*drawn(script), *re.findall(r"`(\w+)`", page)}
    core = {file.stem for file in PACKAGE.glob("_[a-z]*.py")}
    assert core
    assert sorted(core - told) == []


def test_a_stage_stands_within_the_one_around_it(script: ModuleType) -> None:
    boxes = list(script.boxes())
    for outer, inner in pairwise(boxes):
        if outer.stage.within is inner.stage:
            assert outer.left < inner.left
            assert outer.top + outer.stage.height > inner.top + inner.stage.height
