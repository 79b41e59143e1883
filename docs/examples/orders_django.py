"""The orders of a shop with the ORM of Django, as `loanasync.checkout` needs them."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from attrs import frozen
from django.db import close_old_connections, models

T = TypeVar("T")


class OrderRow(models.Model):
    """A table with the two columns for the loan."""

    number = models.CharField(max_length=40, primary_key=True)
    amount = models.IntegerField()  # euro cents
    loan_state = models.CharField(max_length=8, default="free")
    loan = models.TextField(default="", blank=True)

    class Meta:
        """Place the model in an application of your own."""

        app_label = "shop"
        db_table = "orders"

    def __str__(self) -> str:
        return str(self.number)


async def in_database(work: Callable[[], T]) -> T:
    """Run a statement in a thread, and close the connection of the thread.

    Django does so when a request ends. The last statement may run later, if the shopper leaves. Keep
    ``CONN_MAX_AGE`` 0, or use the pool of ``OPTIONS``.
    """

    def run() -> T:
        try:
            return work()
        finally:
            close_old_connections()

    return await asyncio.to_thread(run)


@frozen
class Order:
    """An order."""

    number: str
    amount: int

    async def loan(self) -> tuple[str, str]:
        """Return the columns of the loan."""
        rows = OrderRow.objects.values_list("loan_state", "loan")
        found: tuple[str, str] = await in_database(lambda: rows.get(number=self.number))
        return found

    async def change(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
        """Change the columns of the loan if they are still `old`."""
        rows = OrderRow.objects.filter(number=self.number, amount=self.amount)
        same = rows.filter(loan_state=old[0], loan=old[1])
        changed: int = await in_database(lambda: same.update(loan_state=new[0], loan=new[1]))
        return changed == 1
