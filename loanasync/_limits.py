"""The limits of the service (spec §8) as data, because services move theirs now and then."""

import re

from attrs import frozen

from loanasync.errors import ConfigurationError

__all__ = ["Limits"]


@frozen(kw_only=True, cache_hash=True)  # each call looks its rules up
class Limits:
    """The limits that requests are checked against before anything is sent (spec §2.1, §8).

    Args:
        amount_min: Least loan amount, euro cents.
        amount_max: Greatest loan amount, euro cents.
        instalments_min: Fewest instalments.
        instalments_max: Most instalments.
        province: Pattern that the whole province matches.
        postal_code: Pattern that the whole postal code matches.
        street_number: Pattern that the whole street number matches. One description says five digits;
            numbers such as ``12/A`` or ``SNC`` are real, so by default it is only not blank.

    Raises:
        ConfigurationError: A range is empty or a pattern does not compile.

    Example:
        >>> Limits(amount_max=1_000_000, street_number="[0-9]{1,5}").amount_max
        1000000
    """

    amount_min: int = 5_000
    """Least loan amount, euro cents (spec §8)."""
    amount_max: int = 1_500_000
    """Greatest loan amount, euro cents (spec §8)."""
    instalments_min: int = 3
    """Fewest instalments (spec §8)."""
    instalments_max: int = 60
    """Most instalments (spec §8)."""
    province: str = "[A-Z]{2}"
    """Pattern that the whole province matches (spec §8)."""
    postal_code: str = "[0-9]{5}"
    """Pattern that the whole postal code matches (spec §8)."""
    street_number: str | None = None
    """Pattern that the whole street number matches; by default only blank ones are refused (spec §2.1)."""

    def __attrs_post_init__(self) -> None:
        for name in ("amount", "instalments"):
            least, most = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            if type(least) is not int or type(most) is not int or least > most:
                raise ConfigurationError(
                    f"limits.{name}_min", f"must be an int and no more than {name}_max, an int too"
                )
        for name in ("province", "postal_code", "street_number"):
            try:
                re.compile(getattr(self, name) or "")
            except (re.error, TypeError):
                raise ConfigurationError(f"limits.{name}", "must be a regular expression as a str") from None
