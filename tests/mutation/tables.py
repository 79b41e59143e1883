"""Change tables and constants outside of functions, one at a time, and check that a test fails.

mutmut changes functions only. This script changes the same modules elsewhere: it adds 1 to a number, negates
a boolean, and drops an entry of a tuple, list, set or dict. It edits files of the current folder, which must
be a copy. `nox -s mutants` runs it, and mutants.py reads its result, tables.json.
"""

import ast
import json
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROUND = 10  # one change in ten is tried in each run
LIMIT = 300.0  # seconds; a longer run of the tests waits for something that the change has prevented
CONFIG = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
TESTS: list[str] = CONFIG["pytest_add_cli_args_test_selection"]
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


class Edit(NamedTuple):
    """A replacement of an expression of a file, and its text before and after, as in mutants.toml."""

    file: Path
    node: ast.expr
    text: str
    before: str
    after: str

    @property
    def module(self) -> str:
        return ".".join(self.file.with_suffix("").parts[1:])


def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module without the bodies of functions, annotations and type arguments."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns"} or (name == "body" and isinstance(node, FUNCTIONS)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.Subscript):
                yield from outside_functions(child)


def replace(source: str, node: ast.expr, text: str) -> str:
    assert node.end_lineno
    lines = source.encode().splitlines(keepends=True)  # offsets count bytes
    head, tail = lines[node.lineno - 1][: node.col_offset], lines[node.end_lineno - 1][node.end_col_offset :]
    return b"".join(
        (*lines[: node.lineno - 1], head, text.encode(), tail, *lines[node.end_lineno :])
    ).decode()


def without(node: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each entry of a tuple, list, set or dict, and the same expression without that entry."""
    match node:
        case ast.Tuple(elts=entries, ctx=ast.Load()) | ast.List(elts=entries) | ast.Set(elts=entries):
            for index, entry in enumerate(entries if len(entries) > 1 else ()):
                others: list[ast.expr] = [*entries[:index], *entries[index + 1 :]]
                yield entry, ast.Set(others) if isinstance(node, ast.Set) else type(node)(others, ast.Load())
        case ast.Dict(keys=keys, values=values):
            for index, value in enumerate(values if len(values) > 1 else ()):
                rest = ast.Dict([*keys[:index], *keys[index + 1 :]], [*values[:index], *values[index + 1 :]])
                yield keys[index] or value, rest


def edits(file: Path) -> Iterator[Edit]:
    source = file.read_text(encoding="utf-8")
    lines = source.splitlines()
    for node in outside_functions(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            text = str(not node.value if isinstance(node.value, bool) else node.value + 1)
            after = replace(source, node, text).splitlines()
            yield Edit(file, node, text, lines[node.lineno - 1].strip(), after[node.lineno - 1].strip())
        elif isinstance(node, ast.expr):
            for entry, rest in without(node):
                before = " ".join((ast.get_source_segment(source, entry) or "").split())
                yield Edit(file, node, ast.unparse(ast.fix_missing_locations(rest)), before, "")


def has_failure(*tests: str) -> bool:
    options = [each for each in CONFIG["pytest_add_cli_args"] if "tests.mutation.plugin" not in each]
    command = (sys.executable, "-m", "pytest", "-x", "-q", *options, *tests)
    try:
        return subprocess.run(command, check=False, capture_output=True, timeout=LIMIT).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def is_noticed(edit: Edit) -> bool:
    """Return True if a test fails. The tests of the module's package run first."""
    source = edit.file.read_text(encoding="utf-8")
    changed = replace(source, edit.node, edit.text)
    ast.parse(changed)  # invalid Python would fail every test
    nearest = Path("tests/unit", *edit.file.parts[1:-1])
    edit.file.write_text(changed, encoding="utf-8")
    try:
        return (nearest.exists() and has_failure(str(nearest))) or has_failure(*TESTS)
    finally:
        edit.file.write_text(source, encoding="utf-8")


def main(turn: int) -> None:
    files = sorted({file for pattern in CONFIG["only_mutate"] for file in Path().glob(pattern)})
    found = [edit for file in files if file.suffix == ".py" for edit in edits(file)]
    sample = found[turn::ROUND]
    if has_failure(*TESTS):
        sys.exit("the tests fail without a change: run them, and correct that first")
    results = [(edit.module, edit.before, edit.after, is_noticed(edit)) for edit in sample]
    others = Counter(edit.module for edit in found) - Counter(edit.module for edit in sample)
    Path("tables.json").write_text(json.dumps({"results": results, "others": others}), encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]))
