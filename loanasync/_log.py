"""The logger ``loanasync``, and functions that write events and warnings to it."""

import logging
from contextlib import suppress
from pathlib import Path
from traceback import extract_tb

LOGGER = logging.getLogger("loanasync")
LOGGER.addHandler(logging.NullHandler())  # without it, Python would print warnings to stderr


def log_event(level: int, message: str, **fields: object) -> None:
    """Log an event. Its fields fill the placeholders of the message and are attributes of the record."""
    attributes = {name: value for name, value in fields.items() if value is not None}
    try:
        try:
            LOGGER.log(level, message, fields, extra=attributes)
        except KeyError:  # the user's record factory already sets an attribute of that name
            LOGGER.log(level, message, fields)
    except Exception as error:  # noqa: BLE001  (raised by a handler or a filter)
        log_failure(error)


_warned: set[str] = set()


def warn_once(message: str) -> None:
    """Log a warning, once for each message."""
    if message not in _warned:
        _warned.add(message)
        with suppress(Exception):  # a log handler may fail
            LOGGER.warning(message)


def log_failure(error: Exception) -> None:
    """Log an error of telemetry, once for each type and location."""
    # The message of the error is not logged, because it may quote personal values.
    warn_once(f"telemetry failed with {type(error).__name__}{_location(error)}; calls are not affected")


def _location(error: Exception) -> str:
    raised = extract_tb(error.__traceback__, limit=-1)
    return f" ({Path(raised[0].filename).name}:{raised[0].lineno})" if raised else ""
