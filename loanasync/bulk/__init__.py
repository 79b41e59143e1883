"""Types of `LoanClient.approve_many`: rows, results and their summary."""

from loanasync._public import name_by_package
from loanasync.bulk.approvals import Approvals, Progress
from loanasync.bulk.causes import FailureGroup
from loanasync.bulk.rows import Row, RowLike, RowResult
from loanasync.bulk.summary import Summary

__all__ = ["Approvals", "FailureGroup", "Progress", "Row", "RowLike", "RowResult", "Summary"]

name_by_package(globals())
