"""Safeguards: local addresses only, no production tokens, logs without request data."""

import logging
import re
import traceback
from ipaddress import ip_address

HINT = "this token looks like a production one: take it out of the sandbox's reach and use a made-up one"

_SAYS_SO = re.compile(r"(?:^|[^a-z])(?:live|prod|production)(?:[^a-z]|$)", re.IGNORECASE)
# Nobody makes up so many characters, so different from each other.
_LONG = 32
_DIFFERENT = 12


def is_loopback(host: str) -> bool:
    """Whether a host is this machine's own."""
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def check_host(host: str, *, allow_remote: bool) -> None:
    """Refuse to serve the network by accident.

    Raises:
        TypeError: `allow_remote` is not a boolean; a text such as "false" would be true.
        ValueError: The host is not this machine's own, and nobody said that this is meant.
    """
    if not isinstance(allow_remote, bool):
        raise TypeError(f"allow_remote must be True or False, not {type(allow_remote).__name__}")
    if not is_loopback(host) and not allow_remote:
        raise ValueError(
            f"host {host} is not loopback: whoever reaches it can read and change everything."
            " Where that is meant, as in a container, say allow_remote (--allow-remote)"
        )


def looks_real(token: str) -> bool:
    """Whether a token may be one of a real shop's."""
    return bool(_SAYS_SO.search(token)) or (len(token) >= _LONG and len(set(token)) >= _DIFFERENT)


def check_token(token: str) -> None:
    """Refuse a token that may open a real shop.

    Raises:
        ValueError: It looks like one, or no header can bring it.
    """
    if not token:
        raise ValueError("auth_token is empty: give any made-up one, such as 'sandbox-token'")
    if not re.fullmatch("[!-~]+", token):
        raise ValueError("auth_token must be printable ASCII without spaces: else no header can bring it")
    if looks_real(token):
        raise ValueError(f"{HINT}, such as 'sandbox-token'")


def check_shop(shop_id: str, shop_url: str | None) -> None:
    """Refuse a shop that no call could name, and a way back that leads elsewhere than to a page.

    Raises:
        ValueError: One of them cannot work; it is named.
    """
    if not re.fullmatch(r"[!-.0-~]+", shop_id) or shop_id in (".", ".."):
        raise ValueError(f"shop_id {shop_id!r} must be a part of a path: ASCII without spaces and slashes")
    if shop_url is not None and not re.match("https?://|/", shop_url):
        raise ValueError(f"shop_url {shop_url!r} must begin with http://, https:// or /")


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
