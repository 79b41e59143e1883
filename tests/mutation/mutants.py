"""Judges mutation testing: enough changes were noticed, and each other one is explained in mutants.toml.

It reads what mutmut and cosmic-ray left in the folder where it is run: `nox -s mutants` does it all.
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
    """One change that was tried, by what it did to the lines, so that it is known again after other edits."""

    module: str
    function: str
    was: str
    becomes: str

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
    """Each change's module, and the change itself if no test noticed it."""
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
    """The same of the numbers and truth values in tables."""
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
    wrong = [f"not noticed, and not explained: {each}" for each in sorted(survivors - known)]
    wrong += [f"explained, but noticed or gone: {each}" for each in sorted(known - survivors)]
    if share < LEAST_KILLED:
        wrong.append(f"less than {LEAST_KILLED:.0%} were noticed")
    return "\n".join(wrong) or None


if __name__ == "__main__":
    sys.exit(main())
