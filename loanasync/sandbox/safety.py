"""Safety checks: local addresses only, no production tokens, no request data in logs."""

import logging
import re
from ipaddress import ip_address

HINT = "this token looks like a production token: use a made-up one"

_PRODUCTION = re.compile(r"(?:^|[^a-z])(?:live|prod|production)(?:[^a-z]|$)", re.IGNORECASE)
# Made-up tokens are rarely this long with this many different characters.
_MIN_LENGTH = 32
_MIN_DISTINCT = 12


def require_type(kind: type, **values: object) -> None:
    """Check the types of arguments.

    Raises:
        TypeError: An argument has another type; the message names it.
    """
    for name, value in values.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be of type {kind.__name__}, not {type(value).__name__}")


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address or ``localhost``."""
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a host name
        return host.lower() == "localhost"


def check_host(host: str, *, allow_remote: bool) -> None:
    """Check that the sandbox is not served to the network by accident.

    Raises:
        TypeError: `allow_remote` is not a boolean. A string such as "false" would be true.
        ValueError: The host is not a loopback address, and `allow_remote` is False.
    """
    if not isinstance(allow_remote, bool):
        raise TypeError(f"allow_remote must be True or False, not {type(allow_remote).__name__}")
    if not is_loopback(host) and not allow_remote:
        raise ValueError(
            f"host {host} is not a loopback address: everyone who can reach it could read and change"
            " everything. To allow that, for example in a container, pass allow_remote=True (--allow-remote)"
        )


def looks_like_production(token: str) -> bool:
    """Return whether a token may be the token of a real shop."""
    return bool(_PRODUCTION.search(token)) or (len(token) >= _MIN_LENGTH and len(set(token)) >= _MIN_DISTINCT)


def check_token(token: str) -> None:
    """Check that a token is made up and can be sent in a header.

    Raises:
        ValueError: The token looks like one of a real shop, or cannot be sent in a header.
    """
    if not re.fullmatch("[!-~]+", token):
        raise ValueError("auth_token must be printable ASCII without spaces, such as 'sandbox-token'")
    if looks_like_production(token):
        raise ValueError(f"{HINT}, such as 'sandbox-token'")


def check_shop(shop_id: str, shop_url: str | None) -> None:
    """Check that the shop id fits in a path, and that the link back to the shop is a URL or a path.

    Raises:
        ValueError: An argument is not valid; the message names it.
    """
    if not re.fullmatch(r"[!-~]+", shop_id) or set(shop_id) & set("/\\?#%{}") or shop_id in (".", ".."):
        raise ValueError(f"shop_id {shop_id!r} must fit in a path: ASCII without spaces and /\\?#%{{}}")
    if shop_url is not None and not re.match("https?://|/", shop_url):
        raise ValueError(f"shop_url {shop_url!r} must begin with http://, https:// or /")


def _hide_request_data(record: logging.LogRecord) -> bool:
    """Log only the type of an exception, because its text may quote a header or a URL."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        record.msg, record.args = f"a request could not be handled: {type(error).__name__}", ()
        record.exc_info = record.exc_text = None
    return True


def server_logger() -> logging.Logger:
    """Return the logger ``loanasync.sandbox``, which aiohttp's server uses."""
    logger = logging.getLogger("loanasync.sandbox")
    logger.addFilter(_hide_request_data)  # once: the logger ignores a filter that it has
    return logger
