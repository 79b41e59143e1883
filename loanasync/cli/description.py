"""The two descriptions of the approval call, as an option names them."""

from enum import StrEnum

from loanasync import Dialect


class Description(StrEnum):
    """By the field that tells them apart."""

    STREET_NUMBER = "street_number"
    CIVIC_NUMBER = "civic_number"


def dialect_of(description: Description) -> Dialect:
    """Return the preset, which sets the name of the street number and nothing else."""
    street = description is Description.STREET_NUMBER
    return Dialect.street_number() if street else Dialect.civic_number()
