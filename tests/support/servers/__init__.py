"""Real servers for tests, from wheels: no root, no container, each on a free port with separate data."""

from support.servers.nats import Nats
from support.servers.postgres import Postgres
from support.servers.process import MissingServerError, Server
from support.servers.valkey import Valkey

__all__ = ["MissingServerError", "Nats", "Postgres", "Server", "Valkey"]
