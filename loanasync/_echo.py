"""Comparison of an echoed fiscal code with the one that was sent (spec §2.1)."""

import re

__all__ = ["is_another_customers"]

_LENGTH = 16
_SEPARATORS = re.compile(r"[\s-]+")
_CODE = re.compile("[A-Z0-9]{16}|[0-9]{11}")
_MASKED = re.compile("[^A-Z0-9]")
# Italian tax offices replace digits by letters where two people would have the same code ("omocodia").
_DIGITS = dict(zip("LMNPQRSTUV", "0123456789", strict=True))
_PLACES = frozenset({6, 7, 9, 10, 12, 13, 14})


def is_another_customers(echoed: object, fiscal_code: str) -> bool:
    """Return True if an echoed fiscal code belongs to another customer, or is no text.

    Spaces, hyphens, case and omocodia make no difference. Of a masked code the visible characters must agree.
    A missing or empty code is accepted, and so is a text that is no code.

    Example:
        >>> is_another_customers("tst xyz-00A00A000A", "TSTXYZ00A00A000A")
        False
        >>> is_another_customers("TST*********000B", "TSTXYZ00A00A000A")
        True
    """
    if echoed is None or echoed == fiscal_code:
        return False
    if not isinstance(echoed, str):
        return True
    code = _SEPARATORS.sub("", echoed).upper()
    if _CODE.fullmatch(code):
        return not _is_same(code, fiscal_code)
    return bool(_MASKED.search(code)) and not _agrees(code, fiscal_code)


def _is_same(code: str, other: str) -> bool:
    if code == other:
        return True
    plain, other_plain = _with_digits(code), _with_digits(other)
    # The last character checks the others: omocodia changes it, too.
    if (plain, other_plain) != (code, other):
        plain, other_plain = plain[:-1], other_plain[:-1]
    return plain == other_plain


def _with_digits(code: str) -> str:
    if len(code) != _LENGTH:
        return code
    return "".join(_DIGITS.get(each, each) if at in _PLACES else each for at, each in enumerate(code))


def _agrees(masked: str, fiscal_code: str) -> bool:
    if len(masked) == _LENGTH:
        pairs = zip(_with_digits(masked), _with_digits(fiscal_code), strict=True)
        return all(seen == sent or _MASKED.match(seen) for seen, sent in pairs)
    # The length of the hidden part is unknown: the visible parts must follow each other in the code.
    parts = re.split("[^A-Z0-9]+", masked)
    if sum(map(len, parts)) > _LENGTH:  # a pattern of a whole megabyte would stop the event loop
        return False
    pattern = ".*".join(parts)
    return any(re.fullmatch(pattern, code) for code in (fiscal_code, _with_digits(fiscal_code)))
