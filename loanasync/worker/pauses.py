"""Pauses of a worker's tasks, so that a worker with wrong settings consumes no messages."""

from taskiq import AsyncBroker

from loanasync._log import LOGGER
from loanasync.errors import LoanError, ServiceError

_DENIALS = 5  # different customers in a row
_NOT_NOW = 429  # the service is busy, and the settings are right


class Pause:
    """The state of a task in this worker: running, or paused for a reason.

    Args:
        name: The task's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._denied: set[int] = set()
        self.reason = ""

    def now(self, reason: str) -> None:
        """Pause the task until the worker is started again."""
        if not self.reason:
            self.reason = reason
            LOGGER.error(
                "task %s is paused in this worker: %s; its messages stay in the queue", self._name, reason
            )

    def denied(self, customer: object, error: LoanError) -> None:
        """Count a customer whose request the service did not accept from this shop."""
        status = error.status if isinstance(error, ServiceError) else 0
        if status == _NOT_NOW:
            return
        self._denied.add(hash(customer))
        if len(self._denied) >= _DENIALS:
            self.now(
                f"{type(error).__name__} (status {status}) for {_DENIALS} customers in a row: "
                "correct base_url, shop_id or auth_token and start the worker again"
            )

    def answered(self) -> None:
        """Take note of any other response of the service: its denials were the customers' own."""
        self._denied.clear()


def pause_of(broker: AsyncBroker, name: str) -> Pause:
    """Return the pause of a new task of this broker."""
    pauses = _pauses(broker)
    return pauses.setdefault(name, Pause(name))


def all_paused(broker: AsyncBroker) -> bool:
    """Return True if this broker has tasks, and each of them is paused."""
    pauses, tasks = _pauses(broker), broker.get_all_tasks()
    return bool(tasks) and all(name in pauses and pauses[name].reason for name in tasks)


def _pauses(broker: AsyncBroker) -> dict[str, Pause]:
    pauses: dict[str, Pause] = broker.state.setdefault("loanasync_pauses", {})
    return pauses
