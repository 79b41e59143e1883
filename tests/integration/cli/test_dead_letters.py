"""``loanasync dead-letters``: list and replay messages, without showing passwords or customers."""

import asyncio
import json
from pathlib import Path
from secrets import token_hex

import pytest
from redis.asyncio import Redis
from typer.testing import CliRunner, Result

from loanasync.cli.app import app
from loanasync.ledger.keys import Approval, places_of
from loanasync.worker import DeadLetter
from loanasync.worker.redis import DeadLetters as RedisLetters
from support.cli import PLAIN
from support.ledger_clients import KEY
from support.ledger_file import create_at
from support.servers import Nats, Valkey

MESSAGE = {"fiscal_code": "tstxyz00a00a000a", "request": {}, "order_id": "A-1001"}
DATA = json.dumps({"task_name": "loanasync:approve", "task_id": "order-17", "args": [MESSAGE], "kwargs": {}})


def dead_letters(queue: str, *arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, ["dead-letters", "--queue", queue, *arguments], env=PLAIN, input=stdin)


async def add(url: str, queue: str) -> None:
    async with Redis.from_url(url) as redis:
        await redis.xadd(f"{queue}:dead", {"data": DATA, "reason": "AccessDeniedError"})


async def messages_in(url: str, queue: str) -> int:
    async with Redis.from_url(url) as redis:
        return int(await redis.xlen(queue))


def test_dead_letters_are_listed_and_replayed(valkey: Valkey) -> None:
    queue = f"q{token_hex(4)}"
    asyncio.run(add(valkey.url, queue))
    where = f"{valkey.url}?name={queue}"
    listed = dead_letters(where, "ls")
    assert listed.exit_code == 3, listed.output
    assert "order-17  -  -  A-1001  AccessDeniedError" in listed.stdout
    assert "tstxyz" not in listed.output.lower()
    assert dead_letters(where, "replay", "7-7").exit_code == 1
    unclear = dead_letters(where, "replay", "all", "7-7")
    assert (unclear.exit_code, unclear.stderr.partition("\n")[0]) == (
        1,
        "0 dead letters put back into the queue",
    )
    elsewhere = dead_letters(f"{valkey.url}?db=1&name={queue}", "ls")
    assert (elsewhere.exit_code, "there is no queue" in elsewhere.stderr) == (2, True)
    done = dead_letters(where, "replay", listed.stdout.split()[0])
    assert (done.exit_code, done.stderr) == (0, "1 dead letter put back into the queue\n")
    assert asyncio.run(messages_in(valkey.url, queue)) == 1
    again = dead_letters(where, "ls")
    assert (again.exit_code, again.stderr) == (0, "no dead letters\n")
    assert dead_letters(where, "replay", "all").stderr == "0 dead letters put back into the queue\n"


@pytest.mark.usefixtures("shop_of_commands")
def test_dead_letters_with_a_ledger_show_customer_and_entry(valkey: Valkey, tmp_path: Path) -> None:
    file, queue = tmp_path / "decisions.db", f"q{token_hex(4)}"
    create_at(file, key=KEY)
    asyncio.run(add(valkey.url, queue))
    where = f"{valkey.url}?name={queue}"
    approval = Approval("test-shop", "TSTXYZ00A00A000A", "A-1001")
    [place] = places_of(approval, [KEY])
    listed = dead_letters(where, "ls", "--ledger", str(file)).stdout
    assert f"  {place.subject.customer[:12]}  {place.key[:12]}  A-1001  " in listed


def test_dead_letters_are_deleted_by_id_or_customer(valkey: Valkey) -> None:
    queue = f"q{token_hex(4)}"
    where = f"{valkey.url}?name={queue}"
    for _ in range(3):
        asyncio.run(add(valkey.url, queue))
    assert dead_letters(where, "delete").exit_code == 2
    first = dead_letters(where, "ls").stdout.split()[0]
    assert [dead_letters(where, "delete", first).exit_code for _ in range(2)] == [0, 1]
    for code, number in (("TSTXYZ00A00A000B", 0), (" TSTXYZ00A00A000A", 2)):
        done = dead_letters(where, "delete", "--customer", stdin=f"{code}\n")
        assert (done.exit_code, done.stderr.endswith(f"{number} dead letters deleted\n")) == (0, True)
    assert dead_letters(where, "ls").exit_code == 0


def test_dead_letters_with_a_wrong_server_or_queue_fail(valkey: Valkey, nats: Nats) -> None:
    message = "there is no queue nowhere on this server: name the server and the queue"
    for address in (f"{valkey.url}?protocol=3&name=nowhere", f"{nats.url}?name=nowhere"):
        no_queue = dead_letters(address, "ls")
        assert (no_queue.exit_code, no_queue.stderr.startswith(message)) == (2, True)
    no_server = dead_letters("redis://:SECRET@127.0.0.1:1", "ls")
    assert no_server.exit_code == 1
    assert no_server.stderr.startswith("the queue cannot be used (ConnectionError): check --queue")
    for arguments in (("http://127.0.0.1", "ls"), ("", "ls"), (valkey.url, "replay")):
        assert dead_letters(*arguments).exit_code == 2


def test_replay_that_fails_prints_what_it_has_put_back(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, replay, results = f"q{token_hex(4)}", RedisLetters.replay, [True]
    for _ in range(2):
        asyncio.run(add(valkey.url, queue))

    async def fail_later(letters: RedisLetters, letter: DeadLetter) -> bool:
        if not results:
            raise ConnectionError
        results.clear()
        return await replay(letters, letter)

    monkeypatch.setattr(RedisLetters, "replay", fail_later)
    done = dead_letters(f"{valkey.url}?name={queue}", "replay", "all")
    assert (done.exit_code, done.stderr.splitlines()[0]) == (1, "1 dead letter put back into the queue")
    assert "the queue cannot be used (ConnectionError)" in done.stderr
