"""Values that a spreadsheet, a data frame or a wrong text encoding has spoiled."""

import re
from collections.abc import Mapping

# By message: a pattern that the whole value matches. The first match counts.
_SPOILED: Mapping[str, re.Pattern[str]] = {
    "a spreadsheet has shortened this number, such as 3,33E+09; format the column as text, and enter it "
    "again": re.compile("[0-9]+(?:[.,][0-9]+)?[Ee][+-][0-9]+"),
    "a spreadsheet or data frame has added decimals to this number; format the column as text, or read it "
    "with dtype=str": re.compile("[0-9]+[.,]0+"),
    "a data frame has written a missing value as text; leave the cell empty": re.compile(
        "nan|NaN|NaT|None|null|NULL|<NA>|N/A"
    ),
    "a spreadsheet has written the error of a formula; correct the formula": re.compile(
        "#(?:N/A|N/D|REF!|RIF!|VALUE!|VALORE!|NAME[?]|NOME[?]|DIV/0!|NUM!|NULL!|NULLO!|SPILL!|CALC!)"
    ),
    "the column of the spreadsheet was too narrow; make it wider, and save the file again": re.compile("#+"),
    "this is a formula; save the value without the sign =": re.compile("=.*", re.DOTALL),
    "letters were lost when this text was saved; enter it again": re.compile(
        ".*\N{REPLACEMENT CHARACTER}.*", re.DOTALL
    ),
}
_TWO_ENCODINGS = (
    "this text has another encoding than the rest of the file; save the whole file as UTF-8, or name its "
    "encoding: --encoding cp1252"
)


def spoiled(value: object, *, is_amount: bool = False) -> str:
    """Return why a value is not what was entered, and a correction; empty if it may be.

    Args:
        value: The cell or member.
        is_amount: Decimals are not an addition.
    """
    if isinstance(value, float) and value != value:  # noqa: PLR0124  (NaN, which Python reads in JSON)
        value = "NaN"
    if not isinstance(value, str):
        return ""
    if not value.isascii() and _is_decoded_twice(value):
        return _TWO_ENCODINGS
    found = (message for message, pattern in _SPOILED.items() if pattern.fullmatch(value))
    message = next(found, "")
    return "" if is_amount and message and "decimals" in message else message


def _is_decoded_twice(text: str) -> bool:
    """Return True if a text in UTF-8 was read as cp1252, such as ForlÃ¬."""
    try:
        return text.encode("cp1252").decode() != text
    except UnicodeError:
        return False
