"""One run of the shop with an agent, and the search in all that the agent sent."""

import json
import os
import pickle
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

from attrs import asdict, define, field, frozen

from loanasync import ApprovalRequest, UserData
from support.agents import shop
from support.agents.collector import collecting, serving
from support.faults.row import http
from support.privacy.plants import CODE, ECHO, LIMITS, PAYLOAD, SAVED, TOKEN, found_in, planted
from support.raw_server import authority


@frozen
class Agent:
    """A monitoring agent: its packages, and the settings with which the shop runs."""

    name: str  # of a function in `shop`
    packages: tuple[str, ...]  # the table shows their versions
    requirements: tuple[str, ...] = ()  # further packages
    settings: tuple[str, ...] = (shop.DEFAULT, shop.EVERYTHING)


AGENTS = (
    Agent("sentry", ("sentry-sdk",)),
    Agent("ddtrace", ("ddtrace",), settings=(shop.DEFAULT, shop.NO_REPLAY, shop.EVERYTHING)),
    Agent("newrelic", ("newrelic",)),
    Agent("elastic", ("elastic-apm",)),
    Agent(
        "logfire",
        ("logfire",),
        ("logfire[aiohttp]>=5",),
        settings=(shop.DEFAULT, shop.AS_TEXT, shop.EVERYTHING),
    ),
    Agent(
        "opentelemetry",
        ("opentelemetry-instrumentation-aiohttp-client", "opentelemetry-instrumentation-logging"),
        ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
    ),
)
SESSIONS = (shop.OWN, shop.THROUGH_AIOHTTP, shop.USERS, shop.USERS_THROUGH_AIOHTTP)
# The headers of a request of the client, with and without a trace.
HEADERS = {"accept", "accept-encoding", "content-length", "content-type", "host", "user-agent"}
HEADERS |= {"connection", "traceparent", "x-auth-token"}

_MARK = "ZZQCONTROL"  # in a request, an exception and a log record of the shop; it is not a planted value
_TIMEOUT = 120  # seconds for one run
_REQUEST = planted(ApprovalRequest)
_SENT = [*asdict(_REQUEST).values(), *asdict(_REQUEST.additional).values(), CODE, TOKEN]
_REPEATED = json.dumps({"errors": {"lastname": [each for each in _SENT if isinstance(each, str)]}}).encode()
_ECHO = json.dumps(ECHO).encode()
# The responses of the service: to a request of each row, None to close the connection, nothing to be silent.
_ROWS: dict[str, bytes | None] = {
    "created": http("200 OK", b"{}"),
    "approved": http("201 Created", json.dumps({**ECHO, "approved": True}).encode()),
    "refused": http("422 Unprocessable", json.dumps({**ECHO, "approved": False}).encode()),
    "completed": http("200 OK", json.dumps(SAVED).encode()),
    "invalid": http("400 Bad Request", _REPEATED),
    "forbidden": http("403 Forbidden", _REPEATED),
    "conflict": http("409 Conflict", _REPEATED),
    "faulty": http("500 Error", _REPEATED),
    "lost": None,
    "silent": b"",
    "malformed": http("201 Created", _ECHO[: len(_ECHO) // 2]),
    _MARK: http("200 OK"),
}


@define
class Outcome:
    """The result of one run."""

    status: int  # exit status of the shop
    output: str
    rows: set[str] = field(factory=set)  # that the service received
    headers: set[str] = field(factory=set)  # of the requests of the client
    sent: str = ""  # by the agent

    @property
    def found(self) -> list[str]:
        """The fields whose planted values the agent sent."""
        return sorted(found_in(self.sent))

    def problems(self) -> Iterator[str]:
        """Yield the reasons why this run proves nothing."""
        if self.status != 0:
            yield f"the shop ended with status {self.status}: {self.output[-1000:]}"
        if missing := _ROWS.keys() - self.rows:
            yield f"rows without a request: {', '.join(sorted(missing))}"
        if f"/api/shops/{_MARK}" not in self.sent:
            yield "the agent did not send the URL of the shop's own request"
        if _MARK not in self.sent.replace(f"/api/shops/{_MARK}", ""):
            yield "the agent did not send the exception or the log record of the shop"


def play(python: Path, agent: str, setting: str, session: str, folder: Path) -> Outcome:
    """Run the shop in the environment of the agent."""
    outcome = Outcome(0, "")
    authority_file = folder / "authority.pem"
    authority().cert_pem.write_to_path(str(authority_file))
    with collecting(tls=agent == "newrelic") as collector, serving(_service(outcome)) as address:
        plan = {
            "agent": agent,
            "code": CODE,
            "collector": collector.address,
            "data": b64encode(pickle.dumps((_REQUEST, planted(UserData), PAYLOAD, LIMITS))).decode(),
            "mark": _MARK,
            "own_url": f"http://{address}/api/shops/{_MARK}",
            "rows": [row for row in _ROWS if row != _MARK],
            "service": f"http://{address}",
            "session": session,
            "setting": setting,
            "token": TOKEN,
        }
        done = subprocess.run(
            [python, "-P", shop.__file__],
            input=json.dumps(plan),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            cwd=folder,
            encoding="utf-8",
            env={**os.environ, "NEW_RELIC_CA_BUNDLE_PATH": str(authority_file), "PYTHONPATH": ""},
            timeout=_TIMEOUT,
        )
    outcome.status, outcome.output, outcome.sent = done.returncode, done.stdout, collector.text()
    return outcome


def _service(outcome: Outcome) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            row = urlsplit(self.path).path.split("/")[3]
            outcome.rows.add(row)
            if row != _MARK:
                outcome.headers |= {name.lower() for name in self.headers}
            response = _ROWS[row]
            if response == b"":
                with suppress(OSError):
                    self.connection.recv(1)  # until the client hangs up
            if response:
                self.wfile.write(response)
            else:
                self.close_connection = True

        do_PATCH = do_POST  # noqa: N815  (a name of http.server)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
