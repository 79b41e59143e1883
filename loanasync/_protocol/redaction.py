"""Removal of personal values from texts that the service wrote (spec §7)."""

import html
import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise, permutations, product
from urllib.parse import unquote_to_bytes

_MASK = "***"
_MOST = 100_000  # characters of values; with more, no text is kept
_LONGEST_VALUE = 4_000  # of a longer one, such as a picture, this beginning is searched for
_COST_OF_VALUE, _COST_OF_DATE = 10, 300  # in characters
_LONGEST_TEXT = 600  # characters that are read of a text
_ROUNDS = 4  # of decoding
_TAIL = 24  # letters and digits at the end of a text that was cut: they may be the beginning of a value

_RUN = 12  # letters of a value in a row that are hidden also within words
_RUN_OF_CODE = 8  # the same, of a code or a number
_WORD = 4  # a shorter value is hidden only where it stands as one word
_SHORTEST = 2
_MOST_NAMES = 8
_MOST_WORDS = 6  # values with more words are prose, whose words stand in innocent texts, too

# spec §2.1: of the order and of nobody; a limit that equals one of them must stay readable.
_NOBODYS = frozenset({"amount", "instalments", "installments", "loanFinality"})
_UPPER_CASE = "province"  # spec §8: two letters, which in lower case are words such as "to" or "no"

_NAMES = re.compile("name|nome|nominativo", re.IGNORECASE)  # members that name people
_IDENTIFIER = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_MAIL_END = re.compile(r"(?:\+[^@]*)?@.*", re.DOTALL)  # a tag and the provider: nobody's
_PERCENT = re.compile("(?:%[0-9A-Fa-f]{2})+")
_ESCAPE = re.compile(r"\\+(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|[nrtbf])")
_DATE = re.compile(
    r"([0-9]{4})\D([0-9]{1,2})(?:\D([0-9]{1,2}))?(?:[T ].{,40})?"
    r"|(?:([0-9]{1,2})\D)?([0-9]{1,2})\D([0-9]{4})"
)
# Omocodia replaces digits by letters where two people would have the same code.
_DIGITS = str.maketrans("LMNPQRSTUV", "0123456789")
_LETTERS_OF_MONTHS = "ABCDEHLMPRST"
_FISCAL_CODE = re.compile("[A-Z]{6}([0-9L-NP-V]{2})([A-EHLMPRST])([0-9L-NP-V]{2})[A-Z][0-9L-NP-V]{3}[A-Z]")
_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september"),
    *("october", "november", "december"),
    *("gennaio", "febbraio", "marzo", "aprile", "maggio", "giugno", "luglio", "agosto", "settembre"),
    *("ottobre", "novembre", "dicembre"),
)
# Letters that have no decomposition, as people write them without their signs.
_PLAIN = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "æ": "ae", "œ": "oe", "ð": "d", "þ": "th"})
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue", "å": "aa"})
_WIDE = "\u2e80"  # from here on are scripts that put no spaces between words


class Redactor:
    """Replaces personal values in a text by ``***``, in whichever form the text has them.

    Only letters and digits are compared: spaces, quotes, hyphens, case and accents make no difference, and
    HTML entities, percent-encoding and escapes are decoded before. A text is read once, however many values
    there are.

    Args:
        sent: Values that were sent: texts, numbers, and lists and objects of them.

    Example:
        >>> redacted = Redactor({"lastname": "D'Amicò", "mobilePhone": "3331234567"})
        >>> redacted("D&#39;AMICO has 333-123.4567", longest=60)
        '*** has ***'
    """

    def __init__(self, *sent: object) -> None:
        self._runs: set[str] = set()  # hidden also within words
        self._words: set[str] = set()  # hidden between the ends of words
        self._upper: set[str] = set()
        self._is_too_much = False
        names: list[str] = []
        left = _MOST
        for name, value in _values(sent):
            left -= _COST_OF_DATE if _DATE.fullmatch(value) else _COST_OF_VALUE
            left -= min(len(value), _LONGEST_VALUE)
            if left < 0:
                self._is_too_much = True
                break
            self._add(name, value[:_LONGEST_VALUE])
            if _NAMES.search(name) and len(names) < _MOST_NAMES:
                names.append(_letters(value[:_LONGEST_VALUE]))
        for both in permutations(names, 2):  # as in a name of a user
            self._add_form("".join(both), _WORD, is_code=False)
        self._run_sizes = sorted({*map(len, self._runs)})
        self._word_sizes = sorted({*map(len, self._words)})

    def _add(self, name: str, value: str) -> None:
        if name == _UPPER_CASE and len(value) < _WORD:
            self._upper.add(value)
            return
        is_name = bool(_NAMES.search(name))
        # In lower case, so short a text is more often a word such as "no" than a name.
        shortest = _SHORTEST if is_name or value != value.lower() else _WORD
        is_code = len(value.split()) == 1
        for form in (*map(_letters, _forms(value)), *_dates(value), *_birthdays(value)):
            self._add_form(form, shortest, is_code=is_code)
        own = _MAIL_END.sub("", value) if "@" in value else value
        words = re.findall(r"\w+", own)
        if len(words) <= _MOST_WORDS:
            least = _WORD - 1 if is_name else _WORD
            # Longer words have a part among the runs of the whole value.
            self._words.update(word for word in map(_letters, words) if least <= len(word) < _RUN)

    def _add_form(self, letters: str, shortest: int, *, is_code: bool) -> None:
        size, is_number = len(letters), letters.isdigit()
        run = _RUN_OF_CODE if is_number or (is_code and any(map(str.isdigit, letters))) else _RUN
        if size >= run:
            self._runs.update(letters[at : at + run] for at in range(size - run + 1))
        elif size >= _RUN_OF_CODE:
            self._runs.add(letters)
        elif size >= (_WORD if is_number else shortest):
            self._words.add(letters)

    def __call__(self, text: str, longest: int) -> str:
        """Return a text without personal values, in at most `longest` printable characters."""
        is_cut = len(text) > _LONGEST_TEXT
        plain = _decoded(text[:_LONGEST_TEXT])
        if plain is None or self._is_too_much:
            return _MASK
        shown = "".join(self._parts(plain, is_cut=is_cut))
        if shown == plain:  # nothing was removed, so it stays as the service wrote it
            shown = text
        printable = "".join(character if character.isprintable() else " " for character in shown)
        return printable if len(printable) <= longest else printable[: longest - 1] + "…"

    def _parts(self, text: str, *, is_cut: bool) -> Iterator[str]:
        letters, places = _indexed(text)
        end = len(text)
        if is_cut:
            end = places[-_TAIL] if len(places) >= _TAIL else 0
        done = 0
        for first, last in _merged(self._found(text, letters, places)):
            start, stop = places[first], places[last] + 1
            while stop < len(text) and _is_mark(text[stop]):
                stop += 1
            if start >= end:
                break
            yield text[done:start] + _MASK
            done = stop
        yield text[done:end]
        if is_cut:
            yield "…"

    def _found(self, text: str, letters: str, places: list[int]) -> Iterator[tuple[int, int]]:
        """Yield first and last letter of each value that is found."""
        size = len(letters)
        for length in self._run_sizes:
            for at in range(size - length + 1):
                if letters[at : at + length] in self._runs:
                    yield at, at + length - 1
        ends = _ends_of_words(text, places)
        for at in range(size):
            if not ends[at]:
                continue
            for length in self._word_sizes:
                stop = at + length
                if stop <= size and ends[stop] and letters[at:stop] in self._words:
                    is_one_word = _SEPARATED not in ends[at + 1 : stop]
                    if is_one_word or length >= _WORD:
                        yield at, stop - 1
            if self._upper and text[places[at] : places[at] + _SHORTEST] in self._upper and ends[at + 2]:
                yield at, at + 1


def is_made_of(name: str, *sent: object) -> bool:
    """Return True if a name, such as an id, has a value in it; numbers of a few digits are in many ids.

    Example:
        >>> is_made_of("tst-xyz-00a00-a000a/1", "TSTXYZ00A00A000A")
        True
    """
    letters = _letters(name)
    for _, value in _values(sent):
        part = _letters(value[:_LONGEST_VALUE])
        if len(part) >= (_RUN_OF_CODE if part.isdigit() else _WORD) and part in letters:
            return True
    return False


def _values(sent: Iterable[object]) -> Iterator[tuple[str, str]]:
    """Yield the values of all objects and lists, with the name of their member."""
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
            # A member whose name is no name of a field may be called after a person.
            yield from (("", each) for each in value if not _IDENTIFIER.fullmatch(each))
            waiting += [item for item in value.items() if item[0] not in _NOBODYS]
        elif isinstance(value, list):
            waiting += [(name, each) for each in value]


def _forms(value: str) -> set[str]:
    """Return a value in the ways in which programs write it, right or wrong."""
    forms = {value}
    if not value.isascii():
        raw = value.encode(errors="replace")
        forms |= {raw.decode("cp1252", errors="replace"), raw.decode("latin-1")}
        forms |= {value.encode("ascii", errors="ignore").decode(), value.translate(_UMLAUTS)}
    return forms


def _dates(value: str) -> set[str]:
    """Return a date in each order, with and without zeros and century, and with names of months.

    Return nothing for a text that is no date. Which number is the day, and which the month, may be unclear.
    """
    found = _DATE.fullmatch(value)
    if found is None:
        return set()
    year, one, other = (found[1], found[2], found[3]) if found[1] else (found[6], found[5], found[4])
    if other is None:
        return set(_orders(year, one, None))
    return {*_orders(year, one, other), *_orders(year, other, one)}


def _birthdays(value: str) -> set[str]:
    """Return the date of birth that a fiscal code has: year, month, and day, with 40 more for women."""
    found = _FISCAL_CODE.fullmatch(value.strip().upper())
    if found is None:
        return set()
    year, day = found[1].translate(_DIGITS), int(found[3].translate(_DIGITS)) % 40
    month = _LETTERS_OF_MONTHS.index(found[2]) + 1
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
    """Return the letters and digits of a text, without case, accents and signs."""
    folded = unicodedata.normalize("NFKD", text).casefold().translate(_PLAIN)
    return "".join(filter(str.isalnum, folded))


_letters_of = lru_cache(maxsize=1_000)(_letters)


def _indexed(text: str) -> tuple[str, list[int]]:
    """Return `_letters` of a text, and where in the text each of them stands."""
    if text.isascii():
        places = [at for at, character in enumerate(text) if character.isalnum()]
        return "".join(filter(str.isalnum, text)).lower(), places
    letters = [(letter, at) for at, character in enumerate(text) for letter in _letters_of(character)]
    return "".join(letter for letter, _ in letters), [at for _, at in letters]


_SEPARATED, _ADJACENT, _WITHIN = 2, 1, 0


def _ends_of_words(text: str, places: list[int]) -> list[int]:
    """Return for each letter how it is divided from the one before it: not, as in ``anna1980``, or by a sign.

    The last entry is the end of the text.
    """
    ends = [_SEPARATED]
    for before, at in pairwise(places):
        one, other = text[before], text[at]
        if at > before + 1 and not all(map(_is_mark, text[before + 1 : at])):
            ends.append(_SEPARATED)
        elif (
            one.isdigit() is not other.isdigit()
            or (one.islower() and other.isupper())
            or max(one, other) >= _WIDE
        ):
            ends.append(_ADJACENT)
        else:
            ends.append(_WITHIN)
    return [*ends[: len(places)], _SEPARATED]


def _is_mark(character: str) -> bool:
    """Return True for an accent that belongs to the letter before, and for a character that is invisible."""
    return unicodedata.category(character) in ("Mn", "Me", "Cf")


def _merged(found: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(found):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged


def _decoded(text: str) -> str | None:
    """Return a text without escapes, None if it was encoded too often to be understood."""
    for _ in range(_ROUNDS):
        plain = html.unescape(_ESCAPE.sub(_character, _PERCENT.sub(_from_percent, text)))
        if plain == text:
            return text
        text = plain
    return None


def _from_percent(found: re.Match[str]) -> str:
    raw = unquote_to_bytes(found[0])
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _character(found: re.Match[str]) -> str:
    digits = found[1] or found[2]
    return chr(int(digits, 16)) if digits else " "
