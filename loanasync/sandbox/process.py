"""A sandbox in a separate process, and a proxy that controls it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any, Self
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

from loanasync.sandbox.readings import NO_READINGS, Readings
from loanasync.sandbox.rules import fault_texts

if TYPE_CHECKING:
    from loanasync import LoanClient


_READY = "sandbox ready at "
_SPELLED = ("status", "evaluated")  # None, True and False as the journal's filters have them
_PATIENCE = 10.0  # seconds, for a process that was asked for something
_OPENER = build_opener(ProxyHandler({}))  # it is on this machine, whatever the environment says


class SandboxProcess:
    """A running ``python -m loanasync.sandbox``; made by `Sandbox.subprocess`.

    Example:
        >>> with Sandbox.subprocess() as process:
        ...     shop = process.client()
        ...     process.fault("create_request=500x1")
        ...     answer = run(shop.create_request({"fiscalCode": fiscal_code}))
        ...     print(process.pid > 0, [call["status"] for call in process.calls()])
        ...     process.reset()
        ...     run(shop.aclose())
        ...     process.kill()
        True [500, 201]
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.shop_id: str = options.get("shop_id", "sandbox-shop")
        self.auth_token: str = options.get("auth_token", "sandbox-token")
        self.base_url: str = ""
        self._command = [sys.executable, "-m", "loanasync.sandbox", *_arguments(options)]
        self._process: subprocess.Popen[str] | None = None
        self._told: IO[str] | None = None

    @property
    def pid(self) -> int:
        """The process's number.

        Raises:
            RuntimeError: It does not run.
        """
        if self._process is None:
            raise RuntimeError("the sandbox runs within `with Sandbox.subprocess()` only")
        return self._process.pid

    def client(self, **options: Any) -> "LoanClient":
        """A client of the SDK for this sandbox; options as for `loanasync.LoanClient`."""
        return client_of(self.base_url, self.shop_id, self.auth_token, options)

    def calls(self, **criteria: str | float | None) -> list[dict[str, Any]]:
        """The journal, masked, oldest first.

        Args:
            criteria: As for `Journal.calls`: operation, status, fiscal_code, fault and the like.

        Raises:
            RuntimeError: It does not run.
            ValueError: There is no such criterion, or the journal is off.
        """
        texts = {name: str(value).lower() if name in _SPELLED else value for name, value in criteria.items()}
        lines = self._ask(f"/_sandbox/journal.jsonl?{urlencode(texts)}").split("\n")
        return [json.loads(line) for line in lines if line]

    def fault(self, text: str) -> None:
        """Add a rule in words, such as ``approve=500:0.1:after``.

        Raises:
            ValueError: The words are not understood.
        """
        self._ask("/_sandbox/faults", {"rule": text})

    def reset(self) -> None:
        """Forget all customers, calls, findings and rules."""
        self._ask("/_sandbox/reset", {})

    def kill(self) -> None:
        """End it as a crash would, without a chance to tidy up."""
        os.kill(self.pid, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
        self._wait()

    def _ask(self, path: str, form: Mapping[str, str] | None = None) -> str:
        _ = self.pid  # it runs
        data = None if form is None else urlencode(form).encode()
        request = Request(self.base_url + path, data=data)  # noqa: S310  (its own address)
        try:
            with _OPENER.open(request, timeout=_PATIENCE) as answer:
                text: str = answer.read().decode()
        except HTTPError as error:
            with error:
                raise ValueError(error.read().decode()) from None
        return text

    def __enter__(self) -> Self:
        if self._process is not None:
            raise RuntimeError(f"the sandbox runs already, at {self.base_url}")
        # A pipe that nobody reads would block.
        self._told = tempfile.TemporaryFile("w+", encoding="utf-8")
        self._process = subprocess.Popen(  # noqa: S603  (this very Python)
            self._command, stdout=subprocess.PIPE, stderr=self._told, text=True
        )
        assert self._process.stdout is not None  # noqa: S101  (for the type checkers)
        line = self._process.stdout.readline()
        if not line.startswith(_READY):
            self._wait()
            self._told.seek(0)
            told = self._told.read().strip()
            self._told.close()
            raise RuntimeError(told or "the sandbox ended before it was ready")
        self.base_url = line.removeprefix(_READY).strip()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._wait()
        if self._told is not None:
            self._told.close()

    def _wait(self) -> None:
        if self._process is not None:
            try:
                self._process.communicate(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
            self._process = None


def _arguments(options: Mapping[str, Any]) -> list[str]:
    arguments: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if name == "faults":
            arguments += [f"--fault={each}" for each in fault_texts(value)]
        elif name == "readings":
            if not isinstance(value, Readings):
                raise TypeError(NO_READINGS)
            arguments += [f"--reading={each}" for each in value.texts()]
        elif value is True:
            arguments.append(option)
        elif value is not None and value is not False:
            arguments.append(f"{option}={value}")
    return arguments


def client_of(base_url: str, shop_id: str, auth_token: str, options: Mapping[str, Any]) -> "LoanClient":
    """A client for the service at this address."""
    from loanasync import LoanClient  # noqa: PLC0415  (the sandbox itself runs without the SDK)

    return LoanClient(base_url, shop_id=shop_id, auth_token=auth_token, **options)
