"""pytest plugin that fails an async test by name if it does not end within a time limit."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

import pytest

LIMIT = 240.0  # seconds; less than `faulthandler_timeout`, which ends the process

Test = Callable[..., Coroutine[Any, Any, None]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    if isinstance(item, pytest.Function) and iscoroutinefunction(item.obj):
        item.obj = _limited(item.obj, item.nodeid)
    return (yield)


def _limited(test: Test, name: str) -> Test:
    @wraps(test)
    async def run(*args: object, **options: object) -> None:
        try:
            async with asyncio.timeout(LIMIT) as limit:
                await test(*args, **options)
        except TimeoutError:
            if not limit.expired():  # raised by the test itself
                raise
            pytest.fail(f"{name} did not end within {LIMIT:g} seconds")

    return run
