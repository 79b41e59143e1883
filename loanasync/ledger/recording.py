"""A client's use of its ledger: which entry belongs to a call, and what guards it."""

from loanasync._log import LOGGER
from loanasync._protocol.endpoints import Call
from loanasync._results import Problem
from loanasync.errors import ConfigurationError, InvalidRequestError
from loanasync.ledger.keys import digests_of, old_digests_of
from loanasync.ledger.memory import MemoryLedger
from loanasync.ledger.policy import LedgerPolicy
from loanasync.ledger.protocol import DecisionLedger
from loanasync.ledger.recorder import LedgerGuard
from loanasync.ledger.withdrawals import Withdrawals


def recorder(ledger: object, policy: object) -> "Recorder":
    """Return what a client needs to use its ledger.

    Raises:
        ConfigurationError: The ledger or the policy is of a wrong type.
    """
    if not isinstance(ledger, DecisionLedger):
        raise ConfigurationError("ledger", "must be a ledger, such as loanasync.ledger.SqliteLedger")
    if policy is None:
        policy = LedgerPolicy()
    if not isinstance(policy, LedgerPolicy):
        raise ConfigurationError("ledger_policy", "must be a loanasync.ledger.LedgerPolicy")
    if policy.key is None and not isinstance(ledger, MemoryLedger):
        LOGGER.warning(_WITHOUT_KEY)
    return Recorder(ledger, policy)


class Recorder:
    """The ledger and the policy that a client and its light copies share."""

    def __init__(self, ledger: DecisionLedger, policy: LedgerPolicy) -> None:
        self.ledger = ledger
        self.policy = policy
        self.withdrawals = Withdrawals(ledger, policy.patience)

    def guard(self, call: Call, scope: str, within: float, *, repeat_unknown: bool) -> LedgerGuard:
        """Return the guard of a call that may take `within` seconds.

        Raises:
            InvalidRequestError: It has no order token, and the policy's scope is the order token.
        """
        if self.policy.scope == "order_token" and call.order_token is None:
            message = "is required: LedgerPolicy(scope='order_token') distinguishes applications by it"
            raise InvalidRequestError((Problem("order_token", "orderToken", message),))

        return LedgerGuard(
            self.ledger,
            self.policy,
            call,
            (digests_of(call, self.policy, scope), *old_digests_of(call, self.policy, scope)),
            within,
            repeats_unknown=repeat_unknown,
            withdrawals=self.withdrawals,
        )


_WITHOUT_KEY = (
    "the ledger has no key: its entries are found by the auth token, and with another token each customer "
    "would be requested again; set LedgerPolicy(key=..., old_keys=[the present token])"
)
