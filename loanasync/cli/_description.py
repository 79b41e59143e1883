"""The two descriptions of the approval call, as an option names them."""

from enum import StrEnum

__all__ = ["Description"]


class Description(StrEnum):
    """By the field that tells them apart."""

    STREET_NUMBER = "street_number"
    CIVIC_NUMBER = "civic_number"
