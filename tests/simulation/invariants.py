"""The promises of the package, each checked against what the service of the world really did.

sent-once       A request is written only if no earlier request for the approval may have been evaluated,
                unless a caller or a person permitted another one after an unknown outcome.
one-order       The first request for an order is written only if no other order of the customer is in flight
                or has an unknown outcome.
attempts        Within a call, a request follows only a 500, at most as often as the policy says, and only
                while a caller waits.
not-evaluated   ``not_sent``, ``not_evaluated`` and RELEASED imply that the service evaluated nothing.
kept            A decision that reached a living process was returned, or is stored, or is in an orphan file.
                It is there if an error names the file.
truth           A decision that was returned or stored is the service's decision about this customer.
bounded         Each call ends in its time; afterwards no task, timer, slot or entry in flight is left.
private         No personal value is printed.
fresh           No request is written to a connection that a healthy server closes because it was idle.
"""

import json
from itertools import takewhile
from math import inf
from typing import TYPE_CHECKING

from loanasync.errors import DecisionNotRecordedError, InFlightError, PayloadMismatchError
from loanasync.ledger import Entry, State
from loanasync.ledger.model import DECIDED
from simulation.record import Call, Key, Write
from simulation.service import CODES, PAGE, PERSONAL
from simulation.world import EPOCH

if TYPE_CHECKING:
    from simulation.actors import Actors
    from simulation.world import World

_MEMORY = 3600.0  # seconds for which a client without a ledger remembers
_MARGIN = 1.0  # seconds
_FAULT = 500
_STATUSES_OF_DECISIONS = (201, 422)


def check_write(world: "World", write: Write) -> None:
    """Check that the request may be written now."""
    record, setup = world.record, world.plan.setup
    if (other := _open_order(world, write)) is not None:
        record.violate("one-order", f"a request for {write.key}, although {other} is open")
    earlier = [each for each in record.writes if each.guard == write.guard and each.key == write.key]
    doubtful = [each for each in earlier if not each.proves]
    if not setup.has_ledger:
        doubtful = [each for each in doubtful if world.now - (each.ended or world.now) < _MEMORY]
    if not doubtful:
        return
    last = earlier[-1]
    if last.ended is None and last.process.killed_at is None and last.process.frozen_at < last.at:
        record.violate("sent-once", f"two requests for {write.key} at the same time")
        return
    follows_fault = last.received == _FAULT and last.process is write.process
    if not (follows_fault and _is_retry(world, write, earlier)) and not _permit(world, write, last):
        name = "attempts" if follows_fault else "sent-once"
        record.violate(name, f"request {len(earlier) + 1} for {write.key}, after {last.behaviour!r}")


def _open_order(world: "World", write: Write) -> Key | None:
    """Return another order of the customer that is open, so that it stops this one (readings.md R6)."""
    record, setup = world.record, world.plan.setup
    if any(each.key == write.key for each in record.writes):
        return None  # a retry, which began before the other order, or was permitted
    before = world.now - (3 * setup.patience + _MARGIN if setup.has_ledger else 0.0)
    others = {
        each.key: each
        for each in record.writes
        if each.guard == write.guard and each.key != write.key and each.key.is_of_customer(write.key)
    }
    for key, last in others.items():
        is_old = not setup.has_ledger and world.now - (last.ended or world.now) >= _MEMORY
        is_closed = last.proves or last.received in _STATUSES_OF_DECISIONS or last.says_decided or is_old
        is_closed |= key in record.resolved or any(
            each.key == key and each.said in ("approved", "refused") for each in record.calls
        )
        if not is_closed and last.at < before:
            return key
    return None


def _is_retry(world: "World", write: Write, earlier: list[Write]) -> bool:
    """Return True if a call still waits, and its policy allows another request after these."""
    last = earlier[-1]
    mine = (write.process, write.guard, write.key)
    own = [each for each in world.record.calls if (each.process, each.guard, each.key) == mine]
    # A caller that sent nothing, gave up waiting, or had other data, has not received the response.
    answered = [
        each
        for each in own
        if each.started <= last.at
        and each.said not in (None, "not_sent")
        and not isinstance(each.result, InFlightError | PayloadMismatchError)
    ]
    if any((last.ended or inf) <= (each.ended or 0.0) for each in answered):
        return False  # a call has ended with this response: its outcome is unknown from then on
    ends = [each.ended for each in own if each.ended is not None and each.said not in (None, "not_sent")]

    def belongs_to_this_call(each: Write) -> bool:
        is_earlier = any((each.ended or inf) <= end <= last.at for end in ends)
        return each.received == _FAULT and each.process is write.process and not is_earlier

    faults = takewhile(belongs_to_this_call, reversed(earlier))
    return len(list(faults)) < world.plan.setup.attempts and any(_waits(world, each) for each in own)


def _waits(world: "World", call: Call) -> bool:
    """Return True if a call waits, or has left when nothing could stop its request any more.

    With Python 3.11, aiohttp writes in a separate task, which begins one iteration of the event loop after
    `ClientSession.request` has found its connection. Cancelling the request in this iteration does not stop
    that task. So the request counts as sent already, and its response is read.
    """
    left_too_late = world.plan.setup.network == "session" and call.ended == world.now
    return call.ended is None or left_too_late


def _permit(world: "World", write: Write, last: Write) -> bool:
    """Use the permission of a caller to send again."""
    record = world.record
    if last.says_decided:
        return False  # no caller can permit another request
    calls = [each for each in record.calls if (each.guard, each.key) == (write.guard, write.key)]
    for call in calls:
        # If the caller that permitted it was cancelled, the callers that had joined it continue its request.
        has_joined = any(_waits(world, each) and each.started <= (call.ended or 0.0) for each in calls)
        if call.repeats_unknown and (_waits(world, call) or (call.said is None and has_joined)):
            call.repeats_unknown = False
            return True
    return False


def check_end(world: "World", actors: "Actors") -> None:
    """Check everything that must hold at the end of a schedule."""
    entries = actors.entries()
    _check_outcomes(world)
    _check_kept(world, actors, entries)
    _check_truth(world, entries)
    _check_times(world)
    _check_nothing_left(world, actors, entries)
    check_private(world)
    for text in world.record.stray:
        world.record.violate("bounded", f"an error was only logged by asyncio: {text}")


def _check_outcomes(world: "World") -> None:
    record = world.record
    for call in record.calls:
        if call.said not in ("not_sent", "not_evaluated") or call.ended is None:
            continue
        others = [
            each
            for each in record.calls
            if each is not call
            and (each.guard, each.key) == (call.guard, call.key)
            and each.started <= call.ended
            and (each.ended is None or each.ended >= call.started)
        ]
        written = [
            each
            for each in record.writes
            if (each.guard, each.key) == (call.guard, call.key) and call.started <= each.at <= call.ended
        ]
        if others:
            continue
        if written and call.said == "not_sent":
            record.violate("not-evaluated", f"{call.key}: a written request was reported as not sent")
        elif any(each.evaluated for each in written):
            record.violate("not-evaluated", f"{call.key}: an evaluated request was reported as not evaluated")
    for key, claimed, at in record.released:
        for write in record.writes:
            if write.key == key and write.evaluated and claimed - EPOCH <= write.at <= at:
                record.violate("not-evaluated", f"{key}: an evaluated request was released")


def _check_kept(world: "World", actors: "Actors", entries: dict[Key, list[Entry]]) -> None:
    record, orphans = world.record, actors.orphans()
    patience = 3 * world.plan.setup.patience + _MARGIN
    for write in record.writes:
        if write.approved is None or write.ended is None:
            continue
        if not world.plan.setup.has_ledger and actors.has_closed(write.process):
            continue
        killed = write.process.killed_at
        since = max(write.ended, write.process.frozen_until)  # a frozen process could not store it
        if killed is not None and (not world.plan.setup.has_ledger or killed - since < patience):
            continue
        if write.ended <= actors.server.replaced_at < inf:
            continue  # the ledger had it
        outcome = "approved" if write.approved else "refused"
        calls = [each for each in record.calls if (each.guard, each.key) == (write.guard, write.key)]
        is_returned = any(each.said == outcome and not _names_file(each.result) for each in calls)
        is_stored = any(each.state in DECIDED for each in entries.get(write.key, []))
        if not (is_returned or is_stored or write.key in orphans):
            record.violate("kept", f"the decision about {write.key} is lost")


def _names_file(result: object) -> bool:
    """Return True for an error that says which orphan file has its decision."""
    return isinstance(result, DecisionNotRecordedError) and result.file is not None


def _check_truth(world: "World", entries: dict[Key, list[Entry]]) -> None:
    record, decisions = world.record, world.service.decisions
    for call in record.calls:
        decided = decisions.get(call.key)
        if call.said in ("approved", "refused") and (
            decided is None or decided.approved is not (call.said == "approved")
        ):
            record.violate(
                "truth", f"the call for {call.key} returned {call.said!r}, not the decision of the service"
            )
        if getattr(call.decision, "fiscal_code", None) not in (None, CODES[call.key.customer]):
            record.violate("truth", f"the call for {call.key} returned the data of another customer")
        if getattr(call.decision, "amount", None) not in (None, 46_000 if call.other_data else 45_000):
            record.violate("truth", f"the call for {call.key} returned a decision about other data")
        redirect = getattr(call.decision, "redirect_url", None)
        if redirect not in (None, f"{PAGE}{call.key.customer}{call.key.order}"):
            record.violate("truth", f"{call.key} was sent to the page of another customer")
    for key, found in entries.items():
        decided = decisions.get(key)
        for entry in found:
            is_true = decided is not None and decided.approved is (entry.state is State.APPROVED)
            if entry.state in DECIDED and not is_true:
                record.violate(
                    "truth", f"the entry of {key} is {entry.state}, which the service did not decide"
                )


def _check_times(world: "World") -> None:
    record = world.record
    for call in record.calls:
        if call.process.killed_at is not None or (call.kind == "left row" and call.ended is None):
            continue
        if call.ended is None:
            record.violate("bounded", f"a call for {call.key} never ended ({call.kind})")
        elif call.bound is None or call.process.frozen_at >= call.started:
            continue
        elif (seconds := call.ended - call.started) > call.bound + _MARGIN:
            record.violate("bounded", f"a call for {call.key} took {seconds:.1f} s")


def _check_nothing_left(world: "World", actors: "Actors", entries: dict[Key, list[Entry]]) -> None:
    record = world.record
    for process in [each for each in world.processes if each.killed_at is None]:
        if left := process.tasks_left():
            names = sorted({getattr(task.get_coro(), "__qualname__", "?") for task in left})
            record.violate("bounded", f"{process.name} has tasks left: {', '.join(names)}")
        elif process.loop.timers:
            record.violate("bounded", f"{process.name} has {process.loop.timers} timers left")
    is_undisturbed = all(each.killed_at is None and each.frozen_at < 0 for each in world.processes)
    is_undisturbed = is_undisturbed and not world.plan.setup.mistake
    # A client that was closed while the ledger hung could not undo its claim.
    is_undisturbed = is_undisturbed and not any(map(actors.has_closed, world.processes))
    for key, found in entries.items():
        states = {entry.state for entry in found}
        if State.INFLIGHT in states:
            record.violate("bounded", f"the entry of {key} stays in flight")
        elif (
            State.UNKNOWN in states and is_undisturbed and not any(each.key == key for each in record.writes)
        ):
            record.violate("bounded", f"the entry of {key} is unknown, although nothing was sent")


def check_private(world: "World") -> None:
    """Check that nothing personal was printed."""
    everything = "\n".join(world.record.printed)
    for value in PERSONAL:
        if value in everything:
            at = everything.index(value)
            around = everything[max(0, at - 80) : at]
            world.record.violate("private", f"a personal value is printed after {json.dumps(around)}")
            return
