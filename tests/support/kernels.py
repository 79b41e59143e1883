"""Notebook cells run in a real kernel, and their outputs."""

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

__all__ = ["CellOutput", "Kernel", "credentials", "kernel"]

_PATIENCE = 120  # seconds; only a cell that hangs needs them


def credentials(sandbox: Sandbox) -> dict[str, str]:
    """Return the environment variables of `LoanClient.from_env` for a sandbox."""
    return {
        "LOANASYNC_BASE_URL": sandbox.base_url,
        "LOANASYNC_SHOP_ID": sandbox.shop_id,
        "LOANASYNC_AUTH_TOKEN": sandbox.auth_token,
    }


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
        timeout=_PATIENCE,
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    )
    # A separate IPython folder, so that the settings and start-up files of the user are ignored.
    environment = {"IPYTHONDIR": str(folder / "ipython"), **credentials(sandbox)}
    with mock.patch.dict(os.environ, environment), client.setup_kernel():
        yield Kernel(client)
