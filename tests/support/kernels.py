"""Cells run in a real kernel, one after the other, again or anew, and what each of them showed."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
from attrs import define
from nbclient import NotebookClient

from loanasync.sandbox import Sandbox

__all__ = ["Kernel", "Shown", "credentials", "kernel"]

_PATIENCE = 120  # seconds; only a cell that hangs needs them


def credentials(sandbox: Sandbox) -> dict[str, str]:
    """What `LoanClient.from_env` reads."""
    return {
        "LOANASYNC_BASE_URL": sandbox.base_url,
        "LOANASYNC_SHOP_ID": sandbox.shop_id,
        "LOANASYNC_AUTH_TOKEN": sandbox.auth_token,
    }


@define
class Shown:
    """What stands below a cell."""

    outputs: list[Any]

    def of(self, kind: str) -> str:
        """All that was shown in one form, such as ``text/html``."""
        return "\n".join(each["data"][kind] for each in self.outputs if kind in each.get("data", ()))

    def stream(self, name: str) -> str:
        """What was printed, by ``stdout`` or ``stderr``."""
        return "".join(each["text"] for each in self.outputs if each.get("name") == name)

    @property
    def error(self) -> str:
        """Name of the error that ended the cell; empty if none did."""
        return "".join(each["ename"] for each in self.outputs if each["output_type"] == "error")


class Kernel:
    """A kernel of this very Python, for as long as it is within `kernel`."""

    def __init__(self, client: NotebookClient) -> None:
        self._client = client

    def run(self, source: str) -> Shown:
        """Run one cell that may fail."""
        cells = self._client.nb.cells
        cells.append(nbformat.v4.new_code_cell(source))  # type: ignore[no-untyped-call]
        self._client.execute_cell(cells[-1], len(cells) - 1)
        return Shown(cells[-1].outputs)

    def good(self, source: str) -> Shown:
        """Run one cell that must neither fail nor complain."""
        shown = self.run(source)
        assert (shown.error, shown.stream("stderr")) == ("", ""), f"{source}\n{shown.outputs}"
        return shown

    def widgets(self, model: str) -> list[Mapping[str, Any]]:
        """The states of all widgets of a kind that cells have shown."""
        return [each for each in self._client.widget_state.values() if each["_model_name"] == model]


@contextmanager
def kernel(folder: Path, sandbox: Sandbox) -> Iterator[Kernel]:
    """A kernel in a folder, whose clients are those of this sandbox."""
    client = NotebookClient(
        nbformat.v4.new_notebook(),  # type: ignore[no-untyped-call]
        timeout=_PATIENCE,
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    )
    # A folder of its own, so that nobody's settings and start-up files have a part in it.
    around = {"IPYTHONDIR": str(folder / "ipython"), **credentials(sandbox)}
    with mock.patch.dict(os.environ, around), client.setup_kernel():
        yield Kernel(client)
