"""The three numbers that have to be zero, counted when a flow has ended."""

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import define, field

from loanasync import Approved, LoanError, Refused
from loanasync._protocol.messages import NoResponse, Response
from loanasync.errors import DecisionNotRecordedError
from loanasync.ledger import Entry, State
from support.raw_shop import CODE
from support.readings.service import CANCELLED, Exchange, Log, members_of
from support.readings.shop import Shop

__all__ = ["Numbers", "count"]

# spec §7, the messages that prove that nothing was evaluated
_RELEASABLE = ("User not found", "This sales point cannot apply for a loan")


@define
class Numbers:
    """Descriptions of violations, by count."""

    evaluations: list[str] = field(factory=list)
    lost: list[str] = field(factory=list)
    wrong: list[str] = field(factory=list)

    @property
    def figures(self) -> tuple[int, int, int]:
        return len(self.evaluations), len(self.lost), len(self.wrong)

    def add(self, other: "Numbers", where: str = "") -> None:
        for mine, others in (
            (self.evaluations, other.evaluations),
            (self.lost, other.lost),
            (self.wrong, other.wrong),
        ):
            mine.extend(f"{where} | {each}" if where else each for each in others)


async def count(shop: Shop) -> Numbers:
    """Count the violations after a flow."""
    entries = await shop.entries()
    return Numbers(list(_evaluations(shop)), list(_lost(shop, entries)), list(_wrong(shop, entries)))


def _evaluations(shop: Shop) -> Iterator[str]:
    for key, number in shop.service.evaluations.items():
        for _ in range(number - 1):
            yield f"an evaluation beyond one, order {key[1]!r}"


def _lost(shop: Shop, entries: list[tuple[str, Entry]]) -> Iterator[str]:
    for log in shop.calls:
        for exchange in log.exchanges:
            if log.operation != "approve" or _decision(exchange) is None:
                continue
            members = exchange.members
            ends = [each.end for each in shop.calls if each.order == log.order]
            kept = [entry for order, entry in entries if order == log.order]
            if not any(_holds(end, members) for end in ends) and not any(
                _is_kept(entry, members) for entry in kept
            ):
                yield f"{_decision(exchange)} did not reach the shop"
            elif shop.has_working_ledger and not any(_is_kept(entry, members) for entry in kept):
                yield f"{_decision(exchange)} is not in the ledger"


def _decision(exchange: Exchange) -> str | None:
    """Return the decision that a whole response stated (spec §3), for any customer."""
    approved = exchange.members.get("approved")
    if not isinstance(exchange.response, Response) or exchange.response.status not in (201, 422):
        return None
    if type(approved) is not bool or (approved and exchange.response.status == 422):
        return None
    return "approved" if approved else "refused"


def _holds(end: object, members: Mapping[str, Any]) -> bool:
    if isinstance(end, DecisionNotRecordedError):
        end = end.decision
    if isinstance(end, Approved | Refused):
        redirect = end.redirect_url if isinstance(end, Approved) else None
        return end.approved is members["approved"] and redirect == (members.get("redirectUrl") or None)
    response = getattr(end, "response", None)
    return response is not None and members_of(response.body) == members


def _is_kept(entry: Entry, members: Mapping[str, Any]) -> bool:
    kept = members_of(entry.body or b"")
    wanted = ("approved", "redirectUrl")
    return all(kept.get(name) == members.get(name) for name in wanted)


def _wrong(shop: Shop, entries: list[tuple[str, Entry]]) -> Iterator[str]:
    for log in shop.calls:
        if log.end is not CANCELLED:
            outcome = _outcome(log.end)
            wrong = _wrong_approval if log.operation == "approve" else _wrong_other
            yield from (f"{log.operation}: {each}" for each in wrong(shop, log, outcome))
            if log.exchanges and (expected := _expected(log)) not in (None, outcome):
                if log.is_repeat_allowed and outcome in ("approved", "refused", "unknown"):
                    continue  # the outcome of the first request counts, too
                fault = log.exchanges[-1].fault or "no fault"
                yield f"{log.operation}: {outcome}, not {expected}, after {fault}"
    for order, entry in entries:
        truth = shop.service.decisions.get(shop.service.key(CODE, order))
        if entry.state is State.RELEASED and truth is not None:
            yield "the entry is released, and the service has decided"
        if entry.state.is_decided and truth is not (entry.state is State.APPROVED):
            yield f"the entry is {entry.state}, and the service did not decide so"


def _outcome(end: object) -> str:
    if isinstance(end, Approved | Refused):
        return "approved" if end.approved else "refused"
    return end.outcome if isinstance(end, LoanError) else "done"


def _wrong_approval(_: Shop, log: Log, outcome: str) -> Iterator[str]:
    if outcome in ("approved", "refused") and log.truth is not (outcome == "approved"):
        yield f"{outcome}, and the service did not decide so"
    is_repeatable = isinstance(log.end, LoanError) and log.end.repeatable
    if log.truth is not None and (is_repeatable or outcome in ("not_sent", "not_evaluated")):
        yield f"{outcome}, repeatable: {is_repeatable}, and the service has decided"
    if outcome == "not_sent" and any(each.is_sent for each in log.exchanges):
        yield "not_sent, and a request was sent"


def _wrong_other(shop: Shop, log: Log, outcome: str) -> Iterator[str]:
    if outcome == "done" and not shop.service.has_done(log.operation):
        yield "done, and the service did nothing"
    if isinstance(log.end, LoanError) and _is_success(log):
        yield "an error, after a success that can be read"
    if outcome not in ("done", "unknown") and any(each.is_done for each in log.exchanges):
        yield f"{outcome}, and the service did it"


def _is_success(log: Log) -> bool:
    """Return True if the last response is a success, with any JSON value or an empty body."""
    last = log.exchanges[-1] if log.exchanges else Exchange()
    is_whole = isinstance(last.response, Response) and last.response.fault is None and last.fault != "garbage"
    return is_whole and isinstance(last.response, Response) and last.response.status < 300


def _expected(log: Log) -> str | None:
    """Return the outcome of a call's last response by R1 to R4, or None if they do not define it."""
    last = log.exchanges[-1]
    response = last.response
    if response is None:
        return None
    is_first = len(log.exchanges) == 1  # only a 500 is followed by another attempt
    if isinstance(response, NoResponse):
        return "not_sent" if is_first and not response.is_sent else "unknown"
    if log.operation == "approve":
        if response.status in (201, 422):
            return _expected_decision(last, response)
    elif response.status < 300:
        return "done" if log.operation == "complete" or _is_success(log) else None
    elif "domain" in last.members.get("errors", ()):
        return None  # in any wording or language: these calls evaluate no customer
    return "not_evaluated" if is_first and _is_released(last, response) else "unknown"


def _expected_decision(exchange: Exchange, response: Response) -> str:
    if exchange.fault.startswith("another customer"):
        return "unknown"
    if (decision := _decision(exchange)) is not None:
        return decision
    if response.status == 422 and not response.body:
        return "refused"
    seen = {201: (b'"approved": true', "approved"), 422: (b'"approved": false', "refused")}
    text, decision = seen[response.status]
    return decision if response.fault is not None and text in response.body else "unknown"


def _is_released(exchange: Exchange, response: Response) -> bool:
    if response.status == 403:
        return True
    errors = exchange.members.get("errors")
    if response.status != 400 or not isinstance(errors, dict):
        return False
    return "domain" not in errors or any(text in _RELEASABLE for text in errors["domain"])
