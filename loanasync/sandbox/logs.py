"""What the sandbox's HTTP server logs: that something failed and where, never what was sent."""

import logging
import traceback


class _WithoutTexts(logging.Filter):
    """An exception's text may quote a header or an address; its type and place cannot."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            frames = traceback.extract_tb(error.__traceback__)
            place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
            record.msg, record.args = f"a request could not be handled: {type(error).__name__}{place}", ()
            record.exc_info = record.exc_text = None
        return True


def quiet_logger() -> logging.Logger:
    """The logger ``loanasync.sandbox``, for aiohttp's server to use."""
    logger = logging.getLogger("loanasync.sandbox")
    if not any(isinstance(each, _WithoutTexts) for each in logger.filters):
        logger.addFilter(_WithoutTexts())
    return logger
