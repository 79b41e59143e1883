"""The options of `LoanClient.approve_many`."""

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import TypeAlias

from attrs import frozen

from loanasync._settings import RetryPolicy, Timeout, require, require_wait
from loanasync.bulk.rows import RowResult
from loanasync.errors import ConfigurationError

Progress: TypeAlias = bool | Callable[[RowResult], object] | None
"""True for a progress bar (needs tqdm), or a function that is called with each result as it arrives."""


@frozen(kw_only=True)
class BulkOptions:
    """The options of a run, as `LoanClient.approve_many` describes them.

    Raises:
        ConfigurationError: An option is invalid; the error names it.
    """

    concurrency: int = 64
    stop_after: int | None = 20
    rate: float | None = None
    progress: Progress = None
    wait: float = math.inf
    timeout: Timeout | None = None
    retry: RetryPolicy | None = None

    def __attrs_post_init__(self) -> None:
        rate, progress, least = self.rate, self.progress, "an int of at least 1"
        is_rate = isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < math.inf
        is_progress = progress is None or isinstance(progress, bool) or callable(progress)
        has_bar = progress is not True or find_spec("tqdm") is not None
        for is_valid, name, rule in (
            (_is_count(self.concurrency), "concurrency", f"must be {least}"),
            (self.stop_after is None or _is_count(self.stop_after), "stop_after", f"must be None or {least}"),
            (rate is None or is_rate, "rate", "must be None or a number greater than 0 (calls per second)"),
            (is_progress, "progress", "must be True, False, None, or a function that takes a result"),
            (has_bar, "progress", "True needs tqdm: pip install '.[notebook]' in a checkout"),
        ):
            if not is_valid:
                raise ConfigurationError(name, rule)
        require_wait("wait", self.wait)
        for kind, name, value in ((Timeout, "timeout", self.timeout), (RetryPolicy, "retry", self.retry)):
            if value is not None:
                require(kind, name, value)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1
