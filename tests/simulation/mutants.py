"""Faults that are planted in copies of the package, one at a time. The schedules must find each of them.

`mutants.toml` lists them. `nox -s simulation -- --mutants` plants them all, and prints the invariants that
found each one and the number of schedules until then.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import loanasync

LIMIT = 50_000  # schedules in which a mutant must be found
_TESTS = Path(__file__).parents[1]
_PACKAGE = Path(loanasync.__file__).parent


class Mutant(NamedTuple):
    """A fault: in a module, the first text is replaced by the second one."""

    name: str
    module: str
    before: str
    after: str


def mutants() -> list[Mutant]:
    """Return all mutants."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return [Mutant(**each) for each in tomllib.loads(text)["mutant"]]


def planted(mutant: Mutant, source: str) -> str:
    """Return the source of a module with a mutant.

    Raises:
        ValueError: The text to replace does not occur exactly once: the mutant must be rewritten.
    """
    if source.count(mutant.before) != 1:
        raise ValueError(
            f"{mutant.name}: its text occurs {source.count(mutant.before)} times in {mutant.module}"
        )
    return source.replace(mutant.before, mutant.after)


def find(mutant: Mutant) -> str:
    """Plant a mutant in a copy of the package, and return what found it; an empty text if nothing did."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "loanasync")
        shutil.copytree(_PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        module = copy / mutant.module
        module.write_text(planted(mutant, module.read_text(encoding="utf-8")), encoding="utf-8")
        path = os.pathsep.join((folder, str(_TESTS)))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        command = [sys.executable, "-m", "simulation.mutants", folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.stdout.strip() or done.stderr.strip()[-300:]


def first_violation() -> str:
    """Run schedules until one fails; return the invariants that it violates, and the number of schedules."""
    from simulation.runner import machine, run_seeds  # noqa: PLC0415  (it imports the copy of the package)

    with machine() as folder:
        for number, result in enumerate(run_seeds(range(LIMIT), folder), 1):
            if result.violations:
                return f"{number} {', '.join(sorted({name for name, _ in result.violations}))}"
    return ""


def run_mutants(only: str, workers: int) -> int:
    """Run the mutants whose name contains `only`, print the table, and return the exit status."""
    chosen = [mutant for mutant in mutants() if only in mutant.name]
    missed = 0
    with ThreadPoolExecutor(max(1, workers)) as pool:
        for mutant, found in zip(chosen, pool.map(find, chosen), strict=True):
            is_found = found.split(" ", 1)[0].isdigit()
            missed += not is_found
            print(f"{mutant.name:50} {found if is_found else f'NOT FOUND {found}'}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutants found, each within {LIMIT} schedules")
    return int(missed > 0 or not chosen)


if __name__ == "__main__":
    if not str(_PACKAGE).startswith(sys.argv[1]):
        sys.exit("the copy of the package is not imported")
    print(first_violation())
