"""Approvals of many rows: `LoanClient.approve_many`, its rows, its results and their summary."""

from loanasync.bulk._approvals import Approvals, Progress
from loanasync.bulk._rows import Row, RowLike, RowResult
from loanasync.bulk._summary import Summary

__all__ = ["Approvals", "Progress", "Row", "RowLike", "RowResult", "Summary"]
