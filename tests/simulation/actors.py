"""Programs with clients, their callers, a queue, and people: they perform the actions of a schedule."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import cache, partial
from math import inf
from pathlib import Path
from traceback import walk_tb
from typing import Any, Literal

from attrs import evolve

from loanasync import ApprovalRequest, CircuitBreaker, LoanClient, RetryPolicy, Telemetry, Timeout, errors
from loanasync._runtime.flights import Memory
from loanasync.bulk import Row
from loanasync.ledger import Entry, LedgerPolicy, import_orphans, sweep
from loanasync.ledger.administration import rotate_key
from loanasync.ledger.keys import Approval, places_of
from loanasync.ledger.orphans import Orphan, orphan_files
from loanasync.testing import approval_request, user_data
from loanasync.worker import handle, message
from simulation.effects import ReversingCipher, Tracers
from simulation.network import SeamTransport
from simulation.plan import Action, Setup
from simulation.record import Call, Key
from simulation.service import CODES, EMAIL, PROBES, TOKEN
from simulation.store import Server, SimulatedLedger
from simulation.world import Process, World

_PACKAGE = "loanasync"
KEY, NEW_KEY = b"the ledger's key", b"its key after a rotation"
_REDELIVERY = 5.0  # seconds until the queue delivers a message again that was put back
_PATIENCE = 60.0  # seconds for work of a person
_VISIBILITY = 90.0  # seconds until it delivers a message again that was not acknowledged
_DELIVERIES = 6
_STRICT = CircuitBreaker(unknown=1, pause=5.0)
_RECOVERY = 30.0  # seconds in which a strict circuit breaker must let all callers try, after all faults
_DIGESTS: dict[object, list[str]] = {}  # keys of entries, which take long to compute
_QUEUE = {0.0: 10, 0.03: 2, 4.0: 1, 20.0: 1}  # seconds until a message, or its copy, is delivered
_ACKNOWLEDGEMENT = {"arrives": 12, "is lost": 1}


@cache
def request_of(order: int, *, other_data: bool) -> ApprovalRequest:
    """Return the order that is sent for a customer."""
    return approval_request(
        amount=46_000 if other_data else 45_000,
        email=EMAIL,
        last_name="Zzlastname",
        first_name="Zzfirstname",
        mobile_phone="3339990001",
        order_token=_order(Key("", "", order)) or None,
    )


def _order(key: Key) -> str:
    return f"order-{key.order}" if key.order else ""


def policy_of(setup: Setup, folder: Path, *, is_wrong: bool = False) -> LedgerPolicy:
    """Return the policy of the programs, or that of a program with the mistake of the schedule."""
    mistake = setup.mistake if is_wrong else ""
    encrypts = setup.encrypts and mistake != "no cipher"
    key = NEW_KEY if setup.rotates else KEY
    return LedgerPolicy(
        key=b"the key of others" if mistake == "other key" else key,
        old_keys=(KEY,) if setup.rotates else (),
        encrypt=ReversingCipher() if encrypts else None,
        orphan_folder=folder,
        patience=setup.patience,
        wait=setup.wait,
    )


def service_of(setup: Setup, *, is_wrong: bool = False) -> str:
    """Return the base URL of the programs, or that of a program with the mistake of the schedule."""
    url = "https://loans.example.com" if setup.network == "seam" else "http://127.0.0.1:8400"
    return f"{url}/other" if is_wrong and setup.mistake == "other service" else url


class Program:
    """A process with clients. All programs share the ledger."""

    def __init__(self, actors: "Actors", index: int, name: str) -> None:
        world, setup = actors.world, actors.world.plan.setup
        self.index = index
        self.process = Process(world, name)
        self.is_closed = False
        self.ledger: Any = None
        if setup.ledger == "memory":
            self.ledger = actors.server.ledger
        elif setup.ledger == "server":
            self.ledger = SimulatedLedger(self.process, actors.server)
        self.process.guard = self.guard
        is_wrong = index == 1
        policy = policy_of(setup, actors.folder, is_wrong=is_wrong)
        with world.entered(self.process):
            self._memory = Memory()  # of the process
            self.clients = [self._client(actors, policy) for _ in range(setup.clients)]

    @property
    def guard(self) -> str:
        """The name of what remembers the approvals of the clients."""
        return self.process.name if self.ledger is None else "all programs"

    def _client(self, actors: "Actors", policy: LedgerPolicy) -> LoanClient:
        setup = actors.world.plan.setup
        options: dict[str, Any] = {"direct_connections": setup.network == "direct"}
        if setup.network == "seam":
            options = {"transport": partial(SeamTransport, self.process, self.guard)}
        if self.ledger is not None:
            options |= {"ledger": self.ledger, "ledger_policy": policy}
        if setup.records_spans:
            options["telemetry"] = Telemetry(tracer_provider=Tracers())
        client = LoanClient(
            service_of(setup, is_wrong=self.index == 1),
            shop_id="shop-1",
            auth_token=TOKEN,
            timeout=Timeout(total=setup.total, attempt=setup.attempt, connect=3.0),
            retry=RetryPolicy(attempts=setup.attempts),
            max_concurrency=setup.slots,
            breaker=_STRICT if setup.is_breaker_strict else CircuitBreaker(),
            **options,
        )
        client._is_for_tests = True  # a worker accepts its MemoryLedger, which outlives the process
        client._flights.shared = self._memory  # also with `transport=`
        return client


class Actors:
    """Performs the actions of a schedule."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        setup = world.plan.setup
        self._own_folder = folder / f"{world.plan.seed}"
        self.folder = self._own_folder
        if setup.has_ledger and not setup.has_orphan_folder:
            occupied = folder / "a file"
            occupied.touch()
            self.folder = occupied / "no folder"
        self.server = Server(world)
        if setup.has_ledger:
            self.server.create(service_of(setup), policy_of(evolve(setup, rotates=False), self.folder))
        self._calls_before_probes = 0
        self._starts: Counter[int] = Counter()
        self._acknowledged: set[int] = set()
        self._deliveries: Counter[int] = Counter()
        self.programs = [self._start(index) for index in range(setup.programs)]
        self._all = list(self.programs)
        uncreated = {action.customer for action in world.plan.actions if action.kind == "create"}
        world.service.created.update(set(CODES) - uncreated)

    def _start(self, index: int) -> Program:
        self._starts[index] += 1
        count = self._starts[index]
        return Program(self, index, f"program {index + 1}{'' if count == 1 else f' (start {count})'}")

    # What is left at the end

    def has_closed(self, process: Process) -> bool:
        """Return True if the clients of a process were closed before the end."""
        return any(each.process is process and each.is_closed for each in self._all)

    def entries(self) -> dict[Key, list[Entry]]:
        """Return the entries of the ledger, as they are now, by approval."""
        found: dict[Key, list[Entry]] = {}
        for digest, entry in self.server.stored().items():
            if (key := self.server.keys.get(digest)) is not None:
                found.setdefault(key, []).append(entry)
        return found

    def orphans(self) -> set[Key]:
        """Return the approvals with a decision in an orphan file."""
        found = set()
        for file in orphan_files(self.folder) if self.folder.is_dir() else ():
            orphan = Orphan.from_json(file.read_bytes())
            if orphan.settlement.state.is_decided:
                found.add(self.server.keys[orphan.key])
        return found

    def delete_files(self) -> None:
        """Delete the orphan files."""
        if self._own_folder.is_dir():
            shutil.rmtree(self._own_folder)

    # Actions

    def perform(self, action: Action) -> None:
        """Begin an action."""
        program = self._program(action.program)
        if program is None:
            return
        method = getattr(self, f"_{action.kind}")
        method(program, action, action.options)

    def _program(self, index: int) -> Program | None:
        order = [*self.programs[index:], *self.programs[:index]]
        running = [each for each in order if each.process.can_run and not each.is_closed]
        return running[0] if running else None

    def _client(self, program: Program, options: dict[str, Any]) -> LoanClient:
        client: LoanClient = program.clients[options.get("client", 0)]
        shop = options.get("shop")
        return client if shop is None else client.with_options(shop_id=shop, auth_token=TOKEN)

    def _key(self, customer: str, options: dict[str, Any]) -> Key:
        return Key(options.get("shop", "shop-1"), customer, options.get("order", 0))

    def _new_call(self, kind: str, program: Program, customer: str, options: dict[str, Any]) -> Call:
        world = self.world
        key = self._key(customer, options)
        call = Call(
            number=len(world.record.calls) + 1,
            kind=kind,
            process=program.process,
            guard=program.guard,
            key=key,
            started=world.now,
            repeats_unknown=kind == "approve" and options.get("repeat_unknown", False),
            client=options.get("client", 0),
            other_data=options.get("other_data", False),
        )
        world.record.calls.append(call)
        if program.ledger is not None:
            self.server.keys |= dict.fromkeys(self._digests(key), key)
        return call

    def _digests(self, key: Key) -> list[str]:
        """Return the keys of an entry, before and after a rotation."""
        if key not in _DIGESTS:
            approval = Approval(key.shop, CODES[key.customer], _order(key))
            places = places_of(approval, (KEY, NEW_KEY))
            _DIGESTS[key] = [place.key for place in places]
        return _DIGESTS[key]

    def _start_call(
        self, program: Program, calls: list[Call], work: Coroutine[Any, Any, None], options: dict[str, Any]
    ) -> None:
        task = program.process.start(work)

        def end(_: object) -> None:
            if not (self.world.is_over or task.cancelled() or task.exception() is None):
                self.world.record.stray.append(f"a call failed ({type(task.exception()).__name__})")
            for call in calls:
                if call.kind == "bulk":  # the run has left its rows, whose calls go on
                    call.kind = "left row"
                elif call.ended is None and not self.world.is_over:  # it was cancelled before it began
                    self._end(call)

        def cancel() -> None:
            if not task.done():
                self.world.note(program.process, f"call {calls[0].number} is cancelled")
                calls[0].is_cancelled = True
                task.cancel()

        task.add_done_callback(end)

        if (count := options.get("cancel_after_iterations")) is not None:
            program.process.after_iterations(count, cancel)
        if (seconds := options.get("cancel_after")) is not None:
            program.process.later(seconds, cancel)

    def _approve(self, program: Program, action: Action, options: dict[str, Any]) -> None:
        setup = self.world.plan.setup
        call = self._new_call("approve", program, action.customer, options)
        total, attempt = options.get("total", setup.total), options.get("attempt", setup.attempt)
        call.bound = total + 2 * setup.patience
        if setup.is_breaker_strict and not self.world.has_faults:
            call.bound += _RECOVERY
        extra = " with other data" if options.get("other_data") else ""
        repeat = ", although the outcome is unknown" if call.repeats_unknown else ""
        self.world.note(program.process, f"call {call.number}: approve {call.key}{extra}{repeat}")
        timeout = Timeout(total=total, attempt=attempt, connect=3.0)
        client = self._client(program, options)
        self._start_call(program, [call], self._call(call, client, options, timeout), options)

    async def _call(self, call: Call, client: LoanClient, options: dict[str, Any], timeout: Timeout) -> None:
        request = request_of(call.key.order, other_data=options.get("other_data", False))
        approve = partial(
            client.approve,
            CODES[call.key.customer],
            request,
            order_id=_order(call.key),
            repeat_unknown=call.repeats_unknown,
            timeout=timeout,
        )
        with self._ending(call):
            while call.result is None:
                try:
                    call.result = await approve()
                except errors.CircuitOpenError as error:
                    if self.world.has_faults:
                        raise
                    await asyncio.sleep(error.retry_after)

    def _bulk(self, program: Program, action: Action, options: dict[str, Any]) -> None:
        customers = [action.customer, *self.world.chance.pick(("", "B", "CB", "BAC"), "rows", action.at)]
        calls = [self._new_call("bulk", program, customer, options) for customer in customers]
        self.world.note(program.process, f"calls {calls[0].number} to {calls[-1].number}: a bulk run")
        client = self._client(program, options)
        self._start_call(program, calls, self._run_bulk(calls, client, options), options)

    async def _run_bulk(self, calls: list[Call], client: LoanClient, options: dict[str, Any]) -> None:
        request = request_of(options.get("order", 0), other_data=options.get("other_data", False))
        rows = [Row(CODES[call.key.customer], request, order_id=_order(call.key)) for call in calls]
        results = client.approve_many(rows, concurrency=2)
        try:
            async with results:
                async for result in results:
                    self._finish_row(calls[result.index], result)
        except (errors.LoanError, asyncio.CancelledError):
            pass
        finally:
            for result in results._pool.unread:
                self._finish_row(calls[result.index], result)

    def _finish_row(self, call: Call, result: Any) -> None:
        call.result = result.decision if result.error is None else result.error
        self.world.record.show(result)
        self._end(call)

    def _message(self, _: Program, action: Action, options: dict[str, Any]) -> None:
        number = len(self._deliveries) + 1
        self._deliveries[number] = 0
        self.world.note("queue", f"gets message {number}")
        for copy in range(1 + self.world.choose(0, {0: 10, 1: 4}, "copies", number)):
            delay = self.world.choose(0.0, _QUEUE, "delivery", number, copy)
            self.world.later(delay, lambda: self._deliver(number, action, options))

    def _deliver(self, number: int, action: Action, options: dict[str, Any]) -> None:
        if number in self._acknowledged or self._deliveries[number] >= _DELIVERIES:
            return
        self._deliveries[number] += 1
        index = self.world.chance.bits("worker", number, self._deliveries[number]) % len(self.programs)
        if (program := self._program(index)) is not None:
            call = self._new_call("message", program, action.customer, options)
            self.world.note(program.process, f"call {call.number}: message {number} about {call.key}")
            self._start_call(program, [call], self._handle(call, number, program, action, options), options)
        self.world.later(_VISIBILITY, lambda: self._deliver(number, action, options))

    async def _handle(
        self, call: Call, number: int, program: Program, action: Action, options: dict[str, Any]
    ) -> None:
        body = message(
            CODES[call.key.customer],
            request_of(call.key.order, other_data=options.get("other_data", False)),
            order_id=_order(call.key),
        )
        with self._ending(call):
            try:
                call.result = await handle(self._client(program, options), body)
            except errors.LoanError:
                self.world.later(_REDELIVERY, lambda: self._deliver(number, action, options))
                raise
            if self.world.choose("arrives", _ACKNOWLEDGEMENT, "acknowledgement", number) == "arrives":
                self._acknowledged.add(number)

    def _resolve(self, program: Program, action: Action, options: dict[str, Any]) -> None:
        key = self._key(action.customer, options)
        self.world.record.resolved.add(key)
        if (stated := self._truth(key)) is not None:
            self.world.note("person", f"states that {key} is {stated}")
            code, order = CODES[key.customer], _order(key)
            client = self._client(program, options)
            self._work(program, client.resolve(code, stated, source="back office", order_id=order))

    def _truth(self, key: Key) -> Literal["approved", "refused", "not_evaluated"] | None:
        """Return what the service tells a person; None while a request may still arrive."""
        decided = self.world.service.decisions.get(key)
        if decided is not None:
            return "approved" if decided.approved else "refused"
        is_busy = any(each.key == key and each.ended is None for each in self.world.record.writes)
        return None if is_busy or self.world.service.pending[key] else "not_evaluated"

    def _complete(self, program: Program, action: Action, options: dict[str, Any]) -> None:
        client, code = self._client(program, options), CODES[action.customer]
        self._work(program, client.upload_documents(code, {"front": "picture"}))
        self._work(program, client.complete(code, user_data()))

    def _create(self, program: Program, action: Action, options: dict[str, Any]) -> None:
        self.world.note(program.process, f"creates the request of customer {action.customer}")
        payload = {"fiscalCode": CODES[action.customer]}
        self._work(program, self._client(program, options).create_request(payload))

    def _rotate(self, program: Program, _: Action, __: dict[str, Any]) -> None:
        self.world.note("person", "rotates the key of the ledger")
        policy = policy_of(self.world.plan.setup, self.folder)
        self._work(program, rotate_key(program.ledger, policy))

    def _sweep(self, program: Program, _: Action, __: dict[str, Any]) -> None:
        self._work(program, sweep(program.ledger))

    def _import(self, program: Program, _: Action, __: dict[str, Any]) -> None:
        self._work(program, import_orphans(program.ledger, self.folder))

    def _work(self, program: Program, work: Coroutine[Any, Any, object]) -> None:
        """Run other work than an approval. It may fail, but must show nothing personal."""

        async def run() -> None:
            try:
                async with asyncio.timeout(_PATIENCE):
                    self.world.record.show(await work)
            except errors.LoanError as error:
                self.world.record.show(*_texts(error))
            except (ConnectionError, TimeoutError, OSError):
                pass  # of the simulated ledger

        program.process.start(run())

    def _kill(self, program: Program, _: Action, options: dict[str, Any]) -> None:
        program.process.after_iterations(options.get("after_iterations", 0), program.process.kill)
        self.world.later(options.get("restart_after", 1.0), lambda: self._restart(program))

    def _restart(self, program: Program) -> None:
        if program.process.killed_at is not None or program.is_closed:
            self.programs[program.index] = self._start(program.index)
            self._all.append(self.programs[program.index])

    def _freeze(self, program: Program, _: Action, options: dict[str, Any]) -> None:
        freeze = partial(program.process.freeze, options["seconds"])
        program.process.after_iterations(options.get("after_iterations", 0), freeze)

    def _close(self, program: Program, _: Action, options: dict[str, Any]) -> None:
        self.world.note(program.process, "closes its clients")
        program.is_closed = True
        for client in program.clients:
            self._work(program, client.aclose())
        self.world.later(options.get("restart_after", 1.0), lambda: self._restart(program))

    def _away(self, _: Program, __: Action, options: dict[str, Any]) -> None:
        self.world.note("ledger", f"is away for {options['seconds']:g} s")
        self.server.away_until = self.world.now + options["seconds"]

    def _copy(self, _: Program, __: Action, ___: dict[str, Any]) -> None:
        self.server.copy()

    def _replace(self, _: Program, __: Action, options: dict[str, Any]) -> None:
        self.server.replace(by_copy=options["by_copy"])

    @contextmanager
    def _ending(self, call: Call) -> Iterator[None]:
        """Run a call. At its end, record its error if there is one."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, GeneratorExit) or self.world.is_over:
                raise
            if isinstance(error, errors.LoanError):
                call.result = error
            elif not (call.is_cancelled and isinstance(error, asyncio.CancelledError)):
                self.world.record.violate("bounded", f"a call raised {type(error).__name__}")
        if not self.world.is_over:
            self._end(call)

    def _end(self, call: Call) -> None:
        """Note the end of a call, and everything that its result would print."""
        world = self.world
        call.ended = world.now
        if isinstance(call.result, errors.InFlightError) and not world.record.is_in_flight(call):
            world.record.violate("bounded", f"the call for {call.key} waited for nothing")
        name = "no result" if call.result is None else type(call.result).__name__
        world.note(call.process, f"call {call.number} for {call.key} ends with {name} ({call.said})")
        if isinstance(call.result, errors.LoanError):
            world.record.show(*_texts(call.result))
            call.result = call.result.with_traceback(None)
        elif call.result is not None and not isinstance(call.result, dict):
            world.record.show(call.result)
            self._check_stored(call)

    def _check_stored(self, call: Call) -> None:
        """Check that a decision that has just arrived was stored before it was returned."""
        setup, record = self.world.plan.setup, self.world.record
        own = [each for each in record.calls if (each.process, each.key) == (call.process, call.key)]
        said = any(_is_unrecorded(each.result) for each in own)
        has_arrived = any(
            each.key == call.key and each.approved is not None and call.started <= (each.ended or 0.0)
            for each in record.writes
        )
        is_replaced = self.server.replaced_at < inf
        if setup.ledger != "server" or is_replaced or said or not has_arrived:
            return
        if not self.server.has_decision(call.key) and call.key not in self.orphans():
            record.violate("kept", f"{call.key}: a decision was returned, but is not stored")

    # The end of a schedule

    def end_faults(self) -> None:
        """End all faults, so that each call must end, and the next one succeed."""
        self.world.has_faults = False
        self.server.away_until = 0.0
        for process in self.world.processes:
            process.end_faults()
        self.world.note("world", "all faults end")

    def probe(self) -> None:
        """Repeat the calls of each running program, and let it request approvals of new customers."""
        fresh, earlier = iter(PROBES), tuple(self.world.record.calls)
        self._calls_before_probes = len(earlier)
        for program, number in self._open_clients():
            guard = program.guard
            own = [each for each in earlier if each.guard == guard and each.process is program.process]
            for key, other_data in dict.fromkeys((each.key, each.other_data) for each in own):
                shop = {} if key.shop == "shop-1" else {"shop": key.shop}
                options = {"client": number, "order": key.order, "other_data": other_data, **shop}
                action = Action(0, "approve", program.index, key.customer, options)
                # Later with other data: during a call with the first ones, they would be refused.
                self.world.later(float(other_data), partial(self._approve, program, action, options))
            order = int(self.world.plan.setup.per_order)
            for _ in range(1 if self.world.plan.setup.slots is None else 2):
                options = {"client": number, "order": order}
                self._approve(program, Action(0, "approve", program.index, next(fresh)), options)

    def check_probes(self) -> None:
        """Check that new customers were decided, and that earlier decisions were returned again."""
        calls, decided = self.world.record.calls, ("approved", "refused")
        for number, call in enumerate(calls):
            name = type(call.result).__name__
            if self.world.plan.setup.mistake and isinstance(call.result, errors.LedgerMismatchError):
                continue
            # The older copy has the claim only, and another write has just raised its number to the last one.
            if self.world.plan.setup.mistake == "older ledger" and isinstance(
                call.result, errors.OutcomeUnknownError
            ):
                continue
            if call.key.customer in PROBES and call.said not in decided:
                self.world.record.violate("bounded", f"{call.process.name} ends with {name} after all faults")
            if call.number <= self._calls_before_probes or call.is_cancelled:
                continue
            earlier = [each for each in calls[:number] if each.is_for_the_same_as(call)]
            if isinstance(call.result, errors.DecisionForgottenError) and self.world.plan.setup.memory_limit:
                continue
            if call.said not in decided and any(each.decision is not None for each in earlier):
                self.world.record.violate("kept", f"{call.key}: not decided again, but {name}")

    def _open_clients(self) -> Iterator[tuple[Program, int]]:
        for program in self._all:
            if program.process.killed_at is None and not program.is_closed:
                for number in range(len(program.clients)):
                    yield program, number

    def close(self) -> None:
        """Close all clients."""
        for program, number in list(self._open_clients()):
            self._work(program, program.clients[number].aclose())


def _is_unrecorded(result: object) -> bool:
    """Return True if a call has said that its decision is not in the ledger."""
    if isinstance(result, dict):
        return result["not_stored"] is not None
    return isinstance(result, errors.DecisionNotRecordedError)


def _texts(error: BaseException) -> Iterator[str]:
    """Yield all that an error report shows: texts, causes, and local variables of the package's frames."""
    seen: BaseException | None = error
    while seen is not None:
        yield f"{seen} {seen!r} {seen.args!r}"
        for frame, _ in walk_tb(seen.__traceback__):
            if str(frame.f_globals.get("__name__")).startswith(_PACKAGE):
                yield repr(frame.f_locals)
        seen = seen.__cause__ or seen.__context__
