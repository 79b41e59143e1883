"""The first example of the page on workers gives the results that the page shows."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loanasync.sandbox import Sandbox
from support.ledger_file import listed
from support.servers import Valkey

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "orders_queue.py"


@contextmanager
def working(folder: Path, env: dict[str, str]) -> Iterator[None]:
    arguments = ("-m", "taskiq", "worker", "orders_queue:broker", "--workers", "1")
    with subprocess.Popen([sys.executable, *arguments], cwd=folder, env=env) as worker:
        try:
            yield
        finally:
            worker.terminate()
    assert worker.returncode == 0


def test_queue_example_returns_results_and_reports_lost_responses(
    valkey: Valkey, served: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / EXAMPLE.name).write_bytes(EXAMPLE.read_bytes())
    env = {name: os.environ[name] for name in os.environ if not name.startswith(("COV", "PYTHONSAFE"))}
    own = f"{valkey.url.removesuffix('/0')}/7"  # other tests use queues of the same name
    env |= {"VALKEY_URL": own, "LOANASYNC_LEDGER": "decisions.db"}
    env |= {"LOANASYNC_BASE_URL": served.base_url, "LOANASYNC_SHOP_ID": served.shop_id}
    env |= {"LOANASYNC_AUTH_TOKEN": served.auth_token}
    create = [sys.executable, "-m", "loanasync", "ledger", "create"]
    subprocess.run(create, cwd=tmp_path, env=env, check=True)
    with working(tmp_path, env):
        done = subprocess.run(
            [sys.executable, EXAMPLE.name],
            cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    entries = {each["state"]: each["key"][:12] for each in listed(tmp_path / "decisions.db")}
    assert done.stdout.split() == ["approved", "refused", "unknown", entries["unknown"]]
    assert entries.keys() == {"approved", "refused", "unknown"}


def test_queue_example_names_missing_variables(tmp_path: Path) -> None:
    (tmp_path / EXAMPLE.name).write_bytes(EXAMPLE.read_bytes())
    env = {name: os.environ[name] for name in os.environ if not name.startswith(("COV", "VALKEY"))}
    done = subprocess.run(
        [sys.executable, EXAMPLE.name], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "set these environment variables: LOANASYNC_LEDGER, VALKEY_URL\n"
