"""The simulated service, which knows the truth: whom it evaluated, and what it decided."""

import json
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import define

from simulation.record import Key

if TYPE_CHECKING:
    from simulation.world import World

# Made-up persons, and a mark in texts of the service that spec §7 does not list. None may be printed.
PROBES = [f"P{number}" for number in range(40)]  # customers of the calls after all faults
CODES = {name: f"TST{name}YZ80A01H501{name}" for name in "ABCDEFJK"}
CODES |= {name: f"PRB{name:X>3}80A01H501P" for name in PROBES}
NAMES = {code: name for name, code in CODES.items()}
TOKEN = "secret-token-5d41"
PAGE = "https://apply.example.com/start#token=page-secret-"
EMAIL = "zzprivate@example.com"
PERSONAL = (
    "80A01H501",
    TOKEN,
    "page-secret-",
    EMAIL,
    "Zzlastname",
    "Zzfirstname",
    "3339990001",
    "Zzunlisted",
)


class Reply(NamedTuple):
    """A response: status and body."""

    status: int
    body: bytes


class Behaviour(NamedTuple):
    """The reaction of the service to a request for an approval.

    `proves` is the reading of R4, stated here independently of the package: a client that received the whole
    response knows that nothing was evaluated. `ends` names what happens instead of a response.
    """

    weight: int
    status: int = 0
    body: Any = None
    evaluates: bool = False  # before it responds
    proves: bool = False
    ends: str = ""


_after = partial(Behaviour, evaluates=True)
_DOMAIN = "domain"
_BLANK = {"city": ["This value should not be blank."]}
_FAULT = {"errors": {"system": ["System error"]}}
_HTML = b"<html>Bad gateway Zzunlisted</html>"
DECIDES = "decides"
BEHAVIOURS: dict[str, Behaviour] = {
    DECIDES: _after(100),
    "rejects a field": Behaviour(5, 400, {"errors": _BLANK}, proves=True),
    "rejects a field, and names no user": Behaviour(
        3, 400, {"errors": {_DOMAIN: ["User not found"], **_BLANK}}
    ),
    "allows no loans": Behaviour(
        2, 400, {"errors": {_DOMAIN: ["This sales point cannot apply for a loan"]}}, proves=True
    ),
    "finds the code invalid": Behaviour(2, 400, {"errors": {_DOMAIN: ["Invalid fiscalCode."]}}, proves=True),
    "sends a new domain text": Behaviour(3, 400, {"errors": {_DOMAIN: ["The campaign ended, Zzunlisted"]}}),
    "evaluates, sends a new domain text": _after(3, 400, {"errors": {_DOMAIN: ["Call us, Zzunlisted"]}}),
    "denies access": Behaviour(4, 403, {"error": "Access denied"}, proves=True),
    "wants a login": Behaviour(2, 401, b"login Zzunlisted", proves=True),
    "knows no such page": Behaviour(2, 404, _HTML, proves=True),
    "limits the rate": Behaviour(3, 429, b"", proves=True),
    "sees a conflict": Behaviour(2, 409, {"errors": "Zzunlisted cannot be completed"}),
    "evaluates, then sees a conflict": _after(3, 409, {"errors": {"Zzunlisted": ["no"]}}),
    "fails": Behaviour(6, 500, _FAULT),
    "evaluates, then fails": _after(9, 500, _FAULT),
    "decides with 500": _after(2, 500, "decision"),
    "is behind a broken gateway": Behaviour(2, 502, _HTML),
    "evaluates behind a broken gateway": _after(4, 502, _HTML),
    "evaluates, redirects": _after(2, 303, b""),
    "validates with 422": Behaviour(3, 422, {"errors": _BLANK}),
    "decides for an echo of another": _after(3, 201, "another"),
    "approves and refuses at once": _after(2, 201, "twice"),
    "evaluates, sends nothing in a 201": _after(2, 201, b""),
    "refuses without a body": _after(3, 422, b""),
    "decides with 202": _after(2, 202, "decision"),
    "decides with 404": _after(3, 404, "decision"),
    "decides with 429": _after(2, 429, "decision"),
    "is silent": Behaviour(3, ends="silence"),
    "evaluates, is silent": _after(5, ends="silence"),
    "hangs up": Behaviour(3, ends="loss"),
    "evaluates, hangs up": _after(5, ends="loss"),
}
WEIGHTS = {name: each.weight for name, each in BEHAVIOURS.items()}
UNKNOWN_USER = Reply(400, b'{"errors": {"domain": ["User not found"]}}')
EVALUATED = (
    Reply(400, b'{"errors": {"domain": ["User already evaluated for approval"]}}'),
    Reply(400, '{"errors": {"domain": ["L\'utente è già stato valutato, Zzunlisted."]}}'.encode()),
    Reply(409, b'{"errors": "User already evaluated for approval"}'),
)


@define
class Decided:
    """A decision of the service."""

    approved: bool
    body: bytes


class Service:
    """The service of a world."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.decisions: dict[Key, Decided] = {}
        self.created: set[str] = set()
        self.arrivals: Counter[Key] = Counter()
        self.pending: Counter[Key] = Counter()  # requests that were written and have not arrived

    def key_of(self, shop: str, code: str, body: dict[str, Any]) -> Key:
        """Return the approval that a request is about."""
        order = int(body.get("orderToken", "order-0")[6:]) if self._world.plan.setup.per_order else 0
        return Key(shop, NAMES[code], order)

    def choose(self, key: Key) -> tuple[str, Behaviour]:
        """Return the behaviour for the next request of an approval, and its name."""
        self.arrivals[key] += 1
        name = self._world.choose(DECIDES, WEIGHTS, "answer", key, self.arrivals[key])
        return name, BEHAVIOURS[name]

    def handle(self, key: Key, behaviour: Behaviour, body: dict[str, Any]) -> Reply:
        """Evaluate a request as the behaviour says, and return the response."""
        if key.customer not in self.created and behaviour is BEHAVIOURS[DECIDES]:
            return UNKNOWN_USER
        was_evaluated = key in self.decisions
        if was_evaluated and behaviour.status < 500 and (behaviour.evaluates or not behaviour.status):
            return self._world.chance.pick(EVALUATED, "evaluated", key, self.arrivals[key])
        if was_evaluated or not behaviour.evaluates:
            return Reply(behaviour.status, _encode(behaviour.body))
        decided = self.decisions[key] = self._decide(key, behaviour, body)
        other = CODES["K" if key.customer != "K" else "J"].encode()
        bodies = {
            "decision": decided.body,
            "another": decided.body.replace(CODES[key.customer].encode(), other),
            "twice": decided.body.replace(b"{", b'{"approved": true, "approved": false, '),
        }
        own = bodies[behaviour.body] if isinstance(behaviour.body, str) else _encode(behaviour.body)
        status = behaviour.status or (201 if decided.approved else 422)
        return Reply(status, decided.body if behaviour.body is None else own)

    def _decide(self, key: Key, behaviour: Behaviour, body: dict[str, Any]) -> Decided:
        approved = self._world.chance.is_true(0.6, "decision", key)
        if behaviour.status == 422:
            approved = False
        echo: dict[str, Any] = {
            name: body[name] for name in ("amount", "instalments", "email", "lastname") if name in body
        }
        members: dict[str, Any] = {"approved": approved, "fiscalCode": CODES[key.customer], **echo}
        if approved:
            members["redirectUrl"] = f"{PAGE}{key.customer}{key.order}"
        self._world.note("service", f"evaluates {key}: {'approved' if approved else 'refused'}")
        return Decided(approved, _encode(members))

    def create(self, customer: str) -> Reply:
        """Create a request, so that the customer can be evaluated."""
        self.created.add(customer)
        return Reply(201, b'{"created": true}')


def _encode(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()
