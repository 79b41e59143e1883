"""Results of `approve_many` in a notebook: a progress bar, and a pandas DataFrame."""

import asyncio
from collections.abc import Iterable, Sized
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from loanasync.bulk.pool import Pool
from loanasync.bulk.rows import Row, RowResult
from loanasync.errors import ConfigurationError

if TYPE_CHECKING:
    from pandas import DataFrame

_BAR_INTERVAL = 1.0  # seconds between two updates of a progress bar while no result arrives
_INTEGERS = ("amount", "net_amount", "instalments", "attempts")


class ProgressBar:
    """A tqdm progress bar, for a notebook or a terminal.

    Besides the results, it shows the calls in progress: they wait for the service, for another process that
    requests the same customer, or continue after a cell was interrupted.

    Args:
        rows: The rows; their number is shown if it is known.
    """

    def __init__(self, rows: object) -> None:
        total = len(rows) if isinstance(rows, Sized) else None
        self._bar = import_module("tqdm.auto").tqdm(total=total, unit=" rows")
        self._updates: asyncio.Task[None] | None = None

    def start(self, pool: Pool) -> None:
        """Show the calls in progress every second, until the bar is closed."""
        if self._updates is None:
            self._updates = asyncio.create_task(self._update(pool))

    async def _update(self, pool: Pool) -> None:
        while not pool.has_ended:
            self._bar.set_postfix_str(pool.progress_text)
            await asyncio.sleep(_BAR_INTERVAL)

    def __call__(self, _: RowResult) -> None:
        """Count a result."""
        self._bar.update()

    def close(self) -> None:
        """End the updates, and leave the bar as it is."""
        if self._updates is not None:
            self._updates.cancel()
        self._bar.close()


def require_pandas() -> None:
    """Check that pandas is installed.

    Raises:
        ConfigurationError: It is not.
    """
    if find_spec("pandas") is None:
        raise ConfigurationError("to_frame", "needs pandas: pip install pandas")


def frame_of(results: Iterable[RowResult], *, personal: bool) -> "DataFrame":
    """Return a DataFrame with a line for each result, in the order of the rows."""
    pandas = import_module("pandas")
    rows = [each.as_row(personal=personal) for each in results]
    frame = pandas.DataFrame(rows, columns=list(_NO_RESULT.as_row(personal=personal)))
    for name in _INTEGERS:
        with suppress(OverflowError):  # the service may return an amount of more than 64 bits
            # Without this type, missing values convert all integers of a column to floats.
            frame[name] = pandas.array([row[name] for row in rows], dtype="Int64")
    frame["elapsed"] = frame["elapsed"].astype(float)
    frame["at"] = pandas.to_datetime(frame["at"], utc=True)
    return frame.set_index("index").sort_index()


_NO_RESULT = RowResult(0, Row("", None), "failed")  # type: ignore[arg-type]  # its names are the columns
