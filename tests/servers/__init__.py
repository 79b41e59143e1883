"""Real servers for tests, from wheels: no root, no container, each on a free port with data of its own."""

from servers.nats import Nats
from servers.postgres import Postgres
from servers.process import MissingServerError, Server
from servers.valkey import Valkey

__all__ = ["MissingServerError", "Nats", "Postgres", "Server", "Valkey"]
