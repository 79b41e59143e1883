"""The order adapters of docs/howto/web.md, with PostgreSQL and 60 shoppers who leave."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from orders_sqlalchemy import Base, Order, OrderRow, open_engine
from sqlalchemy import insert, text

from support.example_shops import EXAMPLES
from support.order_adapters import check_adapter
from support.pages import fences
from support.servers import Postgres

TESTS = Path(__file__).parents[2]
ORDERS = [{"number": f"A-{each}", "amount": 45_000} for each in range(1, 301)]


async def test_orders_of_sqlalchemy_learn_their_decision(postgres: Postgres) -> None:
    engine = open_engine(postgres.url.replace("postgresql://", "postgresql+asyncpg://"))

    async def query(statement: str) -> Any:
        async with engine.begin() as connection:
            result = await connection.execute(text(statement))
            return result.scalar() if result.returns_rows else None

    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.drop_all)
        await connection.run_sync(Base.metadata.create_all)
        await connection.execute(insert(OrderRow), ORDERS)
    try:
        await check_adapter(lambda number: Order(engine, number, 45_000), query, kept=15)
    finally:
        await query("DROP TABLE orders")
        await engine.dispose()


def test_orders_of_django_learn_their_decision(postgres: Postgres) -> None:
    """Settings of Django are those of a process."""
    result = subprocess.run(
        [sys.executable, "-m", "support.order_adapters", str(postgres.port)],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(EXAMPLES)])},
        input=postgres.password,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (result.returncode, result.stderr) == (0, "")


LONGEST = 25  # lines that a shop can explain to a colleague
PAGE, CHECKOUT = EXAMPLES.parent / "howto" / "web.md", EXAMPLES / "checkout.py"


def lines_of(node: ast.AsyncFunctionDef | ast.FunctionDef) -> int:
    first = min(each.lineno for each in (node, *node.decorator_list))
    return (node.end_lineno or 0) - first + 1


@pytest.mark.parametrize("name", ["orders_sqlalchemy", "orders_django", "shop_orders"])
def test_adapter_is_small_enough_to_explain(name: str) -> None:
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))
    [order] = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == "Order"]
    methods = [each for each in order.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert sum(lines_of(each) for each in methods if each.name in ("loan", "change", "number")) <= LONGEST


@pytest.mark.parametrize(("program", "name"), [(fences(PAGE), "loan"), (CHECKOUT.read_text("utf-8"), "_pay")])
def test_handler_of_a_loan_route_is_small_enough_to_explain(program: str, name: str) -> None:
    tree = compile(program, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    named = (each for each in ast.walk(tree) if isinstance(each, ast.AsyncFunctionDef) and each.name == name)
    [handler] = (each for each in named if "checkout(" in (ast.get_source_segment(program, each) or ""))
    assert lines_of(handler) <= LONGEST
