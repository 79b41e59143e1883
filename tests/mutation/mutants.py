"""Check the results of mutation testing: enough changes were noticed, and mutants.toml explains the others.

It reads the results of mutmut and cosmic-ray in the current folder; `nox -s mutants` runs all three.
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
LEAST_KILLED = 0.9


class Change(NamedTuple):
    """A change of the code, identified by its lines, so that other edits do not affect it."""

    module: str
    function: str
    before: str
    after: str

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def change(module: str, function: str, diff: str) -> Change:
    lines = diff.splitlines()
    before = [line[1:].strip() for line in lines if line.startswith("-") and not line.startswith("---")]
    after = [line[1:].strip() for line in lines if line.startswith("+") and not line.startswith("+++")]
    return Change(module, function, " ".join(before), " ".join(after))


def by_mutmut() -> Iterator[tuple[str, Change | None]]:
    """Yield the module of each change of mutmut, and the change if no test noticed it."""
    for line in run("mutmut", "results", "--all", "true").splitlines():
        name, _, status = line.strip().partition(": ")
        _, *path, changed = name.split(".")
        module = ".".join(path)
        if status in {"killed", "timeout"}:
            yield module, None
        else:
            function = re.sub(r"^x_|^xǁ|__mutmut_\d+$", "", changed).replace("ǁ", ".")
            yield module, change(module, function, run("mutmut", "show", name))


def by_cosmic_ray() -> Iterator[tuple[str, Change | None]]:
    """Yield the same for the changes of cosmic-ray."""
    for line in run("cosmic-ray", "dump", "tables.sqlite").splitlines():
        item, result = json.loads(line)
        (mutation,) = item["mutations"]
        module = ".".join(Path(mutation["module_path"]).with_suffix("").parts[1:])
        if result["worker_outcome"] == "skipped":
            continue
        if result["test_outcome"] == "killed":
            yield module, None
        else:
            yield module, change(module, mutation["definition_name"] or "", result["diff"])


def explained() -> set[Change]:
    groups = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))["accepted"]
    assert all(group["why"] for group in groups)
    return {Change(*each) for group in groups for each in group["changes"]}


def main() -> str | None:
    tried, killed = Counter[str](), Counter[str]()
    survivors: set[Change] = set()
    for module, survivor in (*by_mutmut(), *by_cosmic_ray()):
        tried[module] += 1
        if survivor is None:
            killed[module] += 1
        else:
            survivors.add(survivor)
    sys.stdout.write(f"{'module':<24}{'killed':>8}{'survived':>10}{'total':>7}\n")
    for module, total in sorted(tried.items()):
        sys.stdout.write(f"{module:<24}{killed[module]:>8}{total - killed[module]:>10}{total:>7}\n")
    share = killed.total() / tried.total()
    sys.stdout.write(f"{killed.total()} of {tried.total()} killed: {share:.1%}\n")
    known = explained()
    problems = [f"not noticed, and not explained: {each}" for each in sorted(survivors - known)]
    problems += [f"explained, but noticed or removed: {each}" for each in sorted(known - survivors)]
    if share < LEAST_KILLED:
        problems.append(f"less than {LEAST_KILLED:.0%} were noticed")
    return "\n".join(problems) or None


if __name__ == "__main__":
    sys.exit(main())
