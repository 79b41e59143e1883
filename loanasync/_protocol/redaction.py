"""Removal of personal values from messages of the service (spec §7)."""

import html
import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise, permutations, product
from urllib.parse import unquote_to_bytes

_MASK = "***"
_MAX_TOTAL = 100_000  # characters of all values; if there are more, the whole text is masked
_MAX_VALUE = 4_000  # only this beginning of a longer value, such as an image, is searched for
_VALUE_COST, _DATE_COST = 10, 300  # counted against _MAX_TOTAL for each value
_MAX_TEXT = 600  # characters of a text that are read
_MAX_DECODINGS = 4
_TAIL = 24  # letters and digits removed from the end of a truncated text, which may end within a value

_RUN = 12  # this many consecutive letters of a value are masked even within words
_CODE_RUN = 8  # the same for codes and numbers
_WORD = 4  # shorter values are masked only as separate words
_MIN_VALUE = 2
_MAX_NAMES = 8
_MAX_WORDS = 6  # values with more words are prose, and their single words are not personal

# spec §2.1: members of the order, not of the customer; limits with the same number must stay readable.
_NOT_PERSONAL = frozenset({"amount", "instalments", "installments", "loanFinality"})
_UPPER_CASE = "province"  # spec §8: two letters, which in lower case are words such as "to" or "no"

_NAMES = re.compile("name|nome|nominativo", re.IGNORECASE)  # members that contain names of people
_IDENTIFIER = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_MAIL_END = re.compile(r"(?:\+[^@]*)?@.*", re.DOTALL)  # tag and provider, which are not personal
_PERCENT = re.compile("(?:%[0-9A-Fa-f]{2})+")
_ESCAPE = re.compile(r"\\+(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|[nrtbf])")
_DATE = re.compile(
    r"([0-9]{4})\D([0-9]{1,2})(?:\D([0-9]{1,2}))?(?:[T ].{,40})?"
    r"|(?:([0-9]{1,2})\D)?([0-9]{1,2})\D([0-9]{4})"
)
# Omocodia: if two people would get the same code, the tax office replaces digits by letters.
_DIGITS = str.maketrans("LMNPQRSTUV", "0123456789")
_MONTH_LETTERS = "ABCDEHLMPRST"
_FISCAL_CODE = re.compile("[A-Z]{6}([0-9L-NP-V]{2})([A-EHLMPRST])([0-9L-NP-V]{2})[A-Z][0-9L-NP-V]{3}[A-Z]")
_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september"),
    *("october", "november", "december"),
    *("gennaio", "febbraio", "marzo", "aprile", "maggio", "giugno", "luglio", "agosto", "settembre"),
    *("ottobre", "novembre", "dicembre"),
)
# Common ASCII spellings of letters that Unicode normalization does not decompose.
_PLAIN = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "æ": "ae", "œ": "oe", "ð": "d", "þ": "th"})
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue", "å": "aa"})
_WIDE = "\u2e80"  # first character of the scripts without spaces between words


class Redactor:
    """Replaces personal values in a text by ``***``.

    Only letters and digits are compared. Spaces, quotes, hyphens, case and accents are ignored, and HTML
    entities, percent-encoding and escapes are decoded first. The number of values does not affect how often a
    text is read.

    Args:
        sent: Values that were sent: texts, numbers, and lists and objects of them.

    Example:
        >>> redact = Redactor({"lastname": "D'Amicò", "mobilePhone": "3331234567"})
        >>> redact("D&#39;AMICO has 333-123.4567", max_length=60)
        '*** has ***'
    """

    def __init__(self, *sent: object) -> None:
        self._runs: set[str] = set()  # masked even within words
        self._words: set[str] = set()  # masked as separate words
        self._upper: set[str] = set()
        self._has_too_many_values = False
        names: list[str] = []
        remaining = _MAX_TOTAL
        for name, value in _values(sent):
            remaining -= _DATE_COST if _DATE.fullmatch(value) else _VALUE_COST
            remaining -= min(len(value), _MAX_VALUE)
            if remaining < 0:
                self._has_too_many_values = True
                break
            self._add(name, value[:_MAX_VALUE])
            if _NAMES.search(name) and len(names) < _MAX_NAMES:
                names.append(_letters(value[:_MAX_VALUE]))
        for pair in permutations(names, 2):  # user names are often first and last name in one word
            self._add_form("".join(pair), _WORD, is_code=False)
        self._run_sizes = sorted({*map(len, self._runs)})
        self._word_sizes = sorted({*map(len, self._words)})

    def _add(self, name: str, value: str) -> None:
        if name == _UPPER_CASE and len(value) < _WORD:
            self._upper.add(value)
            return
        is_name = bool(_NAMES.search(name))
        # A short text in lower case is more often a word such as "no" than a name.
        min_length = _MIN_VALUE if is_name or value != value.lower() else _WORD
        is_code = len(value.split()) == 1
        for form in (*map(_letters, _forms(value)), *_dates(value), *_birthdays(value)):
            self._add_form(form, min_length, is_code=is_code)
        personal_part = _MAIL_END.sub("", value) if "@" in value else value
        words = re.findall(r"\w+", personal_part)
        if len(words) <= _MAX_WORDS:
            min_word = _WORD - 1 if is_name else _WORD
            # Longer words are found by the runs of the whole value.
            self._words.update(word for word in map(_letters, words) if min_word <= len(word) < _RUN)

    def _add_form(self, letters: str, min_length: int, *, is_code: bool) -> None:
        size, is_number = len(letters), letters.isdigit()
        run = _CODE_RUN if is_number or (is_code and any(map(str.isdigit, letters))) else _RUN
        if size >= run:
            self._runs.update(letters[at : at + run] for at in range(size - run + 1))
        elif size >= _CODE_RUN:
            self._runs.add(letters)
        elif size >= (_WORD if is_number else min_length):
            self._words.add(letters)

    def __call__(self, text: str, max_length: int) -> str:
        """Return the text without personal values, truncated to `max_length` printable characters."""
        is_truncated = len(text) > _MAX_TEXT
        plain = _unescape(text[:_MAX_TEXT])
        if plain is None or self._has_too_many_values:
            return _MASK
        redacted = "".join(self._parts(plain, is_truncated=is_truncated))
        if redacted == plain:  # nothing was masked: keep the original text with its escapes
            redacted = text
        printable = "".join(character if character.isprintable() else " " for character in redacted)
        return printable if len(printable) <= max_length else printable[: max_length - 1] + "…"

    def _parts(self, text: str, *, is_truncated: bool) -> Iterator[str]:
        letters, positions = _index(text)
        end = len(text)
        if is_truncated:
            end = positions[-_TAIL] if len(positions) >= _TAIL else 0
        done = 0
        for first, last in _merge(self._matches(text, letters, positions)):
            start, stop = positions[first], positions[last] + 1
            while stop < len(text) and _is_mark(text[stop]):
                stop += 1
            if start >= end:
                break
            yield text[done:start] + _MASK
            done = stop
        yield text[done:end]
        if is_truncated:
            yield "…"

    def _matches(self, text: str, letters: str, positions: list[int]) -> Iterator[tuple[int, int]]:
        """Yield the indexes of the first and last letter of each match."""
        size = len(letters)
        for length in self._run_sizes:
            for at in range(size - length + 1):
                if letters[at : at + length] in self._runs:
                    yield at, at + length - 1
        boundaries = _word_boundaries(text, positions)
        for at in range(size):
            if not boundaries[at]:
                continue
            for length in self._word_sizes:
                stop = at + length
                if stop <= size and boundaries[stop] and letters[at:stop] in self._words:
                    is_one_word = _SEPARATED not in boundaries[at + 1 : stop]
                    if is_one_word or length >= _WORD:
                        yield at, stop - 1
            province = text[positions[at] : positions[at] + _MIN_VALUE]
            if self._upper and province in self._upper and boundaries[at + 2]:
                yield at, at + 1


def contains_value(name: str, *sent: object) -> bool:
    """Return True if a name, such as a request id, contains a sent value. Short values are ignored.

    Example:
        >>> contains_value("tst-xyz-00a00-a000a/1", "TSTXYZ00A00A000A")
        True
    """
    letters = _letters(name)
    for _, value in _values(sent):
        part = _letters(value[:_MAX_VALUE])
        if len(part) >= (_CODE_RUN if part.isdigit() else _WORD) and part in letters:
            return True
    return False


def _values(sent: Iterable[object]) -> Iterator[tuple[str, str]]:
    """Yield the texts and numbers in all objects and lists, with the name of their member."""
    waiting = [("", each) for each in sent]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, str(value)
            if isinstance(value, float):
                yield name, f"{value:.2f}"
        elif isinstance(value, dict):
            # A name that is not an identifier may itself be a personal value.
            yield from (("", each) for each in value if not _IDENTIFIER.fullmatch(each))
            waiting += [item for item in value.items() if item[0] not in _NOT_PERSONAL]
        elif isinstance(value, list):
            waiting += [(name, each) for each in value]


def _forms(value: str) -> set[str]:
    """Return a value in the encodings in which programs may write it, including wrong ones."""
    forms = {value}
    if not value.isascii():
        raw = value.encode(errors="replace")
        forms |= {raw.decode("cp1252", errors="replace"), raw.decode("latin-1")}
        forms |= {value.encode("ascii", errors="ignore").decode(), value.translate(_UMLAUTS)}
    return forms


def _dates(value: str) -> set[str]:
    """Return the spellings of a date, or nothing for other texts.

    They include all orders, with and without leading zeros and century, and month names. If day and month
    cannot be distinguished, both readings are included.
    """
    match = _DATE.fullmatch(value)
    if match is None:
        return set()
    year, one, other = (match[1], match[2], match[3]) if match[1] else (match[6], match[5], match[4])
    if other is None:
        return set(_orders(year, one, None))
    return {*_orders(year, one, other), *_orders(year, other, one)}


def _birthdays(value: str) -> set[str]:
    """Return the spellings of the date of birth in a fiscal code. For women, 40 is added to the day."""
    match = _FISCAL_CODE.fullmatch(value.strip().upper())
    if match is None:
        return set()
    year, day = match[1].translate(_DIGITS), int(match[3].translate(_DIGITS)) % 40
    month = _MONTH_LETTERS.index(match[2]) + 1
    return {form for century in ("19", "20") for form in _orders(century + year, str(month), str(day))}


def _orders(year: str, month: str, day: str | None) -> Iterator[str]:
    number = int(month)
    names = [name for at, name in enumerate(_MONTHS) if at % 12 + 1 == number]
    months = {str(number), f"{number:02}", *names, *(name[:3] for name in names)}
    if day is None:
        for each, its_year in product(months, (year, year[2:])):
            yield from (each + its_year, its_year + each)
        return
    for name in names:
        yield name + year
    for each, its_day, its_year in product(months, {str(int(day)), f"{int(day):02}"}, (year, year[2:])):
        yield from (its_year + each + its_day, its_day + each + its_year, each + its_day + its_year)


def _letters(text: str) -> str:
    """Return the letters and digits of a text in lower case and without accents."""
    folded = unicodedata.normalize("NFKD", text).casefold().translate(_PLAIN)
    return "".join(filter(str.isalnum, folded))


_letters_of = lru_cache(maxsize=1_000)(_letters)


def _index(text: str) -> tuple[str, list[int]]:
    """Return `_letters` of a text, and the position of each letter in the text."""
    if text.isascii():
        positions = [at for at, character in enumerate(text) if character.isalnum()]
        return "".join(filter(str.isalnum, text)).lower(), positions
    letters = [(letter, at) for at, character in enumerate(text) for letter in _letters_of(character)]
    return "".join(letter for letter, _ in letters), [at for _, at in letters]


_SEPARATED, _ADJACENT, _WITHIN = 2, 1, 0


def _word_boundaries(text: str, positions: list[int]) -> list[int]:
    """Return for each letter the boundary before it, and a last item for the end of the text.

    _SEPARATED: there is a separator between the letters. _ADJACENT: a word ends and another begins, as in
    ``anna1980``. _WITHIN: both letters belong to the same word.
    """
    boundaries = [_SEPARATED]
    for before, at in pairwise(positions):
        one, other = text[before], text[at]
        if at > before + 1 and not all(map(_is_mark, text[before + 1 : at])):
            boundaries.append(_SEPARATED)
        elif (
            one.isdigit() is not other.isdigit()
            or (one.islower() and other.isupper())
            or max(one, other) >= _WIDE
        ):
            boundaries.append(_ADJACENT)
        else:
            boundaries.append(_WITHIN)
    return [*boundaries[: len(positions)], _SEPARATED]


def _is_mark(character: str) -> bool:
    """Return True for combining accents and invisible characters."""
    return unicodedata.category(character) in ("Mn", "Me", "Cf")


def _merge(matches: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(matches):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged


def _unescape(text: str) -> str | None:
    """Return a text without escapes, or None if it was encoded too many times."""
    for _ in range(_MAX_DECODINGS):
        plain = html.unescape(_ESCAPE.sub(_character, _PERCENT.sub(_from_percent, text)))
        if plain == text:
            return text
        text = plain
    return None


def _from_percent(match: re.Match[str]) -> str:
    raw = unquote_to_bytes(match[0])
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _character(match: re.Match[str]) -> str:
    digits = match[1] or match[2]
    return chr(int(digits, 16)) if digits else " "
