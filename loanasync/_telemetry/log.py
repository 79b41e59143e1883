"""The logger ``loanasync``. Only this module uses it: handlers and filters of users may raise errors."""

import logging
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from pathlib import Path
from traceback import extract_tb

LOGGER = logging.getLogger("loanasync")
LOGGER.addHandler(logging.NullHandler())  # without it, Python would print warnings to stderr

# Errors of handlers, spans and the like. They do not await, so a CancelledError of them cancels no task.
USER_ERRORS = (Exception, CancelledError)

is_logged: Callable[[int], bool] = LOGGER.isEnabledFor


def log(level: int, message: str, *args: object, attributes: Mapping[str, object] | None = None) -> None:
    """Log a message. An error of a handler, a filter or a record factory is logged once, and never raised.

    Change the state of a call before you log it: a handler may still raise SystemExit or KeyboardInterrupt.
    """
    try:
        LOGGER.log(level, message, *args, extra=attributes, stacklevel=2)
    except USER_ERRORS as error:  # of the user's handler, filter or record factory
        if attributes and isinstance(error, KeyError):  # the user's record factory already sets an attribute
            log(level, message, *args)
        else:
            log_failure(error)


def log_event(level: int, message: str, **fields: object) -> None:
    """Log an event. Its fields fill the placeholders of the message and are attributes of the record."""
    attributes = {name: value for name, value in fields.items() if value is not None}
    log(level, message, fields, attributes=attributes)


_warned: set[str] = set()


def warn_once(message: str) -> None:
    """Log a warning, once for each message."""
    if message not in _warned:
        _warned.add(message)
        log(logging.WARNING, message)


def log_failure(error: Exception | CancelledError) -> None:
    """Log an error of telemetry, once for each type and location."""
    # The message of the error is not logged, because it may quote personal values.
    warn_once(f"telemetry failed with {type(error).__name__}{_location(error)}; calls are not affected")


def _location(error: Exception | CancelledError) -> str:
    raised = extract_tb(error.__traceback__, limit=-1)
    return f" ({Path(raised[0].filename).name}:{raised[0].lineno})" if raised else ""
