"""Faults to plant into the SDK: each breaks one reading, and a count must change."""

from collections.abc import Callable
from itertools import count as numbers
from typing import Any

import pytest
from attrs import frozen

from loanasync import Approved, LoanError, Refused, UserData, errors
from loanasync._protocol import endpoints
from loanasync._protocol import error_bodies as problems
from loanasync._protocol.endpoints import APPROVE, COMPLETE, CREATE_REQUEST, UPLOAD_DOCUMENTS
from loanasync._protocol.json import Malformed, decode
from loanasync._protocol.messages import NoResponse, Response
from loanasync._runtime import flights, guard, retry, run
from loanasync.errors import (
    CannotCompleteError,
    DomainError,
    ServiceError,
    SystemFaultError,
    UnexpectedResponseError,
    UserNotFoundError,
)
from loanasync.ledger import Entry, State, keys, transitions
from loanasync.ledger.guard import LedgerClaim

__all__ = ["PLANTED", "Planted"]

Reader = Callable[[Any, Response, Any], Any]
Plant = Callable[[pytest.MonkeyPatch], None]


@frozen
class Planted:
    """One fault: its reading (R1 to R14), its name, and the function that plants it."""

    row: str
    name: str
    plant: Plant


PLANTED: list[Planted] = []


def planted(row: str, name: str) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        PLANTED.append(Planted(row, name, plant))
        return plant

    return register


def change(
    patch: pytest.MonkeyPatch, endpoint: Any, status: int, changed: Callable[[Reader], Reader]
) -> None:
    """Replace the reader of a status of an endpoint."""
    patch.setitem(endpoint.readers, status, changed(endpoint.readers[status]))


def dropped(call: Any, meta: Any) -> LoanError:
    """An error without the response."""
    return UnexpectedResponseError(call.endpoint.operation, ("planted",), "unknown", meta)


@planted("R1", "a 201 with approved false is dropped")
def _(patch: pytest.MonkeyPatch) -> None:
    def changed(read: Reader) -> Reader:
        def reader(call: Any, response: Response, meta: Any) -> Any:
            ended = read(call, response, meta)
            return dropped(call, meta) if isinstance(ended, Refused) else ended

        return reader

    change(patch, APPROVE, 201, changed)


@planted("R1", "a 201 that cannot be read is an approval")
def _(patch: pytest.MonkeyPatch) -> None:
    def changed(read: Reader) -> Reader:
        def reader(call: Any, response: Response, meta: Any) -> Any:
            ended = read(call, response, meta)
            return Approved(meta=meta) if isinstance(ended, LoanError) else ended

        return reader

    change(patch, APPROVE, 201, changed)


@planted("R1", "the received part of a 201 is not read")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(endpoints, "decode_part", lambda *_: [])


def refusing(patch: pytest.MonkeyPatch, when: Callable[[Response], bool]) -> None:
    def changed(read: Reader) -> Reader:
        def reader(call: Any, response: Response, meta: Any) -> Any:
            ended = read(call, response, meta)
            return Refused(meta=meta) if isinstance(ended, LoanError) and when(response) else ended

        return reader

    change(patch, APPROVE, 422, changed)


@planted("R2", "validation errors sent with 422 are a refusal")
def _(patch: pytest.MonkeyPatch) -> None:
    refusing(patch, lambda response: response.fault is None and response.body.startswith(b'{"errors"'))


@planted("R2", "a 422 that was cut off is a refusal")
def _(patch: pytest.MonkeyPatch) -> None:
    refusing(patch, lambda response: response.fault is not None)


@planted("R2", "a 422 that is not JSON is a refusal")
def _(patch: pytest.MonkeyPatch) -> None:
    refusing(patch, lambda response: b"\x00" in response.body)


@planted("R2", "a 422 is sent again")
def _(patch: pytest.MonkeyPatch) -> None:
    def is_repeated(response: Any) -> bool:
        return isinstance(response, Response) and response.status in (422, 500)

    patch.setattr(retry, "is_system_fault", is_repeated)
    patch.setattr(run, "is_system_fault", is_repeated)


@planted("R3", "a 409 proves that nothing was evaluated")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CannotCompleteError, "_proves_no_evaluation", True)


@planted("R4", "a 500 to the last attempt proves that nothing was evaluated")
def _(patch: pytest.MonkeyPatch) -> None:
    def release(error: Any) -> None:
        error.outcome = "not_evaluated"
        error.entry = error.meta.entry

    patch.setattr(SystemFaultError, "__attrs_post_init__", release)


@planted("R4", "an error after an earlier 500 proves that nothing was evaluated")
def _(patch: pytest.MonkeyPatch) -> None:
    def release(error: Any) -> None:
        error.outcome = "not_evaluated" if error._proves_no_evaluation else "unknown"
        error.entry = error.meta.entry

    patch.setattr(ServiceError, "__attrs_post_init__", release)


@planted("R4", "an unknown domain message proves that nothing was evaluated")
def _(patch: pytest.MonkeyPatch) -> None:
    def error_class(*arguments: Any, **options: Any) -> Any:
        found = problems.error_class(*arguments, **options)
        return UserNotFoundError if found is DomainError else found

    patch.setattr(endpoints, "error_class", error_class)


@planted("R4", "only the exact text means already evaluated, and others are released")
def _(patch: pytest.MonkeyPatch) -> None:
    def is_exact(members: Any) -> bool:
        return "User already evaluated for approval" in str(members)

    patch.setattr(problems, "is_already_evaluated", is_exact)
    patch.setattr(DomainError, "_proves_no_evaluation", True)


@planted("R4", "a 303 proves that nothing was evaluated")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(errors, "NOT_PROCESSED", frozenset({303}))


@planted("R4", "a missing connection after a 500 means that nothing was sent")
def _(patch: pytest.MonkeyPatch) -> None:
    def forgets(call: Any, last: Any, stopped_by: Any) -> Any:
        if isinstance(last, NoResponse):
            call._is_written = False
        return read(call, last, stopped_by)

    read = run.Run._read
    patch.setattr(run.Run, "_read", forgets)


@planted("R4", "an error of a later request releases an unknown outcome")
def _(patch: pytest.MonkeyPatch) -> None:
    def forget(error: ServiceError) -> None:
        error.outcome = "not_evaluated" if error._proves_no_evaluation else "unknown"

    patch.setattr(ServiceError, "__attrs_post_init__", forget)


@planted("R5", "a response that echoes another customer is dropped")
def _(patch: pytest.MonkeyPatch) -> None:
    def unexpected(call: Any, response: Response, reasons: Any, meta: Any, **options: Any) -> LoanError:
        if reasons == (endpoints._OTHER_CUSTOMER,):
            return dropped(call, meta)
        return _unexpected(call, response, reasons, meta, **options)

    _unexpected = endpoints._unexpected
    patch.setattr(endpoints, "_unexpected", unexpected)


@planted("R5", "the echo is not compared")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(endpoints, "belongs_to_another_customer", lambda *_: False)


@planted("R5", "masked codes and omocodia are another customer's")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        endpoints, "belongs_to_another_customer", lambda echoed, code: echoed is not None and echoed != code
    )


@planted("R6", "the scope of an order is ignored")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(keys, "scope_parts", lambda *_: ())


@planted("R7", "a completion must return all fields")
def _(patch: pytest.MonkeyPatch) -> None:
    def changed(read: Reader) -> Reader:
        def reader(call: Any, response: Response, meta: Any) -> Any:
            ended = read(call, response, meta)
            is_whole = isinstance(ended, UserData) and ended.document_code and ended.profession
            return ended if is_whole else dropped(call, meta)

        return reader

    change(patch, COMPLETE, 200, changed)


@planted("R7", "a date with a time is an error")
def _(patch: pytest.MonkeyPatch) -> None:
    def changed(read: Reader) -> Reader:
        def reader(call: Any, response: Response, meta: Any) -> Any:
            return dropped(call, meta) if b"T00:00" in response.body else read(call, response, meta)

        return reader

    change(patch, COMPLETE, 200, changed)


def requiring_an_object(patch: pytest.MonkeyPatch, endpoint: Any) -> None:
    def changed(read: Reader) -> Reader:
        def reader(call: Any, response: Response, meta: Any) -> Any:
            try:
                decode(response.body)
            except Malformed:
                return dropped(call, meta)
            return read(call, response, meta)

        return reader

    change(patch, endpoint, 201, changed)


@planted("R11", "a creation must return an object")
def _(patch: pytest.MonkeyPatch) -> None:
    requiring_an_object(patch, CREATE_REQUEST)


@planted("R11", "an upload must return an object")
def _(patch: pytest.MonkeyPatch) -> None:
    requiring_an_object(patch, UPLOAD_DOCUMENTS)


@planted("R12", "an error of privacy is not the creation's")
def _(patch: pytest.MonkeyPatch) -> None:
    def error_class(kind: Any, content: Any, *others: Any, **options: Any) -> Any:
        is_planted = "privacy" in str(content)
        return "planted" if is_planted else problems.error_class(kind, content, *others, **options)

    patch.setattr(endpoints, "error_class", error_class)


@planted("R14", "an approval with an empty redirect is dropped")
def _(patch: pytest.MonkeyPatch) -> None:
    def changed(read: Reader) -> Reader:
        def reader(call: Any, response: Response, meta: Any) -> Any:
            return (
                dropped(call, meta) if b'"redirectUrl": ""' in response.body else read(call, response, meta)
            )

        return reader

    change(patch, APPROVE, 201, changed)


@planted("once", "a double click is two requests")
def _(patch: pytest.MonkeyPatch) -> None:
    fresh = numbers()

    def set_digests(_: object, call: Any) -> None:
        call.customer = call.payload = next(fresh).to_bytes(16, "big")

    patch.setattr(flights.Flights, "_set_digests", set_digests)


@planted("once", "the memory forgets an unknown outcome")
def _(patch: pytest.MonkeyPatch) -> None:
    record = guard.ProcessGuard.record

    def forget(memory: Any, call: Any, state: str, kept: Any) -> None:
        if state == "unknown":
            memory.restore(call, None)
        else:
            record(memory, call, state, kept)  # type: ignore[arg-type]

    patch.setattr(guard.ProcessGuard, "record", forget)


@planted("once", "an unknown outcome in the ledger is sent again")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LedgerClaim, "_may_send_again", lambda _, entry: entry.state is State.UNKNOWN)


@planted("once", "a cancelled call gives its response up")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(flights.Flights, "_withdraw", lambda _, flight: flight.task.cancel())


@planted("once", "a decision that comes late does not land")
def _(patch: pytest.MonkeyPatch) -> None:
    def is_accepted(entry: Entry, token: str, _: object) -> bool:
        # A flow sets the ledger's clock forward by an hour, and takes less than a second itself.
        return entry.token == token and entry.state is State.INFLIGHT

    as_read = transitions.as_read
    settle = transitions.settle

    def settle_present_entry(entry: Entry | None, key: str, **options: Any) -> Entry | None:
        return settle(None if entry is None else as_read(entry), key, **options)

    patch.setattr(transitions, "_is_accepted", is_accepted)
    patch.setattr(transitions, "settle", settle_present_entry)
