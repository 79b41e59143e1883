"""Comparison of an echoed fiscal code with the one that was sent (spec §2.1)."""

import re
from unicodedata import normalize

_LENGTH = 16
_LONGEST = 1_000  # a longer text is no code, and of some characters NFKC makes eighteen
_SEPARATORS = re.compile(r"[\s-]+")
_MASKED = re.compile("[^A-Z0-9]")
_DIGIT = re.compile("[0-9]")
# Italian tax offices replace digits by letters where two people would have the same code ("omocodia").
_DIGITS = dict(zip("LMNPQRSTUV", "0123456789", strict=True))
_PLACES = frozenset({6, 7, 9, 10, 12, 13, 14})


def is_another_customers(echoed: object, fiscal_code: str) -> bool:
    """Return True if an echoed fiscal code belongs to another customer, or is no text.

    Spaces, hyphens, case, full-width forms and omocodia make no difference. Of a masked code the visible
    characters must agree. A missing or empty code is accepted, and so is a word that is no code. A text of
    more than 1,000 characters is not read, and taken for another customer's.

    Example:
        >>> is_another_customers("tst xyz-00A00A000A", "TSTXYZ00A00A000A")
        False
        >>> is_another_customers("TST*********000B", "TSTXYZ00A00A000A")
        True
    """
    if echoed is None or echoed == fiscal_code:
        return False
    if not isinstance(echoed, str) or len(echoed) > _LONGEST:
        return True
    text = normalize("NFKC", echoed)
    if not text.isascii() and any(each.isalnum() and not each.isascii() for each in text):
        return True  # such a letter or digit stands in no code, and hides none
    code = _SEPARATORS.sub("", text).upper()
    if len(code) == _LENGTH:
        return not _agrees_by_place(code, fiscal_code)
    if _MASKED.search(code):
        return not _agrees_in_parts(code, fiscal_code)
    # Of another length: a word such as "UNKNOWN" is nobody's; digits belong to a code or to a part of one.
    return bool(_DIGIT.search(code)) and code not in fiscal_code


def _agrees_by_place(code: str, fiscal_code: str) -> bool:
    """Compare the visible characters; omocodia also changes the last one, which checks the others."""
    pairs = enumerate(zip(code, fiscal_code, strict=True))
    different = [at for at, (seen, sent) in pairs if seen != sent and not _MASKED.match(seen)]
    undone = [at for at in different if at in _PLACES and _digit(code[at]) == _digit(fiscal_code[at])]
    return different == undone or (bool(undone) and different == [*undone, _LENGTH - 1])


def _digit(character: str) -> str:
    return _DIGITS.get(character, character)


def _agrees_in_parts(masked: str, fiscal_code: str) -> bool:
    # The length of the hidden part is unknown: the visible parts must follow each other in the code.
    parts = re.split("[^A-Z0-9]+", masked)
    if parts[1:] == [""] and len(parts[0]) <= _LENGTH:  # a beginning
        return _agrees_by_place(parts[0].ljust(_LENGTH, "*"), fiscal_code)
    if sum(map(len, parts)) > _LENGTH:  # a pattern of a whole megabyte would stop the event loop
        return False
    pattern = ".*".join(parts)
    plain = "".join(_digit(each) if at in _PLACES else each for at, each in enumerate(fiscal_code))
    return any(re.fullmatch(pattern, code) for code in (fiscal_code, plain))
