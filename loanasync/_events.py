"""What a client tells the logger ``loanasync``."""

import logging
from contextlib import suppress

__all__ = ["LOGGER", "broken", "tell"]

LOGGER = logging.getLogger("loanasync")
LOGGER.addHandler(logging.NullHandler())  # a shop that asked for no logs gets none on its terminal


def tell(level: int, message: str, **fields: object) -> None:
    """Log an event; its fields are in the message by name, and in the record as attributes."""
    said = {name: value for name, value in fields.items() if value is not None}
    try:
        try:
            LOGGER.log(level, message, fields, extra=said)
        except KeyError:  # the shop's record factory has an attribute of that name: it keeps its own
            LOGGER.log(level, message, fields)
    except Exception as error:  # noqa: BLE001  (a handler's or a filter's)
        broken(error)


_told: set[str] = set()


def broken(error: Exception) -> None:
    """Log that a part of telemetry failed: once for each kind of error, since it fails in every call."""
    name = type(error).__name__
    if name not in _told:
        _told.add(name)
        with suppress(Exception):  # where the logging is what is broken, nobody is left to be told
            # The type alone: an error's text may quote what it was given.
            LOGGER.warning("telemetry failed with %s; calls go on without it", name)
