"""The checks of the project, each in its own environment; `nox -l` lists them."""

import json
import os
import re
import shutil
import sys
import time
from itertools import chain
from pathlib import Path

import nox
from packaging.requirements import Requirement
from packaging.version import Version

if sys.version_info < (3, 11):  # noqa: UP036  (before a session installs anything)
    sys.exit("loanasync needs Python 3.11 or later: delete .venv, and create it with such a Python")
nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "uv|venv"  # uv if it is installed: same environments, much faster
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False  # one Python is enough; nox reports skipped ones
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "types", "tests", "docs", "build"]

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
# Coverage is measured with 3.13: with an audit hook (tests/support/network_guard.py), Python 3.11 sometimes
# fails to trace a new thread.
MEASURED = "3.13"
ONE_PYTHON = (
    "3.11"  # for sessions that need one Python, so that tools resolve to the same versions everywhere
)

EVERYTHING = ".[cli,notebook,postgres,redis,sandbox,strict,taskiq]"  # the package with all extras
PYPROJECT = nox.project.load_toml("pyproject.toml")
FOLDERS = ["benchmarks", "docs", "loanasync", "tests"]  # with Python files
LONGEST_FILE = 600  # lines without blank lines and comments
# Tests import the installed package, not the folder `loanasync`. Python compiles modules once, because tests
# start many processes.
TEST_ENV = {"PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": None, "PYTHONUNBUFFERED": None}
SUPPORT = {**TEST_ENV, "PYTHONPATH": "tests"}  # environment of scripts that import tests/support
# More workers than CPUs: tests spend half of their time waiting for a socket, a process or a clock.
# `--forks` collects the tests once (tests/support/forked_workers.py); it needs the `fork` of Linux.
WORKERS = str(min(16, 2 * (os.cpu_count() or 1)))
PARALLEL = ["--forks", WORKERS] if sys.platform == "linux" else ["-n", WORKERS, "--dist", "worksteal"]
# Tests of documents, structure and benchmarks run with one Python only, the first that is installed.
FIRST = next((each for each in PYTHONS if shutil.which(f"python{each}")), ONE_PYTHON)
ONCE = [f"--ignore=tests/{path}" for path in ("architecture", "docs", "stress/test_benchmarks.py")]
# With each other Python, `tests` runs only the tests of code that the version of Python may affect: event
# loops, sockets, cancellation, processes, tracebacks, SQLite. `full` runs the others.
EACH_PYTHON = [
    *("tests/unit", "tests/simulation", "tests/privacy/test_process.py"),
    *(f"tests/integration/{area}" for area in ("client", "event_loops", "transport")),
    *(f"tests/integration/ledger/test_{name}.py" for name in ("shutdown", "sqlite", "threads_and_forks")),
    # The service's faults, each over several kinds of connections; the simulation has the same faults.
    *(f"--ignore=tests/integration/transport/test_{name}.py" for name in ("fault_matrix", "python_parser")),
    # Pure modules: the tests with coverage run them, too.
    *(f"--ignore=tests/unit/{area}" for area in ("_models", "_protocol")),
]
ALL = ["-m", ""]  # also the tests that are too slow for each change
# Tests of the code that uses dependencies, for the sessions with other versions of them.
DEPENDENT = ["tests/contract", "tests/unit"]
DEPENDENT += [f"tests/integration/{path}" for path in ("client", "telemetry", "transport")]
DEPENDENT += [f"tests/integration/ledger/test_{ledger}.py" for ledger in ("postgres", "redis", "sqlite")]
# Modules that need neither an event loop nor a network; their line and branch coverage must be 100 %.
PURE = [
    "_models/*",
    "_protocol/*",
    "_environment.py",
    "_settings.py",
    "_shop.py",
    "errors.py",
]
# Modules beside them whose lines need a file, a framework or a fork.
NOT_PURE = ["_models/cells.py", "_models/classes.py", "_protocol/schema.py"]
# The tests of the pure modules. `tests` measures no others, because coverage doubles the time of a test.
COVERING = [f"tests/unit/{path}" for path in ("_models", "_protocol", "_runtime", "errors")]
COVERING += [f"tests/unit/{path}.py" for path in ("test_client", "test_settings")]
COVERING += [f"tests/unit/ledger/test_{name}.py" for name in ("check_ledger", "environment", "waits")]
COVERING += ["tests/integration/client/test_client.py"]

DAY = int(time.time()) // 86_400  # selects what a scheduled session runs today

# The scheduled sessions; .github/workflows/nightly.yml runs the same ones.
NIGHTLY = [
    *(f"full-{python}" for python in PYTHONS),
    *(
        "fleet",
        "soak",
        "simulation",
        "mutants",
        "floors",
        "latest",
        "agents",
        "audit",
    ),
]
# The benchmarks behind docs/contributing/performance.md, and the files for their results, for each Python.
# `--main` leaves out the other clients, of which some are slow.
FIGURES = "--json=docs/figures/{}-{{python}}.json"
ALL_BENCHMARKS = [
    ["calls.py", FIGURES.format("calls-nginx-full"), "--plot=docs/_static/calls-{python}.svg"],
    ["calls.py", "--main", "--order=short", FIGURES.format("calls-nginx-short")],
    ["calls.py", "--main", "--server=tls", FIGURES.format("calls-tls-full")],
    ["calls.py", "--main", "--server=python", FIGURES.format("calls-python-full")],
    ["calls.py", "--main", "--server=python", "--order=short", FIGURES.format("calls-python-short")],
    *([f"{name}.py", FIGURES.format(name)] for name in ("counts", "startup", "growth", "conversions")),
    *([f"{name}.py", FIGURES.format(name)] for name in ("telemetry", "ledger")),
]


def install(session: nox.Session, group: str, *package: str) -> None:
    session.install("-q", *nox.project.dependency_groups(PYPROJECT, group), *package)


def lower_limits() -> dict[str, str]:
    floors = {}
    project = PYPROJECT["project"]
    for each in map(Requirement, chain(project["dependencies"], *project["optional-dependencies"].values())):
        [floors[each.name]] = [limit.version for limit in each.specifier if limit.operator == ">="]
    return floors


def require_installed(session: nox.Session, versions: dict[str, str]) -> None:
    script = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    found = str(session.run("python", "-c", script, *versions, silent=True)).split()
    for (name, expected), version in zip(versions.items(), found, strict=True):
        session.log(f"{name} {version}")
        if Version(version) != Version(expected):
            session.error(f"pyproject.toml allows {name} {expected}, but {version} was installed")


def tests_of_dependencies(session: nox.Session, *others: str) -> list[str]:
    """Return pytest's arguments: tests that a version of a dependency may break, or those of the command."""
    # Versions of our dependencies do not concern browsers, frameworks, pytest, benchmarks and the dashboard.
    others += ("package/test_run_plugins.py", "queues/test_recipes.py", "sandbox/test_browser.py")
    others += ("sandbox/test_pytest_plugin.py", "shops")
    chosen = session.posargs or DEPENDENT
    return [*chosen, *PARALLEL, *ONCE, *(f"--ignore=tests/integration/{path}" for path in others)]


@nox.session
def demo(session: nox.Session) -> None:
    """Play whole loan requests against a sandbox, and print their traces."""
    session.install("-q", ".[cli]")
    session.run("loanasync", "demo")


@nox.session(python=ONE_PYTHON)
def bench(session: nox.Session) -> None:
    """Run the benchmarks of the page on performance, or one script: `-- calls.py --rounds 30`."""
    install(session, "bench-peers", ".[postgres,redis]")
    runs = [session.posargs] if session.posargs else ALL_BENCHMARKS
    for script, *options in runs:
        arguments = [option.replace("{python}", str(session.python)) for option in options]
        session.run("python", f"benchmarks/{script}", *arguments)
    session.notify("pages", ["contributing/performance.md"])


@nox.session(python=[ONE_PYTHON, MEASURED])
def bench_versions(session: nox.Session) -> None:
    """Compare calls with those of plain aiohttp, with several versions of it."""
    install(session, "bench", ".")
    versions = {"lowest": f"=={lower_limits()['aiohttp']}", "3.13": "==3.13.*", "newest": ""}
    for name, version in versions.items():
        session.install("-q", "--upgrade", f"aiohttp{version}")
        figures = f"--json=docs/figures/calls-aiohttp-{name}-{session.python}.json"
        session.run("python", "benchmarks/calls.py", "--main", "--in-flight=1,32,100", figures)
    session.notify("pages", ["contributing/performance.md"])


@nox.session(python=ONE_PYTHON)
def instructions(session: nox.Session) -> None:
    """Count the CPU instructions of a call with valgrind."""
    install(session, "bench", ".")
    session.run("python", "benchmarks/instructions.py", *session.posargs)


@nox.session
def pages(session: nox.Session) -> None:
    """Rewrite the generated tables of the documentation; `-- reference/cli.md` those of one page."""
    install(session, "tests", ".")
    session.run("python", "docs/_generate/tables.py", *session.posargs, env=SUPPORT)


@nox.session(python=ONE_PYTHON)
def unit(session: nox.Session) -> None:
    """Run the unit tests: no socket, no process; `-- PATH ...` runs some."""
    install(session, "unit", "-e", EVERYTHING)
    session.run("pytest", *(session.posargs or ["tests/unit"]), env=TEST_ENV)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the tests against the built wheel; `-- PATH ...` runs pytest with these arguments."""
    install(session, "tests", EVERYTHING)
    if session.posargs:
        session.run("pytest", *session.posargs, env=TEST_ENV)
        return
    paths = ["tests"] if session.python == FIRST else EACH_PYTHON
    if session.python == MEASURED:
        measure(session, *COVERING)
        paths = [each for each in paths if each not in COVERING]
        paths += [f"--ignore={path}" for path in COVERING]
    session.run("pytest", *paths, *PARALLEL, env=TEST_ENV)


@nox.session(python=PYTHONS)
def full(session: nox.Session) -> None:
    """Run all tests, also those that are too slow for each commit (scheduled)."""
    install(session, "tests", EVERYTHING)
    arguments = ["tests", *ALL, *([] if session.python == FIRST else ONCE)]
    if session.python == MEASURED:
        measure(session, *arguments)
        session.run("coverage", "report", "--fail-under=97", env=coverage_env(session))
    else:
        session.run("pytest", *arguments, *PARALLEL, env=TEST_ENV)


def measure(session: nox.Session, *arguments: str) -> None:
    """Run pytest, and check the coverage of the pure modules, which is the same with each Python."""
    env = coverage_env(session)
    session.run("coverage", "erase", env=env)
    # Not pytest-cov: pytest loads our plugin, and the package with it, before pytest-cov starts to measure.
    session.run("coverage", "run", "-m", "pytest", *arguments, *PARALLEL, env=env)
    session.run("coverage", "combine", "-q", env=env)
    pure, others = (",".join(f"*/loanasync/{each}" for each in paths) for paths in (PURE, NOT_PURE))
    session.run("coverage", "report", f"--include={pure}", f"--omit={others}", "--fail-under=100", env=env)


def coverage_env(session: nox.Session) -> dict[str, str | None]:
    return {**TEST_ENV, "COVERAGE_FILE": str(Path(session.create_tmp()) / "coverage")}


@nox.session(python=ONE_PYTHON)
def floors(session: nox.Session) -> None:
    """Test the lowest version of each dependency that pyproject.toml allows (`-- tests` runs more tests)."""
    allowed = lower_limits()
    # The test tools need later versions of these: flask (Quart) and taskiq-redis.
    later = {name: allowed.pop(name) for name in ("jinja2", "redis")}
    install(session, "tests", EVERYTHING, *(f"{name}=={floor}" for name, floor in allowed.items()))
    require_installed(session, allowed)
    # Its tests are for the newest version of the instrumentation.
    session.run("pytest", *tests_of_dependencies(session, "telemetry/test_instrumentation.py"), env=TEST_ENV)
    session.install("-q", *(f"{name}=={floor}" for name, floor in later.items()))
    require_installed(session, later)
    paths = ["tests/integration/ledger/test_redis.py", "tests/integration/sandbox/test_pages.py"]
    session.run("pytest", *paths, *PARALLEL, env=TEST_ENV)
    # A version between the lowest and the newest one.
    session.install("-q", "aiohttp==3.13.*")
    session.run("pytest", "tests/integration/transport", *PARALLEL, env=TEST_ENV)


@nox.session(python=ONE_PYTHON)
def latest(session: nox.Session) -> None:
    """Test the newest version of each dependency, also before its release (`-- tests` runs more tests)."""
    # A limit such as 1.0.dev0 allows pre-releases of this package, but not of the test tools.
    newest = (f"{name}>={floor}.dev0" for name, floor in lower_limits().items())
    install(session, "tests", "--upgrade", EVERYTHING, *newest)
    session.run("pytest", *tests_of_dependencies(session), env=TEST_ENV)


@nox.session(venv_backend="none")
def nightly(session: nox.Session) -> None:
    """Run all scheduled sessions, one after the other (some hours)."""
    for name in NIGHTLY:
        session.notify(name)


@nox.session(python=ONE_PYTHON)
def agents(session: nox.Session) -> None:
    """Run a shop with each monitoring agent, and search what it sends (`-- --write` writes the record)."""
    install(session, "unit", "zstandard", ".[cli]")
    env = {**SUPPORT, "PYTHONPATH": os.pathsep.join(("tests", "docs/_generate"))}
    session.run("python", "-m", "support.agents", session.create_tmp(), *session.posargs, env=env)


@nox.session(python=ONE_PYTHON)
def audit(session: nox.Session) -> None:
    """Check all dependencies for known vulnerabilities; needs the network."""
    install(session, "audit")
    report, resolved = (Path(session.create_tmp()) / name for name in ("report.json", "resolved.txt"))
    options = ["--ignore-installed", "--report", str(report), EVERYTHING]
    session.run("python", "-m", "pip", "install", "-q", "--dry-run", *options)
    installed = [each["metadata"] for each in json.loads(report.read_text(encoding="utf-8"))["install"]]
    others = [each for each in installed if each["name"] != PYPROJECT["project"]["name"]]
    resolved.write_text("".join(f"{each['name']}=={each['version']}\n" for each in others), encoding="utf-8")
    # Without --strict, packages that the database does not know would pass.
    session.run("pip-audit", "--strict", "--no-deps", "--disable-pip", "-r", str(resolved), *session.posargs)


@nox.session(python=ONE_PYTHON)
def soak(session: nox.Session) -> None:
    """Make 100,000 calls and check for leaks; run 10,000 rows with two interruptions."""
    install(session, "tests", EVERYTHING)
    env = {**TEST_ENV, "LOANASYNC_SOAK": "1"}
    files = ["tests/stress/test_leaks.py", "tests/integration/cli/test_many_end_to_end.py"]
    session.run("pytest", *files, *ALL, *session.posargs, env=env)


@nox.session(python=ONE_PYTHON)
def fleet(session: nox.Session) -> None:
    """Kill workers at every step, with every queue and ledger."""
    install(session, "tests", EVERYTHING)
    paths = ["tests/integration/queues", "tests/integration/ledger", "tests/unit/ledger"]
    session.run("pytest", *paths, *ALL, *session.posargs, *PARALLEL, env=TEST_ENV)


@nox.session(python=ONE_PYTHON)
def simulation(session: nox.Session) -> None:
    """Run new schedules of the simulated world each day (or `-- 50000 --seed 7`), or `-- --mutants`."""
    install(session, "unit", ".[redis,taskiq]")
    # The printed command repeats the schedules of a day. The gate has the same ones each time.
    of_today = ["250000", "--seed", str(250_000 * DAY)]
    session.run("python", "-m", "simulation", *(session.posargs or of_today), env=SUPPORT)


@nox.session(python=MEASURED)  # with 3.11, context variables of mutmut end the process (segmentation fault)
def mutants(session: nox.Session) -> None:
    """Change the code in many ways and check that a test fails: about a tenth of them, or that of `-- 3`."""
    install(session, "mutants", EVERYTHING)
    # Runs on ten days in a row try each change once.
    turn = session.posargs[0] if session.posargs else str(DAY % 10)
    work = Path(session.create_tmp()) / "work"  # a copy, since the tools change the files
    shutil.rmtree(work, ignore_errors=True)
    for folder in ("docs", "loanasync", "tests"):
        shutil.copytree(folder, work / folder, ignore=shutil.ignore_patterns("__pycache__", "_build"))
    shutil.copy("pyproject.toml", work)
    with session.chdir(work):
        session.run("mutmut", "run", "--max-children", "2", f"*__mutmut_*{turn}", silent=True)
        session.run("python", "tests/mutation/tables.py", turn)
        session.run("python", "tests/mutation/mutants.py")


@nox.session(python=ONE_PYTHON)
def lint(session: nox.Session) -> None:
    """Check style, format, language, and the layers of imports."""
    install(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports", "--no-cache", "--no-logo")
    session.run("python", "tests/support/prose.py")
    folders = (sorted(Path(folder).rglob("*.py")) for folder in FOLDERS)
    for file in chain(Path().glob("*.py"), *folders):
        text = file.read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        if len(lines) > LONGEST_FILE:
            session.warn(f"{file} has {len(lines)} lines: consider splitting it")
        for mark in ("TO" + "DO", "FIX" + "ME"):
            if mark in text:
                session.error(f"{file} has a {mark}: finish it, or remove the mark")


@nox.session(python=ONE_PYTHON)
def types(session: nox.Session) -> None:
    """Check types, and that the public API is typed completely."""
    install(session, "types", EVERYTHING)
    session.run("mypy")
    report = session.run("basedpyright", "--verifytypes", "loanasync", "--ignoreexternal", silent=True)
    session.log(str(report))
    # If basedpyright does not find the package, it reports no symbols and no errors.
    found = re.search(r'Symbols exported by "loanasync": ([1-9][0-9]*)', str(report))
    if not found or "Type completeness score: 100%" not in str(report):
        session.error("the public API was not found, or is not typed completely: see the report above")
    session.run("pytest", "tests/typing/checkers.py")


@nox.session(python=ONE_PYTHON)
def docs(session: nox.Session) -> None:
    """Build the documentation, open each page in a browser, and check facts; a warning is an error."""
    install(session, "docs", ".[cli,notebook,sandbox,taskiq]")
    site = "docs/_build/html"
    shutil.rmtree(site, ignore_errors=True)
    session.run("sphinx-build", "-q", "-n", "-W", "--keep-going", "-E", "docs", site)
    session.run("python", "docs/look.py", site)
    # Names, defaults and orders of steps on the pages, without the fixtures of other tests.
    session.run("pytest", "--noconftest", "-q", "tests/docs/test_facts.py", env=TEST_ENV)


@nox.session(python=ONE_PYTHON)
def screenshots(session: nox.Session) -> None:
    """Take the screenshots of the sandbox's pages; needs Chromium."""
    install(session, "screenshots", ".[sandbox]")
    session.run("python", "docs/screenshots.py")


@nox.session(python=ONE_PYTHON)
def pictures(session: nox.Session) -> None:
    """Draw the picture of traces, from real spans."""
    install(session, "pictures", ".[cli]")
    session.run("python", "docs/traces.py")


@nox.session(python=ONE_PYTHON)
def build(session: nox.Session) -> None:
    """Build wheel and source archive, and check their metadata."""
    install(session, "build")
    dist = session.create_tmp()
    session.run("python", "-m", "build", "--outdir", dist)
    session.run("twine", "check", "--strict", *map(str, Path(dist).glob("loanasync-*")))
