"""One server of each kind for all tests of a process, started when the first of them asks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.servers import MissingServerError, Nats, Postgres, Valkey

__all__ = ["missing_is_skipped", "nats", "postgres", "valkey"]


@contextmanager
def missing_is_skipped() -> Iterator[None]:
    """Skip what needs a server that has no wheel for this system; where CI is set, that is an error."""
    try:
        yield
    except MissingServerError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    with missing_is_skipped(), Valkey() as server:
        yield server


@pytest.fixture(scope="session")
def nats() -> Iterator[Nats]:
    with missing_is_skipped(), Nats() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with missing_is_skipped(), Postgres() as server:
        yield server
