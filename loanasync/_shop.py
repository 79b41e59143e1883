"""A shop in one environment of the service: its address, its identifier and its token (spec §5)."""

import platform
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib.metadata import version
from ipaddress import ip_address
from typing import Final, TypeAlias
from urllib.parse import quote, urlsplit

from attrs import field, frozen

from loanasync import __version__
from loanasync._models import values
from loanasync._models.masking import ReadOnlyDict, ValueObject
from loanasync.errors import ConfigurationError

TOKEN_HEADER: Final = "X-Auth-Token"  # noqa: S105  (the name of spec §5)
_WORD = re.compile(r"[\x21-\x7e]+")  # printable ASCII without spaces
_PATH_CHARACTERS = re.compile(r"[/\\?#%]")

# The token, or a function that returns it, called before each request.
AuthToken: TypeAlias = str | Callable[[], str | Awaitable[str]]


@frozen(kw_only=True, slots=False, eq=False, repr=False)
class Shop(ValueObject):
    """A shop in one environment of the service. `shop_id` is percent-encoded."""

    base_url: str
    shop_id: str
    auth_token: AuthToken = field(repr=False, hash=False)
    host: str
    port: int

    headers: Mapping[str, str] = field(init=False, repr=False, eq=False)
    """The headers of all requests. `Call` adds the token of a function."""

    @headers.default
    def _make_headers(self) -> Mapping[str, str]:
        packages = f"loanasync/{__version__} aiohttp/{_aiohttp_version()}"
        headers = {
            "Accept": "application/json",
            # A response is about a kilobyte, and a user's session may have decompression turned off.
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": f"{packages} Python/{platform.python_version()}",
        }
        if isinstance(self.auth_token, str):
            headers[TOKEN_HEADER] = self.auth_token
        return ReadOnlyDict(headers)  # all requests of the shop share it


def configure(base_url: object, shop_id: object, auth_token: object) -> Shop:
    """Check the URL and the credentials of a shop (spec §5).

    Raises:
        ConfigurationError: The first invalid setting.
    """
    try:
        return _shop(base_url, shop_id, auth_token)
    except ConfigurationError as error:
        arguments = error.args
    # The traceback of the new error contains neither these secrets nor the frames of `_shop`.
    del base_url, shop_id, auth_token
    raise ConfigurationError(*arguments)


def _shop(base_url: object, shop_id: object, auth_token: object) -> Shop:
    address, host, port = _address(base_url)
    return Shop(
        base_url=address,
        shop_id=quote(_shop_id(shop_id), safe=""),
        auth_token=_auth_token(auth_token),
        host=host,
        port=port,
    )


def normalized_url(base_url: object) -> str:
    """Return the form of a base URL that ledgers store.

    Raises:
        ConfigurationError: The URL is invalid.
    """
    return _address(base_url)[0]


@cache
def _aiohttp_version() -> str:
    """Return the version of aiohttp, which need not be loaded."""
    loaded = sys.modules.get("aiohttp")
    return version("aiohttp") if loaded is None else str(loaded.__version__)


def _address(base_url: object) -> tuple[str, str, int]:
    if (violation := values.check_text(base_url)) is not None:
        raise ConfigurationError("base_url", str(violation))
    message = "must be a URL such as https://loans.example.com, without user name, query and fragment"
    try:
        parts = urlsplit(str(base_url))
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")  # as the resolver does; fails for labels that are too long
    except ValueError:  # or its subclass UnicodeError
        host, port, parts = None, None, urlsplit("")
    extras = "@" in parts.netloc or parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or not host or extras or not str(base_url).isascii():
        raise ConfigurationError("base_url", message)
    if " " in str(base_url) or "%" in str(base_url) or ".." in parts.path.split("/"):
        raise ConfigurationError("base_url", message)
    if parts.scheme == "http" and not _is_loopback(host):
        raise ConfigurationError(
            "base_url",
            "must start with https://; over http the token and personal data are sent unencrypted, "
            "which is allowed for localhost and loopback addresses such as 127.0.0.1 only",
        )
    default_port = 443 if parts.scheme == "https" else 80
    # The URL is normalized, because a ledger belongs to one URL.
    authority = f"[{host}]" if ":" in host else host
    if port not in (None, default_port):
        authority = f"{authority}:{port}"
    return f"{parts.scheme}://{authority}{parts.path.rstrip('/')}", host, port or default_port


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        # Python asks a DNS server for shop.localhost and for "localhost.", which may return any address.
        return host == "localhost"


def _shop_id(shop_id: object) -> str:
    if (violation := values.check_text(shop_id)) is not None:
        raise ConfigurationError("shop_id", str(violation))
    segment = str(shop_id)
    # URL libraries resolve "..", so the request would be sent to another resource.
    if segment in (".", "..") or not _WORD.fullmatch(segment) or _PATH_CHARACTERS.search(segment):
        raise ConfigurationError(
            "shop_id", "must be printable ASCII without spaces and without any of / \\ ? # %"
        )
    return segment


def _auth_token(auth_token: object) -> AuthToken:
    if callable(auth_token):
        return auth_token
    if (violation := token_violation(auth_token)) is not None:
        raise ConfigurationError("auth_token", violation)
    return str(auth_token)


def token_violation(token: object) -> str | None:
    """Return the rule that a token breaks, or None. The text does not contain the token."""
    if (violation := values.check_text(token)) is not None:
        return str(violation)
    return None if _WORD.fullmatch(str(token)) else "must be printable ASCII without spaces"
