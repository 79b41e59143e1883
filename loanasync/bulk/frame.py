"""Results of `approve_many` as a pandas DataFrame."""

from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from loanasync.bulk.rows import Row, RowResult
from loanasync.errors import ConfigurationError

if TYPE_CHECKING:
    from pandas import DataFrame

_INTEGERS = ("amount", "net_amount", "instalments", "attempts")


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
