"""Schedules: their generation from a seed, and their reduction to the steps that a violation needs."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

from attrs import evolve, field, frozen

from simulation.chance import Chance

# Mistakes of operators, after which no request may be sent: a program with another key, another service or no
# cipher, an empty server in place of the ledger, and an older copy of it.
Mistake = Literal["", "other key", "other service", "no cipher", "empty ledger", "older ledger"]
_MISTAKES: dict[Mistake, int] = {
    "": 90,
    "other key": 2,
    "other service": 2,
    "no cipher": 2,
    "empty ledger": 2,
    "older ledger": 2,
}


@frozen
class Setup:
    """The settings that the programs of a schedule share."""

    programs: int = 1
    clients: int = 1  # in each program
    ledger: Literal["none", "memory", "server"] = "none"
    network: Literal["seam", "direct", "session"] = "seam"
    total: float = 20.0
    attempt: float = 8.0
    attempts: int = 3
    slots: int | None = None
    is_breaker_strict: bool = False  # the circuit breaker opens after each failure
    patience: float = 2.0
    wait: float = 2.0
    encrypts: bool = False
    records_spans: bool = False
    logs_all: bool = False  # records below WARNING, too
    effects_fail: bool = False
    has_orphan_folder: bool = True
    per_order: bool = False
    is_eager: bool = False
    memory_limit: int | None = None
    mistake: Mistake = ""
    rotates: bool = False  # a person rotates the key of the ledger

    @property
    def has_ledger(self) -> bool:
        """True if the clients have a ledger."""
        return self.ledger != "none"


@frozen
class Action:
    """Something that a program, a person or the world does at a time, in seconds."""

    at: float
    kind: str
    program: int = 0
    customer: str = "A"
    options: dict[str, Any] = field(factory=dict)


@frozen
class Plan:
    """A schedule."""

    seed: int
    setup: Setup
    actions: tuple[Action, ...]
    muted: frozenset[str] = frozenset()  # names of choices that take their usual option


_OFFSETS = (0.0, 0.0, 0.0, 0.001, 0.021, 0.05, 0.3, 1.05, 2.0, 9.0, 25.0, 70.0)
_CALLS = {"approve": 60, "bulk": 8, "message": 12, "resolve": 7, "complete": 3}
_CANCELS = {"": 60, "iterations": 22, "seconds": 18}
_EVENTS = {"kill": 6, "freeze": 3, "close": 2, "away": 4, "sweep": 3, "import": 3}
_PROGRAMS = {1: 4, 2: 4, 3: 1}
_LEDGERS = {"none": 6, "memory": 2, "server": 12}
_NETWORKS = {"seam": 86, "direct": 10, "session": 4}
_TIMES = ((20.0, 8.0), (60.0, 30.0), (6.0, 5.0))


def generate(seed: int) -> Plan:
    """Return the schedule of a seed."""
    chance = Chance(seed)
    setup = _setup(chance)
    actions = list(_calls(chance, setup))
    actions += _events(chance, setup)
    if setup.mistake in ("empty ledger", "older ledger"):
        at = chance.pick((1.0, 30.0, 80.0), "replacement")
        actions.append(Action(chance.pick((0.5, 5.0), "copy"), "copy"))
        actions.append(Action(at, "replace", options={"by_copy": setup.mistake == "older ledger"}))
    if setup.rotates:
        actions.append(Action(chance.pick((0.0, 0.003, 0.021, 0.5, 5.0, 40.0), "rotation at"), "rotate"))
    return Plan(seed, setup, tuple(sorted(actions, key=lambda action: action.at)))


def _setup(chance: Chance) -> Setup:
    def some(probability: float, name: str) -> bool:
        return chance.is_true(probability, "setup", name)

    total, attempt = chance.pick(_TIMES, "times")
    ledger = chance.weighted(_LEDGERS, "ledger")
    mistake = chance.weighted(_MISTAKES, "mistake") if ledger == "server" else ""
    programs = chance.weighted(_PROGRAMS, "programs")
    # A program that has not seen the newest writes does not notice that a copy lacks them.
    if ledger == "memory" or mistake == "older ledger":
        programs = 1
    elif mistake in ("other key", "other service", "no cipher"):
        programs = 2
    network = chance.weighted(_NETWORKS, "network")
    return Setup(
        programs=programs,
        clients=1 + (programs == 1 and network == "seam" and some(0.25, "clients")),
        ledger=ledger,  # type: ignore[arg-type]
        network=network,  # type: ignore[arg-type]
        total=total,
        attempt=attempt,
        attempts=chance.pick((1, 2, 3, 3), "attempts"),
        slots=chance.pick((None, None, 1, 2), "slots"),
        is_breaker_strict=some(0.3, "breaker"),
        patience=chance.pick((2.0, 10.0), "patience"),
        wait=chance.pick((0.0, 2.0, 30.0), "wait"),
        encrypts=some(0.2, "cipher") or mistake == "no cipher",
        records_spans=some(0.15, "spans"),
        logs_all=some(0.2, "log"),
        effects_fail=some(0.25, "effects"),
        has_orphan_folder=not some(0.1, "orphans"),
        per_order=some(0.15, "orders"),
        is_eager=some(0.1, "eager"),
        memory_limit=2 if ledger == "none" and some(0.2, "memory") else None,
        mistake=mistake,
        rotates=ledger == "server" and not mistake and some(0.15, "rotation"),
    )


def _calls(chance: Chance, setup: Setup) -> Iterator[Action]:
    customers = "ABCDEF"[: 6 if setup.memory_limit else chance.pick((1, 1, 1, 2), "customers")]
    kinds = dict(_CALLS)
    if not setup.has_ledger:
        del kinds["resolve"], kinds["message"]
    for customer in customers:
        base = chance.pick((0.0, 0.0, 3.0, 30.0), "base", customer)
        if not chance.is_true(0.85, "created", customer):
            yield Action(base + chance.pick((0.0, 1.0, 10.0), "creation", customer), "create", 0, customer)
        for number in range(chance.pick((1, 2, 2, 2, 3, 4), "calls", customer)):
            name = f"{customer}{number}"
            kind = chance.weighted(kinds, "kind", name)
            offset = chance.pick(_OFFSETS, "offset", name) if number else 0.0
            program = chance.bits("program", name) % setup.programs
            yield Action(base + offset, kind, program, customer, _options(chance, setup, name))


def _options(chance: Chance, setup: Setup, name: str) -> dict[str, Any]:
    options: dict[str, Any] = {"client": chance.bits("client", name) % setup.clients}
    match chance.weighted(_CANCELS, "cancel", name):
        case "iterations":
            options["cancel_after_iterations"] = chance.bits("iterations", name) % 16
        case "seconds":
            options["cancel_after"] = chance.pick(
                (0.0, 0.02, 0.021, 0.04, 0.1, 0.3, 3.0, 12.0), "seconds", name
            )
    if chance.is_true(0.15, "repeat", name):
        options["repeat_unknown"] = True
    if chance.is_true(0.12, "data", name):
        options["other_data"] = True
    if setup.per_order:
        options["order"] = 1 + chance.bits("order", name) % 2
    if chance.is_true(0.07, "shop", name):
        options["shop"] = "shop-2"
    if chance.is_true(0.1, "times of", name):
        options["total"], options["attempt"] = chance.pick(_TIMES, "own times", name)
    return options


def _events(chance: Chance, setup: Setup) -> Iterator[Action]:
    for number in range(chance.pick((0, 0, 1, 1, 2), "events")):
        kind = chance.weighted(_EVENTS, "event", number)
        if kind in ("away", "sweep", "import") and setup.ledger != "server":
            continue
        # A process writes the number of its last write to the folder of orphan files, if it is killed up to a
        # second late. Without that number, the next process does not notice an older copy.
        is_number_lost = kind == "kill" or (kind == "close" and not setup.has_orphan_folder)
        if is_number_lost and setup.mistake == "older ledger":
            continue
        at = chance.pick((0.0, 0.021, 0.03, 0.041, 0.05, 0.5, 5.0, 40.0, 90.0), "event at", number)
        options: dict[str, Any] = {"after_iterations": chance.bits("event after", number) % 12}
        if kind in ("freeze", "away"):
            options["seconds"] = chance.pick((0.5, 5.0, 40.0, 120.0), "event for", number)
        if kind in ("kill", "close"):
            options["restart_after"] = chance.pick((0.1, 2.0, 60.0), "restart", number)
        yield Action(at, kind, chance.bits("event in", number) % setup.programs, options=options)


def shrink(plan: Plan, chosen: list[str], fails: Callable[[Plan], list[str] | None]) -> Plan:
    """Return a smaller schedule that still fails.

    Args:
        plan: A schedule that fails.
        chosen: The names of its choices that differ from the usual ones.
        fails: Runs a schedule, and returns the names of its choices; None if it does not fail.
    """
    while True:
        for smaller in _reductions(plan, chosen):
            if (now := fails(smaller)) is not None:
                plan, chosen = smaller, now
                break
        else:
            return plan


def _reductions(plan: Plan, chosen: list[str]) -> Iterator[Plan]:
    for index in range(len(plan.actions)):
        yield evolve(plan, actions=plan.actions[:index] + plan.actions[index + 1 :])
    for name in chosen:
        yield evolve(plan, muted=plan.muted | {name})
    for index, action in enumerate(plan.actions):
        for option in action.options:
            fewer = {name: value for name, value in action.options.items() if name != option}
            if option not in ("by_copy", "seconds", "order"):
                smaller = evolve(action, options=fewer)
                yield evolve(plan, actions=(*plan.actions[:index], smaller, *plan.actions[index + 1 :]))
    usual = Setup(ledger=plan.setup.ledger, mistake=plan.setup.mistake, rotates=plan.setup.rotates)
    for name in (
        "slots",
        "is_breaker_strict",
        "encrypts",
        "records_spans",
        "effects_fail",
        "is_eager",
        "network",
    ):
        value = getattr(usual, name)
        if getattr(plan.setup, name) != value:
            yield evolve(plan, setup=evolve(plan.setup, **{name: value}))
