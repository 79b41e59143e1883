"""The first example of the page on workers gives the results that the page shows."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import evolve, frozen

from loanasync.sandbox import Sandbox
from support.agents.collector import collecting
from support.ledger_file import create_at, listed
from support.processes import credentials, without_fastapi
from support.servers import Nats, Valkey
from support.servers.fixtures import skip_missing_server

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
EXAMPLE, ON_NATS = EXAMPLES / "orders_queue.py", EXAMPLES / "orders_nats.py"


@frozen
class Example:
    """A copy of an example in a folder, and the environment that the page names."""

    file: Path
    env: dict[str, str]

    def run(self, *arguments: str) -> str:
        """Run a Python program in the folder, and return its output."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.file.parent, env=self.env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    @contextmanager
    def working(self) -> Iterator[None]:
        """Run a worker, and stop it in order."""
        arguments = ("-m", "taskiq", "worker", f"{self.file.stem}:broker", "--workers", "1")
        command = [sys.executable, *arguments]
        with subprocess.Popen(command, cwd=self.file.parent, env=self.env) as worker:
            try:
                yield
            finally:
                worker.terminate()
        assert worker.returncode == 0


def copied(example: Path, folder: Path, sandbox: Sandbox, **addresses: str) -> Example:
    env = {name: os.environ[name] for name in os.environ if not name.startswith(("COV", "PYTHONSAFE"))}
    env |= {**credentials(sandbox), "LOANASYNC_LEDGER": "decisions.db", **addresses}
    env["PYTHONPATH"] = without_fastapi(folder)
    copy = Example(folder / example.name, env)
    copy.file.write_bytes(example.read_bytes())
    create_at(folder / "decisions.db", sandbox.base_url)
    return copy


def test_queue_example_returns_results_and_reports_lost_responses(
    valkey: Valkey, served: Sandbox, tmp_path: Path
) -> None:
    own = f"{valkey.url.removesuffix('/0')}/7"  # other tests use queues of the same name
    example = copied(EXAMPLE, tmp_path, served, VALKEY_URL=own)
    with example.working():
        printed = example.run(EXAMPLE.name).split()
    entries = {each["state"]: each["key"][:12] for each in listed(tmp_path / "decisions.db")}
    assert printed == ["approved", "refused", "unknown", entries["unknown"]]
    assert entries.keys() == {"approved", "refused", "unknown"}


def test_nats_example_exports_metrics_of_a_stopped_worker(served: Sandbox, tmp_path: Path) -> None:
    with skip_missing_server(), Nats() as server, collecting() as of_worker, collecting() as of_sender:
        name = "OTEL_EXPORTER_OTLP_ENDPOINT"
        # The interval, in milliseconds, is long: all metrics are exported when a process stops.
        exporter = {name: f"http://{of_sender.address}", "OTEL_METRIC_EXPORT_INTERVAL": "3600000"}
        sender = copied(ON_NATS, tmp_path, served, NATS_URL=server.url, **exporter)
        assert sender.run(ON_NATS.name, "create") == ""
        worker = evolve(sender, env=sender.env | {name: f"http://{of_worker.address}"})
        with worker.working():
            assert sender.run(ON_NATS.name) == "approved\n"
            assert of_worker.received == []
    assert "loanasync.call.duration" in of_worker.text()


def test_queue_example_names_missing_variables(tmp_path: Path) -> None:
    (tmp_path / EXAMPLE.name).write_bytes(EXAMPLE.read_bytes())
    env = {name: os.environ[name] for name in os.environ if not name.startswith(("COV", "VALKEY"))}
    env["PYTHONPATH"] = without_fastapi(tmp_path)
    done = subprocess.run(
        [sys.executable, EXAMPLE.name], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "set these environment variables: LOANASYNC_LEDGER, VALKEY_URL\n"
