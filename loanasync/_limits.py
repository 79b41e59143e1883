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
        mobile_phone: Pattern that the whole mobile number matches, such as ``[0-9]+``. By default the
            number is only not blank and has no international prefix.
        country_calling_code: Pattern that the whole calling code matches, such as ``[+][0-9]{1,4}``.
        salary_max: Greatest salary, whole euros; with it, a salary below 0 is refused, too.
        single_line: Refuse texts with line breaks or other control characters.

    The last five are not in the specification: each is off by default.

    Raises:
        ConfigurationError: A range is empty, a pattern does not compile, or a value has a wrong type.

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
    mobile_phone: str | None = None
    """Pattern that the whole mobile number matches; None accepts every number (spec §2.1)."""
    country_calling_code: str | None = None
    """Pattern that the whole calling code matches; None accepts every code (spec §2.1)."""
    salary_max: int | None = None
    """Greatest salary, whole euros; None accepts every salary (spec §2.1)."""
    single_line: bool = False
    """Refuse texts with line breaks or other control characters (spec §2)."""

    def __attrs_post_init__(self) -> None:
        for name in ("amount", "instalments"):
            least, most = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            if type(least) is not int or type(most) is not int or least > most:
                raise ConfigurationError(
                    f"limits.{name}_min", f"must be an int and no more than {name}_max, an int too"
                )
        for name in ("province", "postal_code", "street_number", "mobile_phone", "country_calling_code"):
            try:
                re.compile(getattr(self, name) or "")
            except (re.error, TypeError):
                raise ConfigurationError(f"limits.{name}", "must be a regular expression as a str") from None
        if self.salary_max is not None and (type(self.salary_max) is not int or self.salary_max < 0):
            raise ConfigurationError("limits.salary_max", "must be a positive int of whole euros, or None")
        if type(self.single_line) is not bool:
            raise ConfigurationError("limits.single_line", "must be True or False")
