"""Types of `LoanClient.approve_many`: rows, results and their summary. `read` reads rows from a file."""

from loanasync._models.classes import name_by_package
from loanasync.bulk.approvals import Approvals
from loanasync.bulk.input import InputRows, read
from loanasync.bulk.options import Progress
from loanasync.bulk.records import InputError, InputProblem
from loanasync.bulk.rows import FileRow, Row, RowLike, RowResult
from loanasync.bulk.summary import Summary

__all__ = [
    "Approvals",
    "FileRow",
    "InputError",
    "InputProblem",
    "InputRows",
    "Progress",
    "Row",
    "RowLike",
    "RowResult",
    "Summary",
    "read",
]

name_by_package(globals())
