"""Tests of docs/drawing.py and of the page that shows its picture."""

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
    """Return the names of the packages in the picture."""
    return {name for box in script.boxes() for name in box.step.packages.split()}


def top_level() -> set[str]:
    """Return the names of the packages and modules at the top of loanasync."""
    return {
        file.stem for file in PACKAGE.iterdir() if file.suffix == ".py" or (file / "__init__.py").is_file()
    }


def test_picture_in_the_docs_is_up_to_date(script: ModuleType) -> None:
    assert script.PICTURE.read_text(encoding="utf-8") == script.picture(), "update it: nox -s pictures"


def test_each_package_in_the_picture_exists(script: ModuleType) -> None:
    assert drawn(script) <= top_level()


def test_architecture_page_names_every_package() -> None:
    page = (DOCS / "contributing" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", page.partition("## Layers")[2].partition("\n## ")[0]))
    packages = {file.parent.name for file in PACKAGE.glob("*/__init__.py")}
    assert packages <= named


def test_inner_step_is_drawn_inside_the_outer_one(script: ModuleType) -> None:
    boxes = list(script.boxes())
    for outer, inner in pairwise(boxes):
        if outer.step.inner is inner.step:
            assert outer.left < inner.left
            assert outer.top + outer.step.height > inner.top + inner.step.height


def test_files_that_the_architecture_page_names_exist() -> None:
    page = (DOCS / "contributing" / "architecture.md").read_text(encoding="utf-8")
    files = set(re.findall(r"`((?:loanasync|tests|docs)/[\w./]+)`", page))
    modules = {f"loanasync/{name.replace('.', '/')}" for name in re.findall(r"`(_[a-z]\w*\.\w+)`", page)}
    assert len(files) > 10
    assert [file for file in files if not (DOCS.parent / file).exists()] == []
    assert [
        name
        for name in modules
        if not (DOCS.parent / f"{name}.py").exists() and not (DOCS.parent / name).is_dir()
    ] == []
