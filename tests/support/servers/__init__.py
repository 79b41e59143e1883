"""Real servers for tests, mostly from wheels: no root, no container, each on a free port with own data."""

from support.servers.nats import Nats
from support.servers.pgbouncer import PgBouncer
from support.servers.postgres import Postgres, Standby
from support.servers.process import MissingServerError, Server
from support.servers.valkey import Valkey

__all__ = ["MissingServerError", "Nats", "PgBouncer", "Postgres", "Server", "Standby", "Valkey"]
