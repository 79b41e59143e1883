"""One client in Jupyter, IPython, `python -m asyncio` and marimo, with several event loops."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
import pytest
from attrs import define
from nbclient import NotebookClient

from loanasync.sandbox import Sandbox
from support.processes import credentials

PATIENCE = 120  # seconds; only a cell that hangs needs them

DEFINE_APPROVE = """
import asyncio
from loanasync import LoanClient
from loanasync.testing import approval_request, fiscal_code
async def approve(tag=None):
    code = fiscal_code()
    await client.create_request({"fiscalCode": code})
    return await client.approve(code, approval_request(tag=tag))
async def created(*tags):
    rows = [(fiscal_code(), approval_request(tag=tag)) for tag in tags]
    for code, _ in rows:
        await client.create_request({"fiscalCode": code})
    return rows
"""
MAKE = "client = LoanClient.from_env()"


@define
class CellOutput:
    """Output of a cell."""

    outputs: list[Any]

    def of(self, mime_type: str) -> str:
        """Return the output of this MIME type, such as ``text/html``."""
        return "\n".join(
            each["data"][mime_type] for each in self.outputs if mime_type in each.get("data", ())
        )

    def stream(self, name: str) -> str:
        """Return the printed text of ``stdout`` or ``stderr``."""
        return "".join(each["text"] for each in self.outputs if each.get("name") == name)

    @property
    def error(self) -> str:
        """Name of the error that ended the cell, or an empty string."""
        return "".join(each["ename"] for each in self.outputs if each["output_type"] == "error")


class Kernel:
    """A running kernel."""

    def __init__(self, client: NotebookClient) -> None:
        self._client = client

    def run(self, source: str) -> CellOutput:
        """Run a cell that may fail."""
        cells = self._client.nb.cells
        cells.append(nbformat.v4.new_code_cell(source))  # type: ignore[no-untyped-call]
        self._client.execute_cell(cells[-1], len(cells) - 1)
        return CellOutput(cells[-1].outputs)

    def good(self, source: str) -> CellOutput:
        """Run a cell that must not fail or print to stderr."""
        output = self.run(source)
        assert (output.error, output.stream("stderr")) == ("", ""), f"{source}\n{output.outputs}"
        return output

    def widgets(self, model: str) -> list[Mapping[str, Any]]:
        """Return the states of all displayed widgets of a model."""
        return [each for each in self._client.widget_state.values() if each["_model_name"] == model]


@contextmanager
def kernel(folder: Path, sandbox: Sandbox) -> Iterator[Kernel]:
    """Start a kernel of this Python in a folder, with the environment variables of a sandbox."""
    client = NotebookClient(
        nbformat.v4.new_notebook(),  # type: ignore[no-untyped-call]
        timeout=PATIENCE,
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    )
    # A separate IPython folder, so that the settings and start-up files of the user are ignored.
    environment = {"IPYTHONDIR": str(folder / "ipython"), **credentials(sandbox)}
    with mock.patch.dict(os.environ, environment), client.setup_kernel():
        yield Kernel(client)


@pytest.fixture(scope="module")
def shared() -> Iterator[Sandbox]:
    with Sandbox.in_thread() as running:
        yield running


@pytest.fixture(scope="module")
def jupyter(shared: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with kernel(tmp_path_factory.mktemp("kernel"), shared) as started:
        started.good(DEFINE_APPROVE)
        yield started


@pytest.fixture(autouse=True)
def _new_client(jupyter: Kernel) -> None:
    jupyter.good(MAKE)


def test_kernel_runs_the_tested_python(jupyter: Kernel) -> None:
    printed = jupyter.good("import sys; print(sys.executable)").stream("stdout").strip()
    assert printed == sys.executable, "the kernel python3 belongs to another Python: jupyter kernelspec list"


def test_decisions_and_errors_are_displayed_without_personal_data(jupyter: Kernel) -> None:
    shown = jupyter.good("decision = await approve()\ndecision")
    assert shown.of("text/html") == ""
    assert shown.of("text/plain").startswith("Approved(email=***")
    assert not [text for text in ("Prova", "http") if text in shown.of("text/plain")]
    shown = jupyter.good(
        "try: await client.approve('ZZQPERSON', approval_request(amount=1, last_name='Zzqperson', city=''))\n"
        "except Exception as error: display(error)"
    )
    assert "request not sent; fix these fields" in shown.of("text/html")
    assert "must be a whole number between 5000 and 1500000 (euro cents)" in shown.of("text/html")
    assert "zzqperson" not in str(shown.outputs).lower()


def test_replaced_clients_leave_no_open_connections(jupyter: Kernel) -> None:
    for _ in range(5):
        jupyter.good(f"{MAKE}\n(await approve()).approved")
    count = """
import gc, os, psutil
address = ("127.0.0.1", int(os.environ["LOANASYNC_BASE_URL"].rpartition(":")[2]))
def connections():
    gc.collect()
    return sum(each.raddr == address for each in psutil.Process().net_connections() if each.raddr)
while connections() > 1:  # the loop closes the connections of earlier clients
    await asyncio.sleep(0.01)
connections()
"""
    # None, if the last client took the decision from the memory that it shares with the others.
    assert jupyter.good(count).of("text/plain") in ("0", "1")


def test_interrupted_cells_keep_the_client_and_received_results(jupyter: Kernel) -> None:
    interrupt = (
        "import os, signal; asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGINT)"
    )
    assert jupyter.run(f'{interrupt}\nawait approve("hangbefore")').error in INTERRUPTED
    jupyter.good('kept, rows = [], await created("approved", "refused", "slow300")')
    stopped = jupyter.run("""
async with client.approve_many(rows) as results:
    async for result in results:
        kept.append(result)
        if len(kept) == 2:
            os.kill(os.getpid(), signal.SIGINT)
""")
    assert stopped.error in INTERRUPTED
    printed = jupyter.good(
        "kept += [left async for left in results]\n"
        "print(sorted(each.status for each in kept), results.summary.rows)"
    )
    assert printed.stream("stdout") == "['approved', 'approved', 'refused'] 3\n"


INTERRUPTED = ("CancelledError", "KeyboardInterrupt")


def test_progress_uses_a_notebook_widget(jupyter: Kernel) -> None:
    shown = jupyter.good("""
async with client.approve_many(await created(*[None] * 5), progress=True) as results:
    decided = [result.status async for result in results]
results.summary
""")
    assert any("application/vnd.jupyter.widget-view+json" in each.get("data", ()) for each in shown.outputs)
    assert "<strong>Summary of 5 rows</strong>" in shown.of("text/html")
    [bar] = jupyter.widgets("FloatProgressModel")
    assert (bar["value"], bar["max"], bar["bar_style"]) == (5, 5, "success")


# Functions of several lines cannot be piped into every Python's prompt.
TYPED = f"""exec({DEFINE_APPROVE!r})
client = LoanClient.from_env()
print("first:", (await approve()).approved)
print("in another loop:", (await asyncio.to_thread(asyncio.run, approve("refused"))).approved)
print("in the first loop again:", (await approve()).approved)
client = LoanClient.from_env()
print("replaced:", (await approve("refused")).approved)
await client.aclose()
"""
EXPECTED = ["first: True", "in another loop: False", "in the first loop again: True", "replaced: False"]
IPYTHON = ("IPython", "--simple-prompt", "--no-banner", "--colors=nocolor", "--HistoryManager.enabled=False")


def run_python(sandbox: Sandbox, folder: Path, *command: str, typed: str = "") -> tuple[str, str]:
    """Run a program with an empty home directory; return its stdout and stderr."""
    homes = {name: str(folder / name) for name in ("HOME", "IPYTHONDIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME")}
    done = subprocess.run(
        [sys.executable, *command],
        input=typed, text=True, capture_output=True, check=False, cwd=folder,
        env={**os.environ, **homes, **credentials(sandbox)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


# IPython's kernel, above, runs its cells as its prompt does.
@pytest.mark.parametrize(
    "command",
    [("asyncio",), pytest.param(IPYTHON, marks=pytest.mark.scheduled)],
    ids=["asyncio", "IPython"],
)
def test_async_prompts_share_one_client_between_loops(
    shared: Sandbox, tmp_path: Path, command: tuple[str, ...]
) -> None:
    printed, errors = run_python(shared, tmp_path, "-m", *command, typed=TYPED)
    lines = [line.rpartition(">>> ")[2].rpartition("]: ")[2] for line in printed.splitlines()]
    assert [line for line in lines if line in EXPECTED] == EXPECTED
    for wrong in ("Traceback", "Error", "Unclosed", "never awaited"):
        assert wrong not in printed + errors, printed + errors


MARIMO = f"""
import marimo
app = marimo.App()

@app.cell
def _():
    import asyncio
    from loanasync import LoanClient
    from loanasync.testing import approval_request, fiscal_code
    client = LoanClient.from_env()
    return approval_request, asyncio, client, fiscal_code

@app.cell
async def _(approval_request, asyncio, client, fiscal_code):
    async def approve(tag=None):
        code = fiscal_code()
        await client.create_request({{"fiscalCode": code}})
        return await client.approve(code, approval_request(tag=tag))
    first = await approve()
    print("{EXPECTED[0]}" if first.approved else "")
    print("in another loop:", (await asyncio.to_thread(asyncio.run, approve("refused"))).approved)
    print("in the first loop again:", (await approve()).approved)
    await client.aclose()
    first
    return

if __name__ == "__main__":
    app.run()
"""


@pytest.mark.scheduled  # ten seconds; the gate tests asyncio's prompt and IPython's kernel
def test_marimo_cells_share_a_client_and_show_decisions(shared: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(MARIMO, encoding="utf-8")
    printed, errors = run_python(shared, tmp_path, "shop.py")
    assert (printed.split("\n")[:3], errors) == (EXPECTED[:3], "")
    _, errors = run_python(shared, tmp_path, "-m", "marimo", "export", "html", "shop.py", "-o", "shop.html")
    page = (tmp_path / "shop.html").read_text(encoding="utf-8")
    assert ("redirect_url=***" in page, "in another loop: False" in page) == (True, True)
    assert not [wrong for wrong in ("Traceback", "Prova") if wrong in errors + page]
