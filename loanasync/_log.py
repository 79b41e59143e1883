"""The logger ``loanasync``, and functions that write events and warnings to it."""

import logging
from contextlib import suppress
from pathlib import Path
from traceback import extract_tb

LOGGER = logging.getLogger("loanasync")
LOGGER.addHandler(logging.NullHandler())  # a shop that asked for no logs gets none on its terminal


def log_event(level: int, message: str, **fields: object) -> None:
    """Log an event; its fields are in the message by name, and in the record as attributes."""
    said = {name: value for name, value in fields.items() if value is not None}
    try:
        try:
            LOGGER.log(level, message, fields, extra=said)
        except KeyError:  # the shop's record factory has an attribute of that name: it keeps its own
            LOGGER.log(level, message, fields)
    except Exception as error:  # noqa: BLE001  (a handler's or a filter's)
        log_failure(error)


_warned: set[str] = set()


def warn_once(message: str) -> None:
    """Log a warning, once for each message."""
    if message not in _warned:
        _warned.add(message)
        with suppress(Exception):  # the logging itself may be broken
            LOGGER.warning(message)


def log_failure(error: Exception) -> None:
    """Log that a part of telemetry failed: once for each kind of error, since it fails in every call."""
    # The type and where it came from: an error's text may quote what it was given.
    warn_once(f"telemetry failed with {type(error).__name__}{_place(error)}; calls go on all the same")


def _place(error: Exception) -> str:
    raised = extract_tb(error.__traceback__, limit=-1)
    return f" ({Path(raised[0].filename).name}:{raised[0].lineno})" if raised else ""
