"""Detection of protocol misuse, based on the responses that the shop received before (spec §3 to §5)."""

import re
from collections import deque
from collections.abc import Container, Iterator
from urllib.parse import parse_qsl, unquote

from attrs import frozen

from loanasync.sandbox.customers import Customer

RULES = {
    "post-after-422": "A refusal is final: do not request approval again, offer another way to pay (§3).",
    "post-after-201": "Keep the first response with the redirectUrl: do not request approval again (§3).",
    "repeat-after-already-evaluated": "The response 'already evaluated' will not change: do not repeat (§3).",
    "repeat-after-lost-response": "A call without a response may be evaluated: repeat only a 500 (§3, §7).",
    "repeat-after-unclear-response": "The call before may be evaluated: repeat only a 500 (§3, §7).",
    "approve-before-create": "Call create_request before you request its approval (§4.1).",
    "patch-before-documents": "Call upload_documents before you complete the user data (§4.2).",
    "token-in-url": "URLs end up in logs: send the token in the header X-Auth-Token (§5).",
    "production-token": "The token looks like a real one: use a made-up one. Replace it if others saw it.",
    "person-in-query": "Queries end up in logs: send the code in the path, all else in the body (§4).",
}

_MAX_FINDINGS = 1000
# A fiscal code: six letters of the name, year, month, day, municipality and check letter. Letters can replace
# digits; with a typing error, too, it is personal data.
_FISCAL_CODE = re.compile("[A-Z]{6}[A-Z0-9]{2}[A-Z][A-Z0-9]{2}[A-Z][A-Z0-9]{3}[A-Z]")
_MIN_DIGITS = 4  # of its seven digits; random keys of 16 characters rarely have as many
_SEPARATORS = re.compile(r"[\s.\-_+]")
_WORDS = re.compile("[A-Za-z0-9]+")
_TOKEN = re.compile("(?:x-)?(?:auth[-_]?)?token", re.IGNORECASE)


@frozen
class Finding:
    """One misuse of the protocol; `Sandbox.findings` lists them.

    Args:
        rule: Name of the rule that was broken, such as ``post-after-422``.
        call: Number of the call in the journal.
        message: Description of the mistake and of the correct behaviour.

    Example:
        >>> import attrs
        >>> again = attrs.evolve(request, email="anna+refused@example.com")
        >>> refused = run(client.approve(fiscal_code, again))
        >>> forgetful = sandbox.client()
        >>> try:
        ...     run(forgetful.approve(fiscal_code, again))
        ... except AlreadyEvaluatedError:
        ...     print(sandbox.findings[0].rule, sandbox.findings[0].call)
        post-after-422 3
        >>> run(forgetful.aclose())
    """

    rule: str
    call: int
    message: str

    def __str__(self) -> str:
        return f"call {self.call}: {self.rule}: {self.message}"


class Linter:
    """Checks calls for misuse of the protocol and keeps the last thousand findings."""

    def __init__(self, auth_token: str) -> None:
        self.findings: deque[Finding] = deque(maxlen=_MAX_FINDINGS)
        self._auth_token = auth_token

    def check_url(self, path: str, query: str, customers: Container[str] = ()) -> Iterator[str]:
        """Yield the rules that a URL breaks.

        Args:
            path: The decoded path.
            query: The query as it was sent.
            customers: The fiscal codes of all known customers.
        """
        parameters = parse_qsl(query, keep_blank_values=True)
        values = [*path.split("/"), *(word for _, value in parameters for word in (value, *value.split()))]
        if self._auth_token in values or any(_TOKEN.fullmatch(name) for name, _ in parameters):
            yield "token-in-url"
        if any(_is_personal(f"{name} {unquote(value)}", customers) for name, value in parameters):
            yield "person-in-query"

    def check_call(self, operation: str, customer: Customer) -> Iterator[str]:
        """Yield the rules that a call breaks, given the last response that the shop received."""
        if operation == "approve":
            if not customer.created:
                yield "approve-before-create"
            if customer.order.repeat_breaks:
                yield customer.order.repeat_breaks
        elif operation == "complete" and not customer.documents:
            yield "patch-before-documents"

    def add(self, rule: str, call: int) -> None:
        """Add a finding."""
        self.findings.append(Finding(rule, call, RULES[rule]))


def _is_personal(text: str, customers: Container[str]) -> bool:
    words = {word.upper() for word in _WORDS.findall(text)}
    words.add(_SEPARATORS.sub("", text.partition(" ")[2]).upper())  # TST XYZ 00A00 A000A
    return "@" in text or any(word in customers or _is_fiscal_code(word) for word in words - {""})


def _is_fiscal_code(word: str) -> bool:
    return sum(map(str.isdecimal, word)) >= _MIN_DIGITS and _FISCAL_CODE.fullmatch(word) is not None
