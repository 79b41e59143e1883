"""Trace headers of a request: the propagators, and the headers that they may not set."""

import re
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias, get_args

from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from loanasync.errors import ConfigurationError

Propagate = Literal["traceparent", "global", "off"]
Injector: TypeAlias = Callable[[Context], dict[str, str]]

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # a header's, RFC 9110 §5.6.2
# What makes the request a request is not a propagator's to say.
_NOT_THEIRS = {
    *("accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type"),
    *("cookie", "expect", "host", "te", "trailer", "transfer-encoding", "upgrade", "user-agent"),
    "x-auth-token",
}


def injector(wanted: Propagate) -> Injector:
    """Return the function that makes the headers of an attempt from its span's context.

    Raises:
        ConfigurationError: There is no such way.
    """
    if wanted == "off":
        return lambda _: {}
    if wanted == "traceparent":
        return partial(
            _injected, TraceContextTextMapPropagator().inject
        )  # no baggage: it goes to a third party
    if wanted == "global":
        return _global()
    raise ConfigurationError("propagate", f"must be one of {', '.join(get_args(Propagate))}")


def _injected(inject: Callable[[dict[str, str], Context], None], context: Context) -> dict[str, str]:
    headers: dict[str, str] = {}
    inject(headers, context)
    return headers


def _global() -> Injector:
    try:
        from opentelemetry import propagate  # noqa: PLC0415  (it looks for propagators in all that is installed)
    except ValueError:
        wrong = "cannot be global: OTEL_PROPAGATORS names what OpenTelemetry does not find"
        raise ConfigurationError("propagate", wrong) from None

    def inject(context: Context) -> dict[str, str]:
        headers = _injected(propagate.inject, context)  # the shop's propagators: anything may come
        return {name: value for name, value in headers.items() if _can_be_sent(name, value)}

    return inject


def _can_be_sent(name: object, value: object) -> bool:
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    return _NAME.fullmatch(name) is not None and name.lower() not in _NOT_THEIRS and value.isprintable()
