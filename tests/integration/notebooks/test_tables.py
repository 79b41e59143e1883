"""Values from pandas and numpy that are invalid in a request, and the messages that name them."""

from datetime import date
from io import StringIO
from typing import Any

import numpy as np
import pandas as pd
import pytest

from loanasync import LoanClient
from loanasync._models.decisions import described
from loanasync.bulk import Row
from loanasync.ledger import MemoryLedger
from loanasync.sandbox import Sandbox
from support.builders import FISCAL_CODE, additional_data, approval_request

NAPOLI = "; pandas reads NA (Napoli) as a missing value: read the column as text"
ZEROS = "; give five digits as text, because a number loses its leading zeros (00100 is Roma)"
CENTS = "must be a whole number between 5000 and 1500000 (euro cents); use an int, not"
DECIMALS = "; 125.50 euros are 12550 cents"
DAY = "must be a whole number between 1 and 31; use an int, not"
TEXT = "must be text; use a str, not"
YES_NO = "must be true or false; use a bool, not"
DATE = "must be a date; use a datetime.date, not"
TIME = "must be a date without a time; convert it with .date()"
NONE = "; use None for missing values"


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("fiscal_code", float("nan"), f"{TEXT} NaN"),
        ("amount", np.float64(450.5), f"{CENTS} numpy.float64{DECIMALS}"),
        ("amount", np.array([45_000]), f"{CENTS} numpy.ndarray{DECIMALS}"),
        ("amount", float("nan"), f"{CENTS} NaN"),
        ("amount", pd.NA, f"{CENTS} NA"),
        ("amount", True, f"{CENTS} bool{DECIMALS}"),
        ("province", float("nan"), f"{TEXT} NaN{NAPOLI}"),
        ("postal_code", np.int64(100), f"{TEXT} numpy.int64{ZEROS}"),
        ("postal_code", 100.0, f"{TEXT} float{ZEROS}"),
        ("last_name", np.float64("nan"), f"{TEXT} NaN"),
        ("iban", float("nan"), f"{TEXT} NaN{NONE}"),
        ("zero_interest_rate", np.bool_(1), f"{YES_NO} numpy.bool"),
        ("zero_interest_rate", pd.NA, f"{YES_NO} NA{NONE}"),
        ("payment_day_of_month", 5.0, f"{DAY} float"),
        ("residence_start_date", pd.NaT, f"{DATE} NaT{NONE}"),
        ("residence_start_date", pd.Timestamp(2022, 5, 17), TIME),
        ("residence_start_date", np.datetime64("2022-05-17"), f"{DATE} numpy.datetime64"),
    ],
)  # fmt: skip
def test_wrong_table_value_is_reported_with_its_fix(field: str, value: Any, sentence: str) -> None:
    own: dict[str, Any] = {} if field == "fiscal_code" else {field: value}
    if field == "residence_start_date":
        own = {"additional": additional_data(residence_start_date=value)}
    client = LoanClient("https://loans.example.com", shop_id="s", auth_token="t")
    [problem] = client.check(value if field == "fiscal_code" else FISCAL_CODE, approval_request(**own))
    assert (problem.field, described(problem)) == (field, sentence)


async def test_numpy_integers_are_the_same_approval_as_ints(sandbox: Sandbox) -> None:
    """The ledger compares key and payload of each call. `.iloc` returns NumPy integers."""
    orders = pd.DataFrame({"amount": [45_000], "instalments": [12], "day": [5], "salary": [1600]})
    kinds = [orders.iloc[0], orders.astype("int32").iloc[0], orders.astype("uint16").iloc[0]]
    assert [type(order.amount) for order in kinds] == [np.int64, np.int32, np.uint16]
    async with sandbox.client(ledger=MemoryLedger()) as client:
        await client.create_request({"fiscalCode": FISCAL_CODE})
        for order in (next(orders.itertuples()), *kinds):
            request = approval_request(
                amount=order.amount,
                instalments=order.instalments,
                payment_day_of_month=order.day,
                additional=additional_data(salary=order.salary),
            )
            assert (await client.approve(FISCAL_CODE, request)).approved
    sandbox.journal.assert_once(operation="approve")


FILE = """fiscal_code,amount,email,province,postal_code,since
TSTXYZ00A00A000A,45000,anna@example.com,NA,00100,2019-05-01
TSTXYZ00A00A000B,90000,bruno@example.com,RM,,
"""


async def test_columns_read_as_text_are_sent_unchanged(sandbox: Sandbox) -> None:
    orders = pd.read_csv(StringIO(FILE), dtype=str, keep_default_na=False)
    orders["amount"] = orders["amount"].astype(int)
    order = next(orders.itertuples())
    request = approval_request(
        amount=order.amount,
        province=order.province,
        postal_code=order.postal_code,
        city=np.str_("Napoli"),
        additional=additional_data(residence_start_date=date.fromisoformat(str(order.since))),
    )
    async with sandbox.client() as client:
        await client.create_request({"fiscalCode": order.fiscal_code})
        assert (await client.approve(str(order.fiscal_code), request)).approved
    sent = sandbox.journal.assert_once(operation="approve").request or {}
    assert [sent[name] for name in ("province", "postalCode", "city")] == ["NA", "00100", "Napoli"]


async def test_rows_of_a_data_frame_are_rejected_and_not_sent(sandbox: Sandbox) -> None:
    orders: Any = pd.read_csv(StringIO(FILE), dtype=str)
    bad = Row(float("nan"), approval_request(amount=np.float64(45_000)), id=np.int64(7))  # type: ignore[arg-type]
    async with sandbox.client() as client:
        for rows in (orders.itertuples(), orders.to_dict("records"), [bad]):
            results = [result async for result in client.approve_many(rows)]
            assert {result.status for result in results} == {"rejected"}
    error = str(results[0].error)
    assert "fiscal_code: must be text; use a str, not NaN; amount: must be a whole number" in error
    sandbox.journal.assert_never(operation="approve")
