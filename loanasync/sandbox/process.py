"""`SandboxProcess`: a sandbox in a separate process, controlled over HTTP."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any, Self, Unpack
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

from loanasync._public import LazyModule
from loanasync.sandbox.forms import JSON_FILTERS
from loanasync.sandbox.readings import READINGS_TYPE_ERROR, Readings
from loanasync.sandbox.rules import fault_list

if TYPE_CHECKING:
    from loanasync import _client as sdk
else:
    sdk = LazyModule("loanasync._client")


_NO_INTERPRETER = (
    "Sandbox.subprocess() needs a Python interpreter, and this program is frozen or embedded: "
    "use Sandbox.in_thread(), or start `python -m loanasync.sandbox` yourself"
)
_READY = "sandbox ready at "
_TIMEOUT = 10.0  # seconds, for a response or for the end of the process
_OPENER = build_opener(ProxyHandler({}))  # ignores proxy settings, because the process is on this machine


class SandboxProcess:
    """A sandbox in a separate process, ``python -m loanasync.sandbox``. Create it with `Sandbox.subprocess`.

    The process runs inside its ``with`` block. `base_url`, `shop_id` and `auth_token` are the values that a
    client needs.

    Args:
        options: The arguments of `Sandbox`, by name.

    Raises:
        RuntimeError: The process could not start; the message is its error output. Raised by the ``with``. Or
            this program has no Python interpreter that could run the sandbox, as one made with PyInstaller.

    Example:
        >>> with Sandbox.subprocess() as process:
        ...     shop = process.client()
        ...     process.fault("create_request=500x1")
        ...     created = run(shop.create_request({"fiscalCode": fiscal_code}))
        ...     print(process.pid > 0, [call["status"] for call in process.calls()])
        ...     process.reset()
        ...     run(shop.aclose())
        ...     process.kill()
        True [500, 201]
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        # The executable of a frozen program is the program: it would start itself again and again.
        if getattr(sys, "frozen", False) or not sys.executable:
            raise RuntimeError(_NO_INTERPRETER)
        self.shop_id: str = options.get("shop_id", "sandbox-shop")
        self.auth_token: str = options.get("auth_token", "sandbox-token")
        self.base_url: str = ""
        self._command = [sys.executable, "-m", "loanasync.sandbox", *_arguments(options)]
        self._process: subprocess.Popen[str] | None = None
        self._stderr: IO[str] | None = None

    @property
    def pid(self) -> int:
        """Process id.

        Raises:
            RuntimeError: The process was not started, or was ended by the ``with`` or by `kill`.
        """
        if self._process is None:
            raise RuntimeError("the sandbox process is not running: use `with Sandbox.subprocess()`")
        return self._process.pid

    def client(self, **options: Unpack["sdk.ClientOptions"]) -> "sdk.LoanClient":
        """Return a `loanasync.LoanClient` for this sandbox.

        Args:
            options: Arguments of `loanasync.LoanClient`. Address and credentials are those of the sandbox.
        """
        return make_client(self.base_url, self.shop_id, self.auth_token, options)

    def calls(self, **criteria: str | float | None) -> list[dict[str, Any]]:
        """Return the calls in the journal as JSON objects with personal data masked, oldest first.

        Args:
            criteria: The calls to return: number, method, route, operation, fiscal_code, status, evaluated
                or fault, as for `Journal.calls`.

        Raises:
            RuntimeError: The process is not running.
            ValueError: A criterion is unknown or has an invalid value, or the journal is switched off.
        """
        texts = {
            name: json.dumps(value) if name in JSON_FILTERS else value for name, value in criteria.items()
        }
        lines = self._request(f"/_sandbox/journal.jsonl?{urlencode(texts)}").split("\n")
        return [json.loads(line) for line in lines if line]

    def fault(self, text: str) -> None:
        """Add a rule.

        Args:
            text: The rule as ``[operation=]words[:rate[:phase]]``, such as ``approve=500:0.1:after``.

        Raises:
            RuntimeError: The process is not running.
            ValueError: A part of the rule is not valid; the message names it.
        """
        self._request("/_sandbox/faults", {"rule": text})

    def reset(self) -> None:
        """Remove all customers, calls, findings and rules.

        Raises:
            RuntimeError: The process is not running.
        """
        self._request("/_sandbox/reset", {})

    def kill(self) -> None:
        """Kill the process with SIGKILL, as in a crash.

        Raises:
            RuntimeError: The process is not running.
        """
        os.kill(self.pid, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
        self._wait()

    def _request(self, path: str, form: Mapping[str, str] | None = None) -> str:
        _ = self.pid  # raises RuntimeError if the process is not running
        data = None if form is None else urlencode(form).encode()
        request = Request(self.base_url + path, data=data)  # noqa: S310  (a local URL)
        try:
            with _OPENER.open(request, timeout=_TIMEOUT) as response:
                text: str = response.read().decode()
        except HTTPError as error:
            with error:
                raise ValueError(error.read().decode()) from None
        except URLError:
            raise RuntimeError("the sandbox process has ended: see its standard error") from None
        return text

    def __enter__(self) -> Self:
        if self._process is not None:
            raise RuntimeError(f"the sandbox process is already running at {self.base_url}")
        # A file, because the process would block on a full pipe.
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8")
        self._process = subprocess.Popen(  # noqa: S603  (the running interpreter)
            self._command,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            encoding="utf-8",
            env={**os.environ, "PYTHONIOENCODING": "utf-8"},  # else that of the console, such as cp1252
        )
        assert self._process.stdout is not None  # noqa: S101  (for the type checkers)
        line = self._process.stdout.readline()
        if not line.startswith(_READY):
            self._wait()
            self._stderr.seek(0)
            message = self._stderr.read().strip()
            self._stderr.close()
            raise RuntimeError(message or "the sandbox process ended before it was ready")
        self.base_url = line.removeprefix(_READY).strip()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._wait()
        if self._stderr is not None:
            self._stderr.close()

    def _wait(self) -> None:
        if self._process is not None:
            try:
                self._process.communicate(timeout=_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
            self._process = None


def _arguments(options: Mapping[str, Any]) -> list[str]:
    arguments: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if name == "faults":
            arguments += [f"--fault={each}" for each in fault_list(value)]
        elif name == "readings":
            if not isinstance(value, Readings):
                raise TypeError(READINGS_TYPE_ERROR)
            arguments += [f"--reading={each}" for each in value.texts()]
        elif value is True:
            arguments.append(option)
        elif value is not None and value is not False:
            arguments.append(f"{option}={value}")
    return arguments


def make_client(base_url: str, shop_id: str, auth_token: str, options: Mapping[str, Any]) -> "sdk.LoanClient":
    """Return a client of the SDK for a sandbox."""
    from loanasync import LoanClient  # noqa: PLC0415  (the sandbox runs without the SDK)

    client = LoanClient(**{"base_url": base_url, "shop_id": shop_id, "auth_token": auth_token, **options})
    client._set_for_tests()  # noqa: SLF001  (of this package)
    return client
