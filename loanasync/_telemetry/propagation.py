"""Trace headers of a request, and the headers that a propagator must not set."""

import re
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from loanasync._settings import Propagate
from loanasync.errors import ConfigurationError

Injector: TypeAlias = Callable[[Context], dict[str, str]]

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # of a header (RFC 9110 §5.6.2)
# Headers that a propagator must not set, because they belong to the request itself.
_RESERVED = {
    *("accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type"),
    *("cookie", "expect", "host", "te", "trailer", "transfer-encoding", "upgrade", "user-agent"),
    "x-auth-token",
}


def injector(propagate: Propagate) -> Injector:
    """Return the function that makes the trace headers of an attempt from the context of its span.

    Raises:
        ConfigurationError: The global propagators cannot be loaded.
    """
    if propagate == "off":
        return lambda _: {}
    if propagate == "traceparent":
        # Without baggage, because the service is a third party.
        return partial(_inject_into_dict, TraceContextTextMapPropagator().inject)
    return _global_injector()


def _inject_into_dict(inject: Callable[[dict[str, str], Context], None], context: Context) -> dict[str, str]:
    headers: dict[str, str] = {}
    inject(headers, context)
    return headers


def _global_injector() -> Injector:
    try:
        from opentelemetry import propagate  # noqa: PLC0415  (slow: it searches all installed packages)
    except ValueError:
        problem = (
            "cannot be global: OTEL_PROPAGATORS contains an unknown propagator; install it or remove its name"
        )
        raise ConfigurationError("telemetry.propagate", problem) from None

    def inject(context: Context) -> dict[str, str]:
        headers = _inject_into_dict(propagate.inject, context)
        return {name: value for name, value in headers.items() if _can_be_sent(name, value)}

    return inject


def _can_be_sent(name: object, value: object) -> bool:
    """Return True for a valid header that is not reserved; a propagator of the user's may set anything."""
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    return _NAME.fullmatch(name) is not None and name.lower() not in _RESERVED and value.isprintable()
