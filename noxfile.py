"""Every check of the project, each in an environment of its own: `nox -l` lists them."""

import json
import os
import re
import shutil
from itertools import chain
from pathlib import Path

import nox
from packaging.requirements import Requirement
from packaging.version import Version

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "uv|venv"  # uv where it is installed: the same, in a tenth of the time
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False  # one Python is enough to work; what is skipped is said
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "types", "tests", "floors", "docs", "build"]

PYTHONS = ["3.11", "3.12", "3.13"]
# Beside an audit hook (tests/support/network_guard.py), Python 3.11 cannot always begin to trace a thread.
MEASURED = "3.13"
ONE_PYTHON = "3.11"  # where one is enough: its tools resolve to the same versions everywhere

EVERYTHING = ".[cli,notebook,postgres,redis,sandbox,strict,taskiq]"  # the package with all of its extras
PYPROJECT = nox.project.load_toml("pyproject.toml")
FOLDERS = ["benchmarks", "docs", "loanasync", "tests"]  # of Python files
SUPPORT = {"PYTHONPATH": "tests", "PYTHONSAFEPATH": "1"}  # for scripts that import tests/support
LONGEST_FILE = 600  # lines without blanks and comments
# Tests wait half of their time, for a socket, a process or a clock: two of them share a processor.
# Who is through takes over what others have left; more than 16 would only wait for the longest test.
AT_ONCE = ["-n", str(min(16, 2 * (os.cpu_count() or 1))), "--dist", "worksteal"]
# Tests of documents, structure and benchmarks run once, with the first Python that is there.
FIRST = next((each for each in PYTHONS if shutil.which(f"python{each}")), ONE_PYTHON)
ONCE = [f"--ignore=tests/{path}" for path in ("architecture", "docs", "stress/test_benchmarks.py")]
# Packages that need neither an event loop nor a network: tests reach each of their lines.
PURE = [
    "_config.py",
    "_display/*",
    "_models/*",
    "_protocol/*",
    "_results.py",
    "_settings.py",
    "_validation/*",
    "errors/*",
]


# What the page on performance tells is written by these, with each Python.
KEPT = "--json=docs/figures/{}-{{python}}.json"
EVERY_FIGURE = [
    ["calls.py", KEPT.format("calls"), "--plot=docs/_static/calls-{python}.svg"],
    ["calls.py", "--variants=ours", KEPT.format("paths")],
    *([f"{name}.py", KEPT.format(name)] for name in ("conversions", "growth", "counts", "telemetry")),
    *(["ledger.py"], ["sandbox.py"], ["soak.py", "--minutes=1"], ["page.py"]),
]


def install(session: nox.Session, group: str, *package: str) -> None:
    session.install("-q", *nox.project.dependency_groups(PYPROJECT, group), *package)


def lowest() -> dict[str, str]:
    floors = {}
    project = PYPROJECT["project"]
    for each in map(Requirement, chain(project["dependencies"], *project["optional-dependencies"].values())):
        [floors[each.name]] = [limit.version for limit in each.specifier if limit.operator == ">="]
    return floors


@nox.session
def demo(session: nox.Session) -> None:
    """Watch whole loan requests travel, against a sandbox started for them."""
    session.install("-q", ".[cli]")
    session.run("loanasync", "demo")


@nox.session(python=ONE_PYTHON)
def bench(session: nox.Session) -> None:
    """Compare our calls with others', and measure all else; or `-- soak.py --requests 1000000`."""
    install(session, "bench-peers", ".[postgres,redis]")
    runs = [session.posargs] if session.posargs else EVERY_FIGURE
    for script, *options in runs:
        told = [option.replace("{python}", str(session.python)) for option in options]
        session.run("python", f"benchmarks/{script}", *told)


@nox.session(python=ONE_PYTHON)
def instructions(session: nox.Session) -> None:
    """Count the machine's instructions for a call, with valgrind."""
    install(session, "bench", ".")
    kept = KEPT.format("instructions").replace("{python}", str(session.python))
    session.run("python", "benchmarks/instructions.py", kept, *session.posargs)
    session.run("python", "benchmarks/page.py")


@nox.session
def pages(session: nox.Session) -> None:
    """Write those tables of the documentation that are made from the tests' own rows."""
    install(session, "tests", ".")
    for page in ("cli_page", "errors_page", "faults_page", "privacy_page", "tags_page"):
        session.run("python", f"docs/_generate/{page}.py", "--write", env=SUPPORT)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run every ring of tests against the built wheel, and README and docs with them."""
    install(session, "tests", EVERYTHING)
    env = {"PYTHONSAFEPATH": "1", "COVERAGE_FILE": str(Path(session.create_tmp()) / "coverage")}
    if session.posargs:
        session.run("pytest", *session.posargs, env=env)
        return
    once = [] if session.python == FIRST else ONCE
    # No line of the package is for one Python alone, so what is covered on one is covered on all.
    if session.python != MEASURED:
        session.run("pytest", "tests", *AT_ONCE, *once, env=env)
        return
    session.run("coverage", "erase", env=env)
    # Begun before pytest is: it loads our plugin, and the package with it, before pytest-cov would begin.
    session.run("coverage", "run", "-m", "pytest", "tests", *AT_ONCE, *once, env=env)
    session.run("coverage", "combine", "-q", env=env)
    pure = ",".join(f"*/loanasync/{pattern}" for pattern in PURE)
    session.run("coverage", "report", f"--include={pure}", "--fail-under=100", env=env)
    session.run("coverage", "report", "--fail-under=97", env=env)


@nox.session(python=ONE_PYTHON)
def bulk(session: nox.Session) -> None:
    """Ask for 10,000 rows of a file, interrupted twice; the tests do so with some hundreds."""
    install(session, "tests", EVERYTHING)
    env = {"PYTHONSAFEPATH": "1", "LOANASYNC_TEST_ROWS": "10000"}
    session.run("pytest", "tests/integration/cli/test_many_whole.py", *session.posargs, env=env)


@nox.session(python=ONE_PYTHON)
def floors(session: nox.Session) -> None:
    """Run the tests with the lowest version of each dependency that pyproject.toml allows."""
    allowed = lowest()
    install(session, "tests", EVERYTHING, *(f"{name}=={floor}" for name, floor in allowed.items()))
    ask = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    found = str(session.run("python", "-c", ask, *allowed, silent=True)).split()
    for (name, floor), version in zip(allowed.items(), found, strict=True):
        session.log(f"{name} {version}")
        if Version(version) != Version(floor):
            session.error(f"{name} {floor} is what pyproject.toml allows, and {version} is what is there")
    # Browsers, frameworks, pytest, benchmarks and what a dashboard reads: none of these floors is theirs.
    others = ["package/test_network_guard.py", "queues/test_recipes.py", "sandbox/test_browser.py"]
    others += ["sandbox/test_pytest_plugin.py", "shops"]
    left_out = [*ONCE, *(f"--ignore=tests/integration/{path}" for path in others)]
    session.run("pytest", "tests", *AT_ONCE, *left_out, *session.posargs, env={"PYTHONSAFEPATH": "1"})


@nox.session(python=ONE_PYTHON)
def audit(session: nox.Session) -> None:
    """Ask for known vulnerabilities of all that comes with the package; needs the network."""
    install(session, "audit")
    report, resolved = (Path(session.create_tmp()) / name for name in ("report.json", "resolved.txt"))
    wanted = ["--ignore-installed", "--report", str(report), EVERYTHING]
    session.run("python", "-m", "pip", "install", "-q", "--dry-run", *wanted)
    brought = [each["metadata"] for each in json.loads(report.read_text(encoding="utf-8"))["install"]]
    others = [each for each in brought if each["name"] != PYPROJECT["project"]["name"]]
    resolved.write_text("".join(f"{each['name']}=={each['version']}\n" for each in others), encoding="utf-8")
    # Strict, because it would otherwise pass what nobody knows anything about.
    session.run("pip-audit", "--strict", "--no-deps", "--disable-pip", "-r", str(resolved), *session.posargs)


@nox.session(python=ONE_PYTHON)
def soak(session: nox.Session) -> None:
    """Make a hundred thousand calls, good and bad, and see that nothing of them is left."""
    install(session, "tests", EVERYTHING)
    session.run("pytest", "tests/stress/test_leaks.py", env={"PYTHONSAFEPATH": "1", "LOANASYNC_SOAK": "1"})


@nox.session(python=ONE_PYTHON)
def fleet(session: nox.Session) -> None:
    """Kill workers at every point with every queue and ledger, then let whole fleets work (`-- --write`)."""
    install(session, "tests", EVERYTHING)
    env = {"PYTHONSAFEPATH": "1", "LOANASYNC_FLEET": "1"}
    session.run("pytest", "tests/integration/queues", "tests/stress/test_fleet.py", *AT_ONCE, env=env)
    many = {**env, "LEDGER_KEYS": "100000"}
    ledgers = ["tests/unit/ledger", "tests/integration/ledger"]
    session.run("pytest", *ledgers, *AT_ONCE, "-k", "holds_many_keys", env=many)
    session.run("python", "-m", "support.fleet.run", *session.posargs, env=SUPPORT)


@nox.session(python=ONE_PYTHON)
def readings(session: nox.Session) -> None:
    """Run the SDK against every reading of the specification, in memory; takes some minutes."""
    install(session, "tests", ".")
    session.run("python", "-m", "support.readings", *session.posargs, env=SUPPORT)


@nox.session(python=ONE_PYTHON)
def mutants(session: nox.Session) -> None:
    """Break the code in each of some 2,000 ways and see the tests notice; takes about half an hour."""
    install(session, "mutants", EVERYTHING)
    work = Path(session.create_tmp()) / "work"  # the tools write into what they change
    shutil.rmtree(work, ignore_errors=True)
    for folder in ("loanasync", "tests"):
        shutil.copytree(folder, work / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy("pyproject.toml", work)
    with session.chdir(work):
        session.run("mutmut", "run", "--max-children", "2", silent=True)
        session.run("cosmic-ray", "init", "tests/mutation/cosmic-ray.toml", "tables.sqlite")
        session.run("cr-filter-operators", "tables.sqlite", "tests/mutation/cosmic-ray.toml")
        session.run("cosmic-ray", "exec", "tests/mutation/cosmic-ray.toml", "tables.sqlite")
        session.run("python", "tests/mutation/mutants.py")


@nox.session(python=ONE_PYTHON)
def lint(session: nox.Session) -> None:
    """Check style, form and the order of imports, and that nothing unfinished is left behind."""
    install(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports", "--no-cache", "--no-logo")
    folders = (sorted(Path(folder).rglob("*.py")) for folder in FOLDERS)
    for file in chain(Path().glob("*.py"), *folders):
        text = file.read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        if len(lines) > LONGEST_FILE:
            session.warn(f"{file} has {len(lines)} lines: does it have one subject?")
        for mark in ("TO" + "DO", "FIX" + "ME"):
            if mark in text:
                session.error(f"{file} has a {mark}")


@nox.session(python=ONE_PYTHON)
def types(session: nox.Session) -> None:
    """Check all types, and that the public surface has them all."""
    install(session, "types", EVERYTHING)
    session.run("mypy")
    report = session.run("basedpyright", "--verifytypes", "loanasync", "--ignoreexternal", silent=True)
    session.log(str(report))
    # Where it does not find the package, it reports no symbols, and nothing wrong with them.
    found = re.search(r'Symbols exported by "loanasync": ([1-9][0-9]*)', str(report))
    if not found or "Type completeness score: 100%" not in str(report):
        session.error("the public surface is not found, or not typed as a whole")
    session.run("pytest", "tests/typing/checkers.py")


@nox.session(python=ONE_PYTHON)
def docs(session: nox.Session) -> None:
    """Build the documentation, and look at each of its pages; a warning is an error."""
    install(session, "docs", ".[cli,notebook,sandbox,taskiq]")
    site = "docs/_build/html"
    shutil.rmtree(site, ignore_errors=True)
    session.run("sphinx-build", "-q", "-n", "-W", "--keep-going", "-E", "docs", site)
    session.run("python", "docs/look.py", site)


@nox.session(python=ONE_PYTHON)
def screenshots(session: nox.Session) -> None:
    """Take the pictures of the sandbox's pages again; needs Chromium."""
    install(session, "screenshots", ".[sandbox]")
    session.run("python", "docs/screenshots.py")


@nox.session(python=ONE_PYTHON)
def pictures(session: nox.Session) -> None:
    """Draw the pictures of traces, from the spans of real calls, and of the architecture again."""
    install(session, "pictures", ".[cli]")
    session.run("python", "docs/traces.py")
    session.run("python", "docs/drawing.py")


@nox.session(python=ONE_PYTHON)
def build(session: nox.Session) -> None:
    """Build wheel and source archive, and check what an index would show of them."""
    install(session, "build")
    dist = session.create_tmp()
    session.run("python", "-m", "build", "--outdir", dist)
    session.run("twine", "check", "--strict", *map(str, Path(dist).glob("loanasync-*")))
