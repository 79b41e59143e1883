"""Detection of protocol misuse, from the responses that the shop received before (spec §3 to §5)."""

import re
from collections import deque
from collections.abc import Callable, Iterator
from urllib.parse import parse_qsl, unquote

from attrs import frozen

from loanasync.sandbox.customers import Customer

RULES = {
    "post-after-422": (
        "A refused customer was asked for again. A refusal is final: offer another way to pay (spec §3)."
    ),
    "post-after-201": (
        "An approved customer was asked for again. Keep the first answer: it has the redirectUrl (spec §3)."
    ),
    "repeat-after-already-evaluated": (
        "Asked again after 'User already evaluated for approval'. It will never be another answer (spec §3)."
    ),
    "repeat-after-lost-answer": (
        "Asked again although the answer to the last call was lost. It may have been evaluated:"
        " only a 500 may be repeated (spec §3, §7)."
    ),
    "approve-before-create": "An approval was asked for before the request was created (spec §4.1).",
    "patch-before-documents": "Data were completed before the documents were uploaded (spec §4.2).",
    "token-in-url": "The token was in the URL, where logs keep it. It belongs in X-Auth-Token (spec §5).",
    "production-token": (
        "The token looks like a production one. Keep it out of test environments; whoever saw it may use it."
    ),
    "person-in-query": (
        "A fiscal code or an e-mail address was in the query, where logs keep it."
        " The code belongs in the path, all else in the body (spec §4)."
    ),
}

_BY_TOLD = {
    "refused": "post-after-422",
    "approved": "post-after-201",
    "already": "repeat-after-already-evaluated",
    "nothing": "repeat-after-lost-answer",
}
_MOST = 1000
# A fiscal code: letters, year, month, day, place and check letter.
_WELL_FORMED = re.compile("[A-Z]{6}[0-9LMNP-V]{2}[A-EHLMPRST][0-9LMNP-V]{2}[A-Z][0-9LMNP-V]{3}[A-Z]")
# With a typing error it is still personal.
_LIKE_A_CODE = re.compile("[A-Z]{6}[A-Z0-9]{2}[A-Z][A-Z0-9]{2}[A-Z][A-Z0-9]{3}[A-Z]")
_SHORTEST = 11  # characters: a provisional code has digits only
_DIGITS = 4  # of seven places; random keys of 16 characters have fewer
_CODE_NAMES = frozenset({"fiscalcode", "codicefiscale", "taxcode", "cf"})
_SEPARATORS = re.compile(r"[\s.\-_+]")
_WORDS = re.compile("[A-Za-z0-9]+")
_TOKEN = re.compile("(?:x-)?(?:auth[-_]?)?token", re.IGNORECASE)


@frozen
class Finding:
    """One misuse.

    Args:
        rule: Its name, such as ``post-after-422``.
        call: Number of the call in the journal.
        sentence: What was wrong, and what to do instead.

    Example:
        >>> import attrs
        >>> again = attrs.evolve(request, email="anna+refused@example.com")
        >>> refused = run(client.approve(fiscal_code, again))
        >>> forgetful = sandbox.client(remember=False)
        >>> try:
        ...     run(forgetful.approve(fiscal_code, again))
        ... except AlreadyEvaluatedError:
        ...     print(sandbox.findings[0].rule, sandbox.findings[0].call)
        post-after-422 3
        >>> run(forgetful.aclose())
    """

    rule: str
    call: int
    sentence: str

    def __str__(self) -> str:
        return f"call {self.call}: {self.rule}: {self.sentence}"


class Linter:
    """The last thousand findings, and the rules that make them."""

    def __init__(self, auth_token: str) -> None:
        self.findings: deque[Finding] = deque(maxlen=_MOST)
        self._auth_token = auth_token

    def of_url(
        self, path: str, query: str, is_customer: Callable[[str], bool] = lambda _: False
    ) -> Iterator[str]:
        """Rules that an address breaks: its path decoded, its query as it was sent.

        Args:
            path: The path, decoded.
            query: The query, encoded.
            is_customer: Tells whether a fiscal code is the one of a known customer, whatever its format.
        """
        asked = parse_qsl(query, keep_blank_values=True)
        values = [*path.split("/"), *(word for _, value in asked for word in (value, *value.split()))]
        if self._auth_token in values or any(_TOKEN.fullmatch(name) for name, _ in asked):
            yield "token-in-url"
        if any(_is_personal(name, unquote(value), is_customer) for name, value in asked):
            yield "person-in-query"

    def of_call(self, operation: str, customer: Customer) -> Iterator[str]:
        """Rules that a call breaks, by what its shop had been told before."""
        if operation == "approve":
            if not customer.created:
                yield "approve-before-create"
            if customer.told in _BY_TOLD:
                yield _BY_TOLD[customer.told]
        elif operation == "complete" and not customer.documents:
            yield "patch-before-documents"

    def note(self, rule: str, call: int) -> None:
        """Remember a finding."""
        self.findings.append(Finding(rule, call, RULES[rule]))


def _is_personal(name: str, value: str, is_customer: Callable[[str], bool]) -> bool:
    if value and _SEPARATORS.sub("", name).lower() in _CODE_NAMES:
        return True
    words = {word.upper() for text in (name, value) for word in _WORDS.findall(text)}
    words.add(_SEPARATORS.sub("", value).upper())  # TST XYZ 00A00 A000A
    codes = [word for word in words if len(word) >= _SHORTEST]
    return "@" in value or "@" in name or any(_is_code(code) or is_customer(code) for code in codes)


def _is_code(word: str) -> bool:
    if _WELL_FORMED.fullmatch(word):
        return True
    digits = sum(map(str.isdecimal, word))
    return digits >= _DIGITS and _LIKE_A_CODE.fullmatch(word) is not None
