"""The settings of a client that its light copies and single calls may change, checked when they are given."""

from importlib.util import find_spec
from typing import Any, Self

import attrs

from loanasync._configuration import Shop, configure, require
from loanasync._limits import Limits
from loanasync._models.dialect import Dialect
from loanasync._policy import RetryPolicy, Timeout
from loanasync.errors import ConfigurationError

__all__ = ["Options", "places"]

_CALLS_AT_ONCE = 100  # with a session of our own, unless max_concurrency says otherwise


@attrs.frozen(kw_only=True)
class Options:
    """Who asks, in which dialect, within which limits, how often and how long."""

    shop: Shop
    dialect: Dialect
    limits: Limits
    retry: RetryPolicy
    timeout: Timeout
    strict: bool

    def __attrs_post_init__(self) -> None:
        require(Dialect, "dialect", self.dialect)
        require(Limits, "limits", self.limits)
        require(RetryPolicy, "retry", self.retry)
        require(Timeout, "timeout", self.timeout)
        require(bool, "strict", self.strict)
        if self.strict and find_spec("stdnum") is None:
            raise ConfigurationError("strict", "needs python-stdnum: pip install 'loanasync[strict]'")

    def changed(
        self, *, shop_id: str | None = None, auth_token: str | None = None, **changes: object
    ) -> Self:
        """These options with those changes that are not None.

        Raises:
            ConfigurationError: A change cannot work; it is named.
        """
        new: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        try:
            if (shop_id is None) != (auth_token is None):
                raise ConfigurationError("shop_id", "and auth_token belong together: give both or none")
            if shop_id is not None:
                new["shop"] = configure(self.shop.base_url, shop_id, auth_token)
        finally:
            del auth_token  # secret: must not stand in a traceback
        return attrs.evolve(self, **new)


def places(session: object, max_concurrency: int | None) -> int | None:
    """How many calls may be under way in one event loop; None when the user's session is to decide.

    Raises:
        ConfigurationError: The limit is no count.
    """
    if max_concurrency is None:
        return _CALLS_AT_ONCE if session is None else None
    require(int, "max_concurrency", max_concurrency)
    if max_concurrency < 1:
        raise ConfigurationError("max_concurrency", "must be at least 1, or None")
    return max_concurrency
