"""The orders of a shop with SQLAlchemy, as `loanasync.checkout` needs them."""

from attrs import field, frozen
from sqlalchemy import Text, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """The tables of the shop."""


class OrderRow(Base):
    """A table with the two columns for the loan."""

    __tablename__ = "orders"

    number: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int]  # euro cents
    loan_state: Mapped[str] = mapped_column(server_default="free")
    loan: Mapped[str] = mapped_column(Text, server_default="")


LOAN = OrderRow.loan_state, OrderRow.loan


def open_engine(url: str) -> AsyncEngine:
    """Return the engine. It opens a connection again that the server has closed.

    Without `hide_parameters`, an error and a log show the values of a statement.
    """
    return create_async_engine(url, hide_parameters=True, pool_pre_ping=True)


@frozen
class Order:
    """An order. Each method takes a connection from the pool, because the request may have ended."""

    _engine: AsyncEngine = field(repr=False)
    number: str
    amount: int

    async def loan(self) -> tuple[str, str]:
        """Return the columns of the loan."""
        async with self._engine.connect() as connection:
            row = await connection.execute(select(*LOAN).where(OrderRow.number == self.number))
            state, loan = row.one()
            return state, loan

    async def change(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
        """Change the columns of the loan if they are still `old`."""
        is_same = OrderRow.number == self.number, OrderRow.amount == self.amount, tuple_(*LOAN) == old
        statement = update(OrderRow).where(*is_same).values(loan_state=new[0], loan=new[1])
        async with self._engine.begin() as connection:
            return (await connection.execute(statement)).rowcount == 1
