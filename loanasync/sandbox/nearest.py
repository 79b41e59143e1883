"""The known word that is most like one that is not known, for texts that say what was probably meant."""

import difflib
from collections.abc import Iterable


def nearest(word: object, known: Iterable[str]) -> str:
    """The most alike of the known words, however little that is."""
    return difflib.get_close_matches(str(word), sorted(known), n=1, cutoff=0.0)[0]
