"""Conversion of the cells of a file, by field."""

import re
from collections.abc import Callable, Mapping

import attrs

from loanasync._cells import BY_TYPE, CellError
from loanasync._models import AdditionalData, ApprovalRequest, UserData

_SHORTENED = re.compile("[0-9]+(?:[.,][0-9]+)?[Ee][+-][0-9]+")  # 3,33E+09: the other digits are lost


def check_number_is_complete(value: object) -> None:
    """Raise an error for a number that a spreadsheet has shortened.

    Raises:
        CellError: The text is in scientific notation.
    """
    if isinstance(value, str) and _SHORTENED.fullmatch(value):
        raise CellError(
            "a spreadsheet has shortened this number to scientific notation, such as 3,33E+09; "
            "format the column as text, and enter the whole number again"
        )


# By field. Fields that are missing here are text, which needs no conversion.
CONVERTERS: Mapping[str, Callable[[object], object]] = {
    **{
        each.name: BY_TYPE[each.type]
        for model in (ApprovalRequest, AdditionalData, UserData)
        for each in attrs.fields(model)
        if each.type in BY_TYPE
    },
    "additional_data_needed": BY_TYPE[bool | None],
}
