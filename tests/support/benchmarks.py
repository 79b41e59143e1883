"""Run the benchmarks as processes, and read their output and the figures that they write."""

import os
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(script: str, *options: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    # A script finds its neighbours by its own folder, which a safe path leaves out; coverage takes its time.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHONSAFEPATH", "COV"))
    }
    environment |= variables
    command = [sys.executable, str(BENCHMARKS / script), *options]
    return subprocess.run(command, check=False, env=environment, capture_output=True, encoding="utf-8")


def printed(script: str, *options: str) -> str:
    done = run(script, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
