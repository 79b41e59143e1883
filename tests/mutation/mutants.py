"""Check the results of mutation testing: enough changes were noticed, and mutants.toml is true.

It reads the results of mutmut and of tables.py in the current folder; `nox -s mutants` runs all three. Each
run tries a sample of the changes. It fails if tests notice less than 92 % of the sample, or if a row of
mutants.toml is not true. It lists survivors without a row: write the missing test, or add a row with the
reason why no test can notice.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

EXPLAINED = Path(__file__).with_suffix(".toml")
LEAST_KILLED = 0.92
NOTICED = {"killed", "timeout", "segfault"}


class Change(NamedTuple):
    """A change of the code, identified by its lines, so that other edits do not affect it."""

    module: str
    function: str
    before: str
    after: str

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)


class Result(NamedTuple):
    """The result of a change. `change` is None if no row can name it: it was not tried, or was noticed."""

    module: str
    status: str  # "killed", "survived" or "not tried"
    change: Change | None = None


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def one_line(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines())


def side(diff: str, sign: str) -> str:
    found = [
        line[1:] for line in diff.splitlines() if line.startswith(sign) and not line.startswith(sign * 3)
    ]
    return one_line("\n".join(found))


def by_mutmut(known: set[Change]) -> Iterator[Result]:
    functions = {each[:2] for each in known}
    for line in run("mutmut", "results", "--all", "true").splitlines():
        name, _, status = line.strip().partition(": ")
        _, *path, changed = name.split(".")
        module = ".".join(path)
        function = re.sub(r"^x_|^xǁ|__mutmut_\d+$", "", changed).replace("ǁ", ".")
        if status == "not checked":
            yield Result(module, "not tried")
        elif status in NOTICED and (module, function) not in functions:
            yield Result(module, "killed")
        else:
            diff = run("mutmut", "show", name)
            found = Change(module, function, side(diff, "-"), side(diff, "+"))
            yield Result(module, "killed" if status in NOTICED else "survived", found)


def by_tables() -> Iterator[Result]:
    tables = json.loads(Path("tables.json").read_text(encoding="utf-8"))
    for module, before, after, is_noticed in tables["results"]:
        yield Result(module, "killed" if is_noticed else "survived", Change(module, "", before, after))
    for module, count in tables["others"].items():
        yield from [Result(module, "not tried")] * count


def explained() -> set[Change]:
    groups = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))["accepted"]
    assert all(group["why"] for group in groups)
    return {Change(*each) for group in groups for each in group["changes"]}


def is_in_code(row: Change) -> bool:
    file = Path("loanasync", *row.module.split(".")).with_suffix(".py")
    return file.exists() and row.before in one_line(file.read_text(encoding="utf-8"))


def main() -> str | None:
    known = explained()
    results = [*by_mutmut(known), *by_tables()]
    count = Counter((result.module, result.status) for result in results)
    sys.stdout.write(f"{'module':<28}{'killed':>8}{'survived':>10}{'sampled':>9}{'total':>7}\n")
    for module in sorted({result.module for result in results}):
        killed, survived, others = (count[module, each] for each in ("killed", "survived", "not tried"))
        tried = killed + survived
        sys.stdout.write(f"{module:<28}{killed:>8}{survived:>10}{tried:>9}{tried + others:>7}\n")
    noticed, tried = (
        sum(result.status in accepted for result in results)
        for accepted in ({"killed"}, {"killed", "survived"})
    )
    killed_rows = {result.change for result in results if result.status == "killed"}
    survivors = {result.change for result in results if result.change and result.status == "survived"}
    for each in sorted(survivors - known):
        sys.stdout.write(f"not noticed, and not explained: {each}\n")
    sys.stdout.write(
        f"{noticed} killed of {tried} sampled, {noticed / max(tried, 1):.1%}; {len(results)} changes in all\n"
    )
    problems = [f"explained, but noticed: {each}" for each in sorted(known & killed_rows - survivors)]
    problems += [f"explained, but removed: {each}" for each in sorted(known) if not is_in_code(each)]
    if noticed < LEAST_KILLED * tried or not tried:
        problems.append(
            f"tests noticed less than {LEAST_KILLED:.0%} of the sampled changes: add tests for survivors"
        )
    return "\n".join(problems) or None


if __name__ == "__main__":
    sys.exit(main())
