"""``loanasync dead-letters``: list and replay messages, without showing passwords or customers."""

import asyncio
import json
from secrets import token_hex

import pytest
from redis.asyncio import Redis
from typer.testing import CliRunner, Result

from loanasync.cli.app import app
from loanasync.worker import DeadLetter
from loanasync.worker.redis import DeadLetters as RedisLetters
from support.cli import PLAIN
from support.servers import Nats, Valkey

DATA = json.dumps({"task_name": "loanasync:approve", "task_id": "order-17", "args": ["TSTXYZ00A00A000A"]})


def dead_letters(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["dead-letters", *arguments], env=PLAIN)


async def add(url: str, queue: str) -> None:
    async with Redis.from_url(url) as redis:
        await redis.xadd(f"{queue}:dead", {"data": DATA, "reason": "AccessDeniedError"})


async def messages_in(url: str, queue: str) -> int:
    async with Redis.from_url(url) as redis:
        return int(await redis.xlen(queue))


def test_dead_letters_are_listed_and_replayed(valkey: Valkey) -> None:
    queue = f"q{token_hex(4)}"
    asyncio.run(add(valkey.url, queue))
    where = ("--queue", f"{valkey.url}?name={queue}")
    listed = dead_letters("ls", *where)
    assert listed.exit_code == 3, listed.output
    assert "order-17  AccessDeniedError" in listed.stdout
    assert "TSTXYZ" not in listed.output
    as_json = dead_letters("ls", "--json", *where)
    assert (as_json.exit_code, as_json.stderr) == (3, "")
    (letter,) = [json.loads(line) for line in as_json.stdout.splitlines()]
    assert (letter["task"], letter["task_id"]) == ("loanasync:approve", "order-17")
    assert dead_letters("replay", "7-7", *where).exit_code == 1
    unclear = dead_letters("replay", "all", "7-7", *where)
    assert (unclear.exit_code, unclear.stderr.partition("\n")[0]) == (
        1,
        "0 dead letters put back into the queue",
    )
    elsewhere = dead_letters("ls", "--queue", f"{valkey.url}?db=1&name={queue}")
    assert (elsewhere.exit_code, "there is no queue" in elsewhere.stderr) == (2, True)
    done = dead_letters("replay", letter["id"], *where)
    assert (done.exit_code, done.stderr) == (0, "1 dead letter put back into the queue\n")
    assert asyncio.run(messages_in(valkey.url, queue)) == 1
    again = dead_letters("ls", *where)
    assert (again.exit_code, again.stderr) == (0, "no dead letters\n")
    assert dead_letters("replay", "all", *where).stderr == "0 dead letters put back into the queue\n"


def test_dead_letters_with_a_wrong_server_or_queue_fail(valkey: Valkey, nats: Nats) -> None:
    message = "there is no queue nowhere on this server: name the server and the queue"
    for address in (f"{valkey.url}?protocol=3&name=nowhere", f"{nats.url}?name=nowhere"):
        no_queue = dead_letters("ls", "--queue", address)
        assert (no_queue.exit_code, no_queue.stderr.startswith(message)) == (2, True)
    no_server = dead_letters("ls", "--queue", "redis://:SECRET@127.0.0.1:1")
    assert no_server.exit_code == 1
    assert no_server.stderr.startswith("the queue cannot be used (ConnectionError): check --queue")
    for arguments in (["ls", "--queue", "http://127.0.0.1"], ["replay", "--queue", valkey.url]):
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
    done = dead_letters("replay", "all", "--queue", f"{valkey.url}?name={queue}")
    assert (done.exit_code, done.stderr.splitlines()[0]) == (1, "1 dead letter put back into the queue")
    assert "the queue cannot be used (ConnectionError)" in done.stderr
