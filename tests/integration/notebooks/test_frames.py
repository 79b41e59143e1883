"""`to_frame` and data frames as rows of `approve_many`."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import attrs
import pandas as pd
import pytest

from loanasync import Approved, ConfigurationError, LoanClient, Meta, TransportError
from loanasync.bulk import Approvals, Row, RowResult
from loanasync.sandbox import Sandbox
from loanasync.testing import fiscal_code
from support.builders import approval_request
from support.bulk import approvals_of, approve_at_once, rows, tagged_rows

TAGS = ("approved", "refused", "resetafter", "invalid.city")


async def created(client: LoanClient, *tags: str) -> list[Row]:
    made = tagged_rows(*tags)
    for row in made:
        await client.create_request({"fiscalCode": row.fiscal_code})
    return made


async def test_frame_has_a_line_for_each_row_in_order(client: LoanClient) -> None:
    made = await created(client, *TAGS)
    made[0] = attrs.evolve(made[0], request=approval_request(email="anna+approved.slow50@example.com"))
    frame = await client.approve_many(made).to_frame()
    assert frame.index.name == "index"
    assert list(frame.index) == [0, 1, 2, 3]
    assert list(frame["id"]) == list(TAGS)
    assert list(frame["status"]) == ["approved", "refused", "unknown", "rejected"]
    assert list(frame["amount"]) == [45_000] * 4
    assert {name: str(frame[name].dtype) for name in ("amount", "net_amount", "attempts", "elapsed")} == {
        "amount": "Int64", "net_amount": "Int64", "attempts": "Int64", "elapsed": "float64"
    }  # fmt: skip
    shown = frame.to_csv()
    for row in made:
        assert row.fiscal_code not in shown
        assert row.request.email not in shown
    assert "http" not in shown


async def test_personal_frame_has_fiscal_codes_and_redirects(client: LoanClient) -> None:
    made = await created(client, *TAGS)
    results = client.approve_many(made)
    frame = await results.to_frame(personal=True)
    assert list(frame["fiscal_code"]) == [row.fiscal_code for row in made]
    assert frame["redirect_url"].notna().tolist() == [True, False, False, False]
    assert "fiscal_code" not in (await results.to_frame()).columns, "a second call reads nothing more"
    assert results.summary.rows == len(TAGS)


async def test_frame_without_rows_has_all_columns() -> None:
    one, empty = [await approvals_of(approve_at_once, list(rows(number))).to_frame() for number in (1, 0)]
    assert (len(empty), empty.index.name, list(empty.columns)) == (0, "index", list(one.columns))
    assert (str(empty["amount"].dtype), str(empty["elapsed"].dtype)) == ("Int64", "float64")


async def test_frame_keeps_large_integers_exact() -> None:
    async def approve(*_: object, **__: object) -> Approved:
        if amounts[0] is None:
            amounts.pop(0)
            raise TransportError("approve", "OSError", "not_sent", 1)
        return Approved(amount=1, net_amount=amounts.pop(0), meta=Meta(201, 1, 0.1))

    amounts: list[Any] = [2**60 + 1, None]
    frame = await approvals_of(approve, list(rows(2)), concurrency=1).to_frame()
    assert frame["net_amount"].tolist() == [2**60 + 1, pd.NA]
    amounts = [10**30, None]
    frame = await approvals_of(approve, list(rows(2)), concurrency=1).to_frame()
    assert frame["net_amount"][0] == 10**30


async def test_interrupted_frame_can_be_completed() -> None:
    release, have_arrived = asyncio.Event(), asyncio.Event()

    async def approve(*arguments: Any, **options: Any) -> Any:
        if arguments[0] == last.fiscal_code:
            await release.wait()
        return await approve_at_once(*arguments, **options)

    def count(_: RowResult) -> None:
        if results.summary.rows == 4:
            have_arrived.set()

    *first, last = rows(5)
    results: Approvals = approvals_of(approve, [*first, last], progress=count)
    cell = asyncio.create_task(results.to_frame())
    await have_arrived.wait()
    await asyncio.sleep(0)  # the cell reads them
    assert len(results._pool.unread) < 4
    cell.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cell
    release.set()
    assert (await results.to_frame())["status"].tolist() == ["approved"] * 5


async def test_error_of_the_rows_is_raised_and_the_frame_is_kept() -> None:
    def source() -> Iterator[Row]:
        yield from rows(3)
        raise OSError("the database is gone")

    results = approvals_of(approve_at_once, source())
    with pytest.raises(OSError, match="the database is gone"):
        await results.to_frame()
    assert len(await results.to_frame()) == 3


async def test_frame_after_a_loop_or_without_pandas_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    results = approvals_of(approve_at_once, rows(3))
    await anext(results)
    with pytest.raises(ConfigurationError, match=r"to_frame: a loop has read results.*result\.as_row\(\)"):
        await results.to_frame()
    monkeypatch.setattr("loanasync.bulk.notebook.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match="to_frame: needs pandas: pip install pandas"):
        await results.to_frame()
    assert [result.index async for result in results] == [1, 2], "nothing is lost"


async def test_data_frame_as_rows_fails_once_with_the_line_to_use(
    client: LoanClient, sandbox: Sandbox
) -> None:
    order = {
        name: value
        for name, value in attrs.asdict(approval_request(), recurse=False).items()
        if value is not None and name != "extra"
    }
    other = {"order_id": "A0001"}
    frame = pd.DataFrame([{"fiscal_code": fiscal_code(), **order, **other} for _ in range(2)], index=[7, 9])
    for code in frame["fiscal_code"]:
        await client.create_request({"fiscalCode": code})
    with pytest.raises(ConfigurationError, match="rows: must be rows, not a DataFrame") as caught:
        client.approve_many(frame)
    sandbox.journal.assert_never(operation="approve")
    [line] = re.findall(r"pass rows: (.+)$", str(caught.value))
    cell: dict[str, Any] = {"frame": frame}
    exec(line, cell)  # noqa: S102
    results = await client.approve_many(cell["rows"]).to_frame()
    assert list(results["status"]) == ["approved"] * 2
    assert list(results["id"]) == [7, 9]
