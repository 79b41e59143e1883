"""What keeps the sandbox harmless: this machine only, and no token that might open a real shop."""

import re
from ipaddress import ip_address

__all__ = ["HINT", "check_host", "check_token", "is_loopback", "looks_real"]

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
        ValueError: The host is not this machine's own, and nobody said that this is meant.
    """
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
        ValueError: It looks like one, or is empty.
    """
    if not token:
        raise ValueError("auth_token is empty: give any made-up one, such as 'sandbox-token'")
    if looks_real(token):
        raise ValueError(f"{HINT}, such as 'sandbox-token'")
