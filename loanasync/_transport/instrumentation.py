"""OpenTelemetry's instrumentation of aiohttp, which would record the fiscal code in the URL of a request."""

from functools import partial
from types import FunctionType

import aiohttp
from opentelemetry import context as otel_context

# The API has no public names for these keys. A key of our own suppresses nothing, so if OpenTelemetry renames
# its keys, an instrumented session is refused.
_NO_KEY = otel_context.create_key("loanasync")
HTTP_KEY: str = vars(otel_context).get("_SUPPRESS_HTTP_INSTRUMENTATION_KEY", _NO_KEY)
GENERAL_KEY: str = vars(otel_context).get("_SUPPRESS_INSTRUMENTATION_KEY", _NO_KEY)

_PACKAGE = "opentelemetry.instrumentation.aiohttp_client"
# The functions that the hooks of the instrumentation call to find out if they are suppressed. Since 0.60b0
# they call the first one. Older versions call the second one, which ignores the key for HTTP.
_CHECKS = ("is_http_instrumentation_enabled", "is_instrumentation_enabled")


def records_requests(session: aiohttp.ClientSession, key: str) -> bool:
    """Return True if the instrumentation of a session records requests although `key` suppresses it.

    Args:
        session: The user's session.
        key: `HTTP_KEY`, which suppresses instrumentation of HTTP clients, or `GENERAL_KEY`, which suppresses
            all instrumentation.
    """
    suppression = otel_context.attach(otel_context.set_value(key, value=True))
    try:
        return any(_is_enabled(hook) for config in session.trace_configs for hook in config.on_request_start)
    finally:
        otel_context.detach(suppression)


def is_instrumentation_hook(hook: object) -> bool:
    """Return True if a trace hook of a session belongs to the instrumentation."""
    return str(getattr(_function_of(hook), "__module__", None)).startswith(_PACKAGE)


def _function_of(hook: object) -> object:
    """Return the function that a trace hook calls."""
    while isinstance(hook, partial):
        hook = hook.func
    return hook


def _is_enabled(hook: object) -> bool:
    """Return True if `hook` belongs to the instrumentation and would record a request in this context.

    Ask the function that the hook itself calls, because an installed version says nothing about a session
    that was made with a copy or a fork of the instrumentation.
    """
    if not is_instrumentation_hook(hook):
        return False
    function = _function_of(hook)
    if isinstance(function, FunctionType):
        for name in _CHECKS:
            if name in function.__code__.co_names and callable(check := function.__globals__.get(name)):
                return bool(check())
    return True  # an unknown version
