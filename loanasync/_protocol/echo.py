"""Comparison of an echoed fiscal code with the one that was sent (spec §2.1)."""

import re
from unicodedata import normalize

_LENGTH = 16
_MAX_LENGTH = 1_000  # longer texts are not normalized, because NFKC can make them eighteen times longer
_SEPARATORS = re.compile(r"[\s-]+")
_MASKED = re.compile("[^A-Z0-9]")
_DIGIT = re.compile("[0-9]")
# Omocodia: if two people would get the same code, the tax office replaces digits by letters.
_DIGITS = dict(zip("LMNPQRSTUV", "0123456789", strict=True))
_DIGIT_POSITIONS = frozenset({6, 7, 9, 10, 12, 13, 14})


def belongs_to_another_customer(echoed: object, fiscal_code: str) -> bool:
    """Return True if an echoed fiscal code is not the one that was sent.

    Differences in spaces, hyphens, case, full-width forms and omocodia are ignored. In addition:

    - A masked code is accepted if its visible characters agree with the fiscal code.
    - A missing or empty value, or a word without digits, is accepted.
    - A value that is not a string, or has more than 1,000 characters, is rejected.

    Example:
        >>> belongs_to_another_customer("tst xyz-00A00A000A", "TSTXYZ00A00A000A")
        False
        >>> belongs_to_another_customer("TST*********000B", "TSTXYZ00A00A000A")
        True
    """
    if echoed is None or echoed == fiscal_code:
        return False
    if not isinstance(echoed, str) or len(echoed) > _MAX_LENGTH:
        return True
    text = normalize("NFKC", echoed)
    if not text.isascii() and any(each.isalnum() and not each.isascii() for each in text):
        return True  # a fiscal code and a mask contain only ASCII letters and digits
    code = _SEPARATORS.sub("", text).upper()
    if len(code) == _LENGTH:
        return not _agrees_by_position(code, fiscal_code)
    if _MASKED.search(code):
        return not _agrees_in_parts(code, fiscal_code)
    # Accept a word without digits, such as "UNKNOWN", and a part of the code.
    return bool(_DIGIT.search(code)) and code not in fiscal_code


def names_customer(echoed: object, fiscal_code: str) -> bool:
    """Return True if an echoed fiscal code shows at least a part of the one that was sent, with a digit.

    Example:
        >>> names_customer("TST*********000A", "TSTXYZ00A00A000A"), names_customer(None, "TSTXYZ00A00A000A")
        (True, False)
    """
    if echoed == fiscal_code:
        return True
    is_shown = isinstance(echoed, str) and _DIGIT.search(echoed) is not None
    return is_shown and not belongs_to_another_customer(echoed, fiscal_code)


def _agrees_by_position(code: str, fiscal_code: str) -> bool:
    """Compare the visible characters. Omocodia changes digits, and with them the check letter at the end."""
    pairs = enumerate(zip(code, fiscal_code, strict=True))
    different = [at for at, (seen, sent) in pairs if seen != sent and not _MASKED.match(seen)]
    omocodia = [
        at for at in different if at in _DIGIT_POSITIONS and _digit(code[at]) == _digit(fiscal_code[at])
    ]
    return different == omocodia or (bool(omocodia) and different == [*omocodia, _LENGTH - 1])


def _digit(character: str) -> str:
    return _DIGITS.get(character, character)


def _agrees_in_parts(masked: str, fiscal_code: str) -> bool:
    # The masked parts may have any length, so the visible parts must occur in the code in this order.
    parts = re.split("[^A-Z0-9]+", masked)
    if parts[1:] == [""] and len(parts[0]) <= _LENGTH:  # only the beginning is visible
        return _agrees_by_position(parts[0].ljust(_LENGTH, "*"), fiscal_code)
    if sum(map(len, parts)) > _LENGTH:  # too long to match; a very long pattern would block the event loop
        return False
    pattern = ".*".join(parts)
    plain = "".join(_digit(each) if at in _DIGIT_POSITIONS else each for at, each in enumerate(fiscal_code))
    return any(re.fullmatch(pattern, code) for code in (fiscal_code, plain))
