"""Flows: sequences of calls for one customer, with faults."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from support.readings.shop import Shop

__all__ = ["FLOWS", "NEEDS_LEDGER", "Flow"]

Flow: TypeAlias = Callable[[Shop], Awaitable[None]]

Faults: TypeAlias = tuple[str, ...]


async def plain(shop: Shop, *, tag: str = "", faults: Faults = ()) -> None:
    """One approval, and the same call again."""
    shop.prepare()
    shop.faults(*faults)
    await shop.approve(tag)
    await shop.approve(tag)


async def field_error(shop: Shop, *, faults: Faults = ()) -> None:
    """A wrong field; the shop corrects it."""
    if faults == ("empty",) and shop.readings.validation == "422":
        return  # an empty 422 is read as a refusal (R2)
    shop.prepare()
    shop.faults(*faults)
    await shop.approve("invalid.city")
    await shop.approve()
    await shop.approve()


async def not_created(shop: Shop) -> None:
    """An approval of a customer whose request was not created yet."""
    await shop.approve()
    shop.prepare()
    await shop.approve()
    await shop.approve()


async def other_order(shop: Shop, *, order: str) -> None:
    """The same customer again, for another amount."""
    shop.prepare()
    await shop.approve()
    shop.prepare()
    await shop.approve(order=order, amount=70_000)
    await shop.approve(order=order, amount=70_000)
    await shop.approve()


async def double_click(shop: Shop, *, tag: str = "", clicks: int = 2, faults: Faults = ()) -> None:
    """Overlapping calls with the same data."""
    shop.prepare()
    shop.faults(*faults)
    await asyncio.gather(*(shop.approve(tag) for _ in range(clicks)))
    await shop.approve(tag)


async def double_click_changed(shop: Shop, *, order: str) -> None:
    """Overlapping calls with different data."""
    shop.prepare()
    await asyncio.gather(shop.approve(), shop.approve(order=order, amount=70_000))
    await shop.approve()


async def cancelled(call: "asyncio.Task[object]") -> None:
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call


async def cancelled_before_sending(shop: Shop) -> None:
    """The shopper leaves while the connection is made."""
    shop.prepare()
    gate = shop.hold_connection()
    call = shop.approving()
    await gate.arrived.wait()
    await cancelled(call)
    gate.go.set()
    await shop.settle_down()
    await shop.approve()
    await shop.approve()


async def cancelled_at_once(shop: Shop) -> None:
    """The shopper leaves before the request begins."""
    shop.prepare()
    call = shop.approving()
    await asyncio.sleep(0)
    await cancelled(call)
    await shop.settle_down()
    await shop.approve()


async def cancelled_after_sending(shop: Shop, *, tag: str = "", faults: Faults = ()) -> None:
    """The shopper leaves while the service works."""
    shop.prepare()
    shop.faults(*faults)
    gate = shop.hold_response()
    call = shop.approving(tag)
    await gate.arrived.wait()
    await cancelled(call)
    gate.go.set()
    await shop.settle_down()
    await shop.approve(tag)


async def cancelled_between_attempts(shop: Shop, *, fault: str) -> None:
    """The shopper leaves while the client waits for its retry."""
    shop.prepare()
    shop.faults(fault)
    gate = shop.clock.hold()
    call = shop.approving()
    await gate.arrived.wait()
    await cancelled(call)
    gate.go.set()
    await shop.settle_down()
    await shop.approve()


async def one_click_cancelled(shop: Shop) -> None:
    """Of two overlapping calls the first is cancelled."""
    shop.prepare()
    gate = shop.hold_response()
    first, second = shop.approving(), shop.approving()
    await gate.arrived.wait()
    await cancelled(first)
    gate.go.set()
    await second
    await shop.approve()


async def crash(shop: Shop, *, tag: str = "", is_late: bool = False) -> None:
    """A worker dies, or sleeps, between claim and settle; its message is delivered again."""
    shop.prepare()
    gate = shop.hold_response()
    call = shop.approving(tag)
    await gate.arrived.wait()
    shop.start_process()
    await shop.approve(tag)
    shop.let_leases_run_out()
    await shop.approve(tag)
    if is_late:  # it wakes up, and brings its decision
        gate.go.set()
        await call
    await shop.approve(tag)


async def restart(shop: Shop, *, tag: str = "", faults: Faults = ()) -> None:
    """The same approval in another process."""
    shop.prepare()
    shop.faults(*faults)
    await shop.approve(tag)
    shop.start_process()
    await shop.approve(tag)


async def decided_elsewhere(shop: Shop, *, tag: str = "", faults: Faults = ()) -> None:
    """Another system of the shop requested the decision."""
    shop.prepare()
    shop.decide_elsewhere(tag)
    shop.faults(*faults)
    await shop.approve()
    await shop.approve()


async def repeated_on_purpose(shop: Shop, *, faults: Faults) -> None:
    """The shop sends an approval again although its outcome is unknown."""
    shop.prepare()
    shop.faults(*faults)
    await shop.approve()
    await shop.approve(repeat_unknown=True)
    await shop.approve()


async def broken_ledger(
    shop: Shop, *, operation: str = "settle", tag: str = "", is_cancelled: bool = False
) -> None:
    """The ledger fails at an operation, and is repaired."""
    shop.prepare()
    gate = shop.hold_response()
    call = shop.approving(tag)
    if operation == "settle":
        await gate.arrived.wait()
    shop.break_ledger(operation)
    gate.go.set()
    await (cancelled(call) if is_cancelled else call)
    await shop.settle_down()
    await shop.approve(tag)
    shop.break_ledger()
    await shop.approve(tag)


async def cancelled_at_the_ledger(shop: Shop, *, operation: str) -> None:
    """The shopper leaves while the ledger writes."""
    shop.prepare()
    gate = shop.hold_ledger(operation)
    call = shop.approving()
    await gate.arrived.wait()
    await cancelled(call)
    gate.go.set()
    await shop.settle_down()
    await shop.approve()
    await shop.approve()


async def two_processes(shop: Shop, *, tag: str = "") -> None:
    """Two processes request one approval at once."""
    shop.prepare()
    gate = shop.hold_response()
    call = shop.approving(tag)
    await gate.arrived.wait()
    shop.start_process()
    await shop.approve(tag)
    gate.go.set()
    await call
    await shop.approve(tag)


async def repeat_beside_a_late_decision(shop: Shop, *, tag: str = "", is_first: bool = False) -> None:
    """The decision of the first request arrives while another process repeats it."""
    shop.prepare()
    late = shop.hold_response()
    first = shop.approving(tag)
    await late.arrived.wait()
    shop.let_leases_run_out()
    shop.start_process()
    gate = shop.hold_response()
    second = shop.approving(tag, repeat_unknown=True)
    await gate.arrived.wait()
    for opened, call in ((late, first), (gate, second)) if is_first else ((gate, second), (late, first)):
        opened.go.set()
        await call
    await shop.approve(tag)


async def wrong_creation(shop: Shop) -> None:
    """A member of the creation is wrong; the shop corrects it."""
    await shop.create(privacy=False)
    await shop.create(privacy="true", actualJobEndingDate="05/2024")
    await shop.approve()


async def whole(shop: Shop) -> None:
    """Creation, approval, documents and completion."""
    await shop.create()
    await shop.approve()
    await shop.upload_documents()
    await shop.complete()


async def completion(shop: Shop, *, faults: Faults = ()) -> None:
    """A completion that fails."""
    shop.prepare()
    await shop.upload_documents()
    shop.faults(*faults, operation="complete")
    await shop.complete()


async def completion_without_documents(shop: Shop) -> None:
    """A completion that is too early."""
    await shop.complete()
    await shop.create()
    await shop.complete()


async def prerequisite(shop: Shop, *, operation: str, fault: str) -> None:
    """A creation or an upload that fails."""
    shop.faults(fault, operation=operation)
    await shop.create()
    await shop.upload_documents()


BEFORE, AFTER = "500 before", "500 after"
SPOILED = ("cut", "cut early", "empty", "garbage")
LOST = ("reset before", "reset after", "silence before", "silence after", "no connection")
TAGS = {"approval": "", "refusal": "refused"}

# Flows that need a ledger.
NEEDS_LEDGER = ("repeat ", "broken ledger", "cancelled while")

FLOWS: dict[str, Flow] = {
    "approval": plain,
    "refusal": partial(plain, tag="refused"),
    "another customer": partial(plain, faults=("another customer",)),
    "another customer, refused": partial(plain, tag="refused", faults=("another customer",)),
    "another customer, cut": partial(plain, faults=("another customer, cut",)),
    "another customer, cancelled": partial(cancelled_after_sending, faults=("another customer",)),
    "field error": field_error,
    "user not found": not_created,
    "shop not allowed": partial(plain, tag="noshop"),
    "conflict": partial(plain, tag="conflict"),
    "conflict, refused": partial(plain, tag="conflict.refused"),
    "403": partial(plain, faults=("403 before",)),
    "303 after": partial(plain, faults=("303 after",)),
    "502 after": partial(plain, faults=("502 after",)),
    "500 before, once": partial(plain, faults=(BEFORE,)),
    "500 after, once": partial(plain, faults=(AFTER,)),
    "500 after, once, refused": partial(plain, tag="refused", faults=(AFTER,)),
    "500 before, always": partial(plain, faults=(BEFORE, BEFORE, BEFORE)),
    "500 after, always": partial(plain, faults=(AFTER, BEFORE, BEFORE)),
    "500 after, then 403": partial(plain, faults=(AFTER, "403 before")),
    "500 after, then no connection": partial(plain, faults=(AFTER, "no connection")),
    "500 after, then reset": partial(plain, faults=(AFTER, "reset before")),
    "500 before, then field error": partial(field_error, faults=(BEFORE,)),
    "500 before, then shop not allowed": partial(plain, tag="noshop", faults=(BEFORE,)),
    **{
        f"{fault}, {name}": partial(plain, tag=tag, faults=(fault,))
        for fault in SPOILED
        for name, tag in TAGS.items()
    },
    **{f"{fault}, field error": partial(field_error, faults=(fault,)) for fault in SPOILED},
    **{f"{fault}": partial(plain, faults=(fault,)) for fault in LOST},
    "double click": double_click,
    "double click, refused": partial(double_click, tag="refused", clicks=3),
    "double click, 500 before": partial(double_click, faults=(BEFORE,)),
    "double click, reset": partial(double_click, faults=("reset after",)),
    "double click, changed amount": partial(double_click_changed, order="first"),
    "double click, next order": partial(double_click_changed, order="second"),
    "cancelled at once": cancelled_at_once,
    "cancelled before sending": cancelled_before_sending,
    "cancelled after sending": cancelled_after_sending,
    "cancelled after sending, refused": partial(cancelled_after_sending, tag="refused"),
    "cancelled after sending, 500 after": partial(cancelled_after_sending, faults=(AFTER,)),
    "cancelled after sending, reset": partial(cancelled_after_sending, faults=("reset after",)),
    "cancelled between attempts, 500 before": partial(cancelled_between_attempts, fault=BEFORE),
    "cancelled between attempts, 500 after": partial(cancelled_between_attempts, fault=AFTER),
    "one click cancelled": one_click_cancelled,
    "crash": crash,
    "crash, refused": partial(crash, tag="refused"),
    "late decision": partial(crash, is_late=True),
    "late decision, refused": partial(crash, tag="refused", is_late=True),
    "restart": restart,
    "restart, refused": partial(restart, tag="refused"),
    "restart, 500 after": partial(restart, faults=(AFTER,)),
    "restart, conflict": partial(restart, tag="conflict"),
    "next order": partial(other_order, order="second"),
    "changed amount": partial(other_order, order="first"),
    "decided elsewhere": decided_elsewhere,
    "refused elsewhere": partial(decided_elsewhere, tag="refused"),
    "decided elsewhere, 500 before": partial(decided_elsewhere, faults=(BEFORE,)),
    "decided elsewhere, cut": partial(decided_elsewhere, faults=("cut",)),
    "repeated on purpose, reset before": partial(repeated_on_purpose, faults=("reset before",)),
    "repeated on purpose, reset after": partial(repeated_on_purpose, faults=("reset after",)),
    "repeated on purpose, 403": partial(repeated_on_purpose, faults=("reset after", "403 before")),
    "repeated on purpose, no connection": partial(
        repeated_on_purpose, faults=("reset after", "no connection")
    ),
    "broken ledger": broken_ledger,
    "broken ledger, refused": partial(broken_ledger, tag="refused"),
    "broken ledger, cancelled": partial(broken_ledger, is_cancelled=True),
    "broken ledger, claim": partial(broken_ledger, operation="claim"),
    "cancelled while claiming": partial(cancelled_at_the_ledger, operation="claim"),
    "cancelled while settling": partial(cancelled_at_the_ledger, operation="settle"),
    "two processes": two_processes,
    "two processes, refused": partial(two_processes, tag="refused"),
    "repeat beside a late decision": repeat_beside_a_late_decision,
    "repeat after a late decision": partial(repeat_beside_a_late_decision, is_first=True, tag="refused"),
    "creation, wrong field": wrong_creation,
    "creation to completion": whole,
    "completion, early": completion_without_documents,
    "completion, 500 before": partial(completion, faults=(BEFORE,)),
    "completion, 500 after": partial(completion, faults=(AFTER, BEFORE, BEFORE)),
    **{f"completion, {fault}": partial(completion, faults=(fault,)) for fault in (*SPOILED, "reset after")},
    **{
        f"{name}, {fault}": partial(prerequisite, operation=operation, fault=fault)
        for name, operation in (("creation", "create_request"), ("documents", "upload_documents"))
        for fault in ("cut", "empty", "garbage", AFTER, "reset after")
    },
}
