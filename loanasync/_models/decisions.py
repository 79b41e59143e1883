"""Results of calls: decisions, problems, and metadata of responses."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from typing import Any, Literal, NoReturn, Self, TypeAlias, cast, get_args

import attrs
from attrs import asdict, field, fields, frozen

from loanasync._models.enumerations import Citizenship
from loanasync._models.masking import (
    EMPTY_BODY,
    JSON,
    Body,
    MaskedPairs,
    ReadOnlyDict,
    ValueObject,
    mask,
    masked_unless,
    read_only,
)
from loanasync._models.requests import form_names
from loanasync._models.texts import Param, text_of


def _copy_of(params: Mapping[str, Param]) -> Mapping[str, Param]:
    return ReadOnlyDict(params)


UNLISTED = "rejected"  # the rule of a message of the service that the specification does not list


@frozen(eq=False, repr=False)
class Problem(ValueObject):
    """One broken rule of a request, found by this package or by the service.

    `str()` and `repr()` show ``***`` in place of a text of the service that the specification does not list,
    because it may repeat personal data. `message` and `text` return it. Two problems are equal if their
    fields, wire names and messages are equal.

    Args:
        field: Name of the field in this package, such as ``postal_code``. Unknown wire names stay unchanged.
        wire_name: Name of the member in the JSON body, such as ``postalCode``.
        message: Description of the problem, in English or in the language of the service.
        code: Field and rule, such as ``amount.range``; it stays the same in later versions. ``rejected``
            is the rule of a message of the service that the specification does not list, and the whole code
            if it does not list the field either.
        params: The values in the texts, such as ``least``, ``most``, ``options`` and ``pattern``; read-only.
        hint: Advice for the developer, such as types and settings. `text` does not show it.

    Example:
        >>> import attrs
        >>> [problem] = client.check(fiscal_code, attrs.evolve(request, amount=450))
        >>> print(problem)
        amount: must be a whole number between 5000 and 1500000 (euro cents)
        >>> problem.code, problem.params["least"], problem.text("it")
        ('amount.range', 5000, 'Inserire un importo tra 50,00 e 15.000,00 euro.')
    """

    field: str = attrs.field(repr=mask)
    """Name of the field in this package; unknown wire names stay unchanged (spec §7)."""
    wire_name: str = attrs.field(repr=mask)
    """Name of the member in the JSON body (spec §7)."""
    message: str = attrs.field(repr=mask)
    """Description of the problem (spec §7)."""
    code: str = attrs.field(default="", eq=False)
    """Field and rule, such as ``amount.range`` (spec §7, §8)."""
    params: Mapping[str, Param] = attrs.field(default=ReadOnlyDict(), converter=_copy_of, eq=False)
    """The values in the texts, without personal data; read-only (spec §8)."""
    hint: str = attrs.field(default="", eq=False)
    """Advice for the developer, beyond the rule of the specification (spec §7)."""

    def __str__(self) -> str:
        shown = printable(self)
        # spec §7: the message of a 403 or 409 has no field
        return f"{shown.field}: {described(shown)}" if shown.field else described(shown)

    def __repr__(self) -> str:
        return f"Problem({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> Iterator[tuple[str, object]]:
        # rich shows the masked fields otherwise, also those with texts that the specification lists.
        shown = printable(self)
        return ((each.name, getattr(shown, each.name)) for each in fields(Problem))

    def text(self, language: str = "en") -> str:
        """Return the problem as a sentence for the customer.

        A message of the service that the specification does not list stays as it was received. For texts of
        your own, use `code` and `params`.

        Args:
            language: ``en`` or ``it``, also with a region, such as ``it-IT``.

        Raises:
            ValueError: The language has no texts.

        Example:
            >>> problem = Problem("amount", "amount", "...", "amount.range", {"least": 5_000, "most": 90_000})
            >>> problem.text("en")
            'Enter an amount between 50.00 and 900.00 euros.'
        """
        return text_of(self.code, self.params, self.message, language)


def printable(problem: Problem) -> Problem:
    """Return a problem with ``***`` in place of texts of the service that the specification does not list."""
    name, _, rule = problem.code.rpartition(".")
    if rule != UNLISTED:
        return problem
    names: dict[str, Any] = {} if name or not problem.field else {"field": "***", "wire_name": "***"}
    return attrs.evolve(problem, message="***", **names)


def described(problem: Problem) -> str:
    """Return the message and the hint of a problem, to print them."""
    message = printable(problem).message
    return f"{message}; {problem.hint}" if problem.hint else message


class Problems(tuple[Problem, ...]):
    """A tuple of problems, which a notebook shows as a table.

    Example:
        >>> Problems() == ()
        True
    """

    __slots__ = ()

    def for_fields(self, names: Collection[str]) -> "tuple[dict[str, Problems], Problems]":
        """Return the problems to show beside the fields of a form, and those that need the shop's attention.

        The latter concern fields that the form does not have, such as ``privacy``, ``loan_finality`` or a
        setting. The shopper cannot correct them: log them together with `LoanError.entry`.

        Args:
            names: Names of the fields in the form, in Python or in the specification.

        Example:
            >>> import attrs
            >>> problems = client.check("RSSMRA", attrs.evolve(request, loan_finality=""))
            >>> beside, for_the_shop = problems.for_fields(["fiscal_code", "email"])
            >>> [*beside], [problem.field for problem in for_the_shop]
            (['fiscal_code'], ['loan_finality'])
        """
        beside: dict[str, list[Problem]] = {}
        others: list[Problem] = []
        for problem in self:
            known = form_names(problem.field, problem.wire_name)
            name = next((each for each in known if each in names), None)
            (others if name is None else beside.setdefault(name, [])).append(problem)
        return {name: Problems(found) for name, found in beside.items()}, Problems(others)

    def _repr_html_(self) -> str:
        return problems_table("problems" if self else "no problems", self)


def problems_table(title: str, problems: tuple[Problem, ...]) -> str:
    """Return an HTML table of fields, messages and codes for notebooks."""
    from loanasync._models import notebook  # noqa: PLC0415  (used in notebooks only)

    rows = [(each.field, described(each), each.code) for each in map(printable, problems)]
    return notebook.table(title, ("field", "message", "code"), rows)


@frozen(slots=False, eq=False, repr=False)  # created in each call, in half the time without slots
class Meta(ValueObject):
    """Metadata of a response or an error. It contains no personal data and can be logged.

    Args:
        status: HTTP status of the last response. For a decision resolved by a person: the status of the
            stored response, if any, else 201 for an approval and 422 for a refusal.
        attempts: Number of requests sent for this call; more than 1 only after a 500.
        elapsed: Seconds from the start of the call to its response, including all waits.
        trace_id: The trace id (32 hex digits) if a trace was recorded or propagated, else None.
        unread: Wire names of members whose type is outside spec §2. Their attributes are None, and ``raw``
            contains their values. ``body`` if the whole body could not be read.
        request_id: Request id of the service, from a response header such as ``X-Request-Id``.
        date: Response header ``Date``.
        retry_after: Response header ``Retry-After``.
        entry: Key of the call's entry in the ledger, None without a ledger.
        after_unknown: True if an earlier call for this approval has an unknown outcome.

    Example:
        >>> decision = run(client.approve(fiscal_code, request))
        >>> decision.meta.status, decision.meta.attempts, decision.meta.unread
        (201, 1, ())
    """

    status: int
    """HTTP status of the last response (spec §4), or of the decision that a person resolved."""
    attempts: int
    """Number of requests sent for this call; more than 1 only after a 500 (spec §7)."""
    elapsed: float
    """Seconds from the start of the call to its response, including all waits."""
    trace_id: str | None = None
    """The trace id (32 hex digits) if a trace was recorded or propagated."""
    unread: tuple[str, ...] = ()
    """Wire names of members whose type is outside the specification (spec §2)."""
    request_id: str | None = None
    """Request id of the service, from a response header."""
    date: str | None = None
    """Response header ``Date``."""
    retry_after: str | None = None
    """Response header ``Retry-After``."""
    entry: str | None = None
    """Key of the call's entry in the ledger."""
    after_unknown: bool = False
    """True if an earlier call for this approval has an unknown outcome."""


@frozen(eq=False, repr=False)
class RawResponse(MaskedPairs):
    """Status and body of a response as received. The body is personal data and masked in `repr()`.

    Args:
        status: HTTP status.
        body: The received bytes, at most 1 MiB. Incomplete if the connection broke.
        is_stray: True if it arrived on a used connection and does not name the customer of the call. It may
            be about the customer of an earlier request, so no ledger and no memory keeps its body.

    Example:
        >>> from loanasync import RawResponse
        >>> RawResponse(201, b"{")
        RawResponse(status=201, body=***, is_stray=False)
    """

    status: int
    """HTTP status (spec §4)."""
    body: bytes = field(repr=mask)
    """The received bytes (spec §2.1)."""
    is_stray: bool = False
    """True if it may be about the customer of an earlier request (spec §2.1)."""


# Without slots, because setting twenty frozen fields is three times faster that way. Only the subclasses need
# generated methods.
@frozen(kw_only=True, slots=False, init=False, eq=False, repr=False)
class _Echo(MaskedPairs):
    """Fields of both decisions (spec §2.1, response). A member that is missing in the body is None."""

    email: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1)."""
    last_name: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1, ``lastname``)."""
    first_name: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1, ``firstname``)."""
    fiscal_code: str | None = field(default=None, repr=mask)
    """The customer's fiscal code (spec §2.1)."""
    mobile_phone: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1)."""
    city: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1)."""
    address: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1)."""
    province: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1)."""
    postal_code: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1)."""
    street_number: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1, ``streetNumber`` or ``civicNumber``)."""
    citizenship: Citizenship | str | None = field(default=None, repr=mask)
    """As it was sent; an unknown value is a str (spec §2.1)."""
    iban: str | None = field(default=None, repr=mask)
    """As it was sent (spec §2.1)."""
    amount: int | None = None
    """Requested amount, euro cents (spec §2.1)."""
    net_amount: int | None = None
    """Amount that the shop receives on successful payment, euro cents (spec §2.1)."""
    instalments: int | None = None
    """Number of instalments (spec §2.1)."""
    zero_interest_rate: bool | None = None
    """True if the zero interest rate is enabled (spec §2.1)."""
    order_token: str | None = field(default=None, repr=mask)
    """Token of the order (spec §2.1)."""
    payment_day_of_month: int | None = None
    """Day of the month on which instalments are paid (spec §2.1)."""
    raw: Mapping[str, JSON] = field(
        default=EMPTY_BODY, converter=read_only, hash=False, repr=masked_unless(Body)
    )
    """The received body, read-only, including unknown members (spec §2.1)."""
    meta: Meta
    """Status, attempts, elapsed seconds and trace id (spec §4.1)."""

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "a decision has no truth value; use decision.approved, "
            "or match with case Approved() and case Refused()"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the whole decision as plain JSON values, to store it. The result contains personal data.

        It has the attributes under their Python names, `raw` and `meta` included. `from_dict` restores an
        equal decision. Objects and arrays in `raw` below 100 levels are stored as None, because `json.dumps`
        fails for deep ones.

        Example:
            >>> import json
            >>> decision = run(client.approve(fiscal_code, request))
            >>> stored = json.dumps(decision.to_dict())
            >>> Approved.from_dict(json.loads(stored)) == decision
            True
        """
        members = asdict(self, recurse=False)
        citizenship = None if self.citizenship is None else str(self.citizenship)  # not a member of an Enum
        meta = asdict(self.meta) | {"unread": list(self.meta.unread)}
        raw = cast("Body", self.raw).plain(MAX_LEVELS)
        return {**members, "citizenship": citizenship, "raw": raw, "meta": meta}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the decision that `to_dict` wrote, also in an older or newer version of this package.

        Unknown members are ignored. Missing members have their default, except those that every version
        writes, such as ``raw``, ``meta`` and ``redirect_url``. For a row of either kind, select the class
        first: ``kind = Approved if data["approved"] else Refused``.

        Raises:
            ValueError: ``data`` is not a mapping, is a part of a stored decision or the body in ``raw``, is a
                decision of the other kind, or a member has a wrong type, is an empty URL or contains NaN.
                The message contains no personal data.

        Example:
            >>> decision = run(client.approve(fiscal_code, request))
            >>> Approved.from_dict(decision.to_dict()).redirect_url == decision.redirect_url
            True
            >>> Approved.from_dict(dict(decision.raw))
            Traceback (most recent call last):
                ...
            ValueError: Approved.from_dict: the member raw is missing: pass the whole dict of to_dict()
        """
        members = _restored_members(cls, data)
        if isinstance(members, str):
            del data  # personal: must not be in the traceback
            raise ValueError(f"{cls.__name__}.from_dict: {members}")  # noqa: TRY004  (mostly wrong content)
        return cls(**members)


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class Approved(_Echo):
    """The service approved the loan (spec §3, 201). Redirect the customer to `redirect_url`.

    The service sends a decision only once, so store it before you do anything else. The fields of the request
    are returned under their names in `ApprovalRequest`. A field is None if its member is missing or has a
    type outside the specification; the latter are listed in ``meta.unread``.

    Args:
        redirect_url: URL that the customer must be redirected to (spec §1.3). It contains a token: do not
            log it. None if the service did not return one.
        amount: Requested amount, euro cents.
        net_amount: Amount that the shop receives on successful payment, euro cents.
        instalments: Number of instalments.
        zero_interest_rate: True if the zero interest rate is enabled.
        payment_day_of_month: Day of the month on which instalments are paid.
        raw: The received body, read-only, including unknown members.
        meta: Status, attempts, elapsed seconds and trace id.

    Example:
        >>> decision = run(client.approve(fiscal_code, request))
        >>> match decision:
        ...     case Approved(redirect_url=url):
        ...         print("redirect the customer:", url is not None)
        ...     case Refused():
        ...         print("offer another payment method")
        redirect the customer: True
    """

    approved: Literal[True] = field(default=True, init=False)
    """Always True (spec §3)."""
    redirect_url: str | None = field(default=None, repr=mask)
    """URL that the customer must be redirected to (spec §1.3). It contains a token: do not log it."""


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class Refused(_Echo):
    """The service refused the loan (spec §3, 422). A refusal is final: do not repeat the call.

    It has the fields of `Approved` except `redirect_url`.

    Example:
        >>> Refused(amount=45_000, meta=Meta(status=422, attempts=1, elapsed=0.2)).approved
        False
    """

    approved: Literal[False] = field(default=False, init=False)
    """Always False; a refusal is final (spec §3)."""


Decision: TypeAlias = Approved | Refused
"""Result of an approval, either `Approved` or `Refused` (spec §3)."""
DECISIONS = (Approved, Refused)  # for `isinstance`: `Approved | Refused` is a new object each time

OTHER_ORDER = "evaluated for another order"  # note of an approval that is lost and need not be resolved

KnownState: TypeAlias = Literal[
    "none", "released", "inflight", "unknown", "lost", "held", "approved", "refused", "erased"
]


@frozen(kw_only=True)
class Known:
    """The state of an approval in the ledger, or in the memory of the process (`LoanClient.known`).

    Args:
        state: ``none``: not requested. ``released``: requested and not evaluated. The other states are those
            of `loanasync.ledger.State`.
        decision: The decision, without echoed personal data from a ledger. None without a decision, or if it
            is not kept any more.
        entry: Key of the entry in the ledger, also of one that does not exist yet; None without a ledger.
        claimed: Time of the first request, if the ledger knows it.
        changed: Time at which the approval entered its state.
        expires: Time at which the lease of the last request expires, if the ledger knows it.
        note: The cause of the state, such as the name of an error class, or a person's own words.

    Example:
        >>> _ = run(client.approve(fiscal_code, request, order_id="A-1001"))
        >>> known = run(client.known(fiscal_code, order_id="A-1001"))
        >>> known.state, known.decision.amount, run(client.known(fiscal_code, order_id="A-1002")).state
        ('approved', 45000, 'none')
    """

    state: KnownState
    decision: Decision | None = None
    entry: str | None = None
    claimed: datetime | None = None
    changed: datetime | None = None
    expires: datetime | None = None
    note: str = ""


"""Result of an approval, either `Approved` or `Refused` (spec §3)."""


MAX_LEVELS = 100  # of the objects and arrays in a stored `raw`


_CITIZENSHIPS = frozenset(map(str, Citizenship))
# Types of stored members where they differ from those of the attributes.
_STORED_TYPES: dict[str, tuple[type, ...]] = {
    "approved": (bool,), "raw": (dict,), "meta": (dict,), "unread": (list, tuple), "elapsed": (float, int)
}  # fmt: skip


# Members that every version stores.
_ALWAYS_STORED = frozenset({"approved", "raw", "meta", "redirect_url", "status", "attempts", "elapsed"})


def _has_nan(body: JSON) -> bool:
    waiting = [body]
    while waiting:
        value = waiting.pop()
        if value != value:  # noqa: PLR0124  (only NaN)
            return True
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return False


# Stored values that no version has written, although they have the right type.
_IMPOSSIBLE: dict[str, Callable[[Any], bool]] = {
    "redirect_url": lambda url: url is not None and not url.strip(),
    "unread": lambda names: any(type(name) is not str for name in names),
    "elapsed": lambda seconds: not math.isfinite(seconds),
    "raw": _has_nan,
}


def _restored_members(kind: type, data: object) -> dict[str, Any] | str:
    """Return the arguments of a decision from `_Echo.to_dict`, or a sentence without personal data."""
    if not isinstance(data, Mapping):
        found = type(data).__name__
        return f"data must be the dict that to_dict() returned, not {found}; read a JSON text with json.loads"
    if data.get("approved") is (not issubclass(kind, Approved)):
        other = Refused if issubclass(kind, Approved) else Approved
        return f"approved is {data['approved']}: use {other.__name__}.from_dict for this decision"
    if unusable := _unusable_member(kind, data) or _unusable_member(Meta, data["meta"]):
        return unusable
    meta = data["meta"]
    members = {each.name: data[each.name] for each in fields(kind) if each.init and each.name in data}
    if members.get("citizenship") in _CITIZENSHIPS:
        members["citizenship"] = Citizenship(members["citizenship"])
    known = {each.name: meta[each.name] for each in fields(Meta) if each.name in meta}
    known["unread"] = tuple(known.get("unread", ()))
    return {**members, "raw": Body(data["raw"]).plain(MAX_LEVELS), "meta": Meta(**known)}


def _unusable_member(model: type, data: Mapping[str, Any]) -> str | None:
    """Return a sentence about the first stored member that is missing, or has a wrong type or value."""
    for each in fields(model):
        expected = _STORED_TYPES.get(each.name) or get_args(each.type) or (each.type,)
        if each.name not in data:
            if each.name in _ALWAYS_STORED:
                return f"the member {each.name} is missing: pass the whole dict of to_dict()"
            continue
        value = data[each.name]
        if type(value) not in expected:
            return f"the member {each.name} has the wrong type {type(value).__name__}"
        if each.name in _IMPOSSIBLE and _IMPOSSIBLE[each.name](value):
            return f"the member {each.name} has a value that to_dict never returns"
    return None
