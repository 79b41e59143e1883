"""Fixtures with one server of each kind per test process, started on first use."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.servers import MissingServerError, Nats, PgBouncer, Postgres, Valkey


@contextmanager
def skip_missing_server() -> Iterator[None]:
    """Skip a test if its server is not installed for this system. In CI, raise the error instead."""
    try:
        yield
    except MissingServerError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    with skip_missing_server(), Valkey() as server:
        yield server


@pytest.fixture(scope="session")
def nats() -> Iterator[Nats]:
    with skip_missing_server(), Nats() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with skip_missing_server(), Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def pgbouncer(postgres: Postgres) -> Iterator[PgBouncer]:
    with skip_missing_server(), PgBouncer(postgres) as server:
        yield server
