"""The schedules of the gate, and tests of the simulation itself."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import loanasync
from loanasync import NoResponse, Request, Response
from simulation.__main__ import main
from simulation.mutants import Mutant, mutants, planted
from simulation.network import Network, SeamTransport
from simulation.plan import Plan, Setup, generate
from simulation.runner import machine, run, run_seeds, shrunk, story
from simulation.service import CODES, PERSONAL, Service
from simulation.world import Process, World

# With each other Python, the schedules of other seeds. The scheduled session runs new ones each day.
FIRST, SCHEDULES = (0, 500) if sys.version_info[:2] == (3, 11) else (1_000 * sys.version_info[1], 250)
RARE = (702, 819, 1_061, 1_592, 3_279, 3_493, 4_230, 4_551)  # find planted faults that the first 500 do not
PARTS = 4  # tests, for several workers
FORGOTTEN = 6  # a seed that fails if clients forget


@pytest.fixture
def folder() -> Iterator[Path]:
    with machine() as path:
        yield path


@pytest.mark.parametrize("part", range(PARTS))
def test_schedules_of_the_gate_violate_no_invariant(folder: Path, part: int) -> None:
    """Print a failing seed with `python -m simulation --seed SEED`, with `tests` in PYTHONPATH."""
    seeds = (*range(FIRST, FIRST + SCHEDULES), *RARE)[part::PARTS]
    failed = [result for result in run_seeds(seeds, folder) if result.violations]
    if failed:
        pytest.fail(story(shrunk(failed[0], folder)))


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_planted_fault_fits_the_present_code(mutant: Mutant) -> None:
    """`nox -s simulation -- --mutants` shows that the schedules find it."""
    source = Path(loanasync.__file__).parent.joinpath(mutant.module)
    assert planted(mutant, source.read_text(encoding="utf-8"))


def test_same_seed_replays_with_the_same_trace(folder: Path) -> None:
    first = [run(generate(seed), folder) for seed in range(20)]
    second = [run(generate(seed), folder) for seed in range(20)]
    assert [each.trace for each in first] == [each.trace for each in second]
    assert len({each.trace for each in first}) == len(first)


def test_same_seed_has_the_same_trace_in_another_process(folder: Path) -> None:
    script = (
        "from simulation.plan import generate; from simulation.runner import machine, run\n"
        "with machine() as folder: print(*(run(generate(seed), folder).trace for seed in range(20)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    printed = done.stdout.split()
    assert printed == [run(generate(seed), folder).trace for seed in range(20)]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("iterations", range(8))
def test_simulated_transport_writes_nothing_after_a_cancellation(iterations: int) -> None:
    world = World.current = World(Plan(0, Setup(), ()))
    world.network, world.service, world.has_faults = Network(world), Service(world), False
    process = Process(world, "program 1")
    url = f"https://loans.example.com/api/shops/shop-1/requests/{CODES['A']}"
    request = Request(method="POST", url=url, headers={}, body=b"{}", survives_cancellation=True)
    results: list[Response | NoResponse] = []

    async def send() -> None:
        results.append(await SeamTransport(process, "").send(request, connect=3.0, within=8.0))

    task, written = process.start(send()), [0]

    def cancel() -> None:
        written[0] = len(world.record.writes)
        task.cancel()

    process.after_iterations(iterations, cancel)
    world.run(60.0)
    assert len(world.record.writes) == len(results) == written[0]
    world.dispose()


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make clients without a ledger forget each approval at once."""
    monkeypatch.setattr("loanasync._runtime.guard._MAX_AGE", -1)


@pytest.mark.usefixtures("forgetful")
def test_failing_schedule_is_shrunk_to_a_story_without_personal_data(folder: Path) -> None:
    failed = next(each for each in run_seeds(range(FORGOTTEN, FORGOTTEN + 1), folder) if each.violations)
    small = shrunk(failed, folder)
    text = story(small)
    assert small.violations
    assert len(small.plan.actions) <= len(failed.plan.actions)
    assert text.startswith(f"seed {failed.plan.seed}: sent-once: ")
    assert "VIOLATION: sent-once" in text
    assert not [value for value in PERSONAL if value in text]


@pytest.mark.parametrize("arguments", [["--seed", "x"], ["--seed", "-1"], ["--colour"]])
def test_command_with_an_unknown_seed_or_option_says_so(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulation", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert arguments[-1] in capsys.readouterr().err


@pytest.mark.usefixtures("forgetful")
def test_command_prints_the_story_of_a_violation_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulation", "--seed", str(FORGOTTEN)])
    assert main() == 1
    assert "VIOLATION" in capsys.readouterr().out
