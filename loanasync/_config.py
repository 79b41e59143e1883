"""Configuration of a client: shop, options, and environment variables."""

import platform
import re
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Any, Final, Self, TypeAlias
from urllib.parse import quote, urlsplit

import attrs
from attrs import field, frozen

from loanasync._models import values
from loanasync._models.masking import ReadOnlyDict, ValueObject
from loanasync._settings import Dialect, Limits, RetryPolicy, Timeout
from loanasync._version import __version__
from loanasync.errors import ConfigurationError

TOKEN_HEADER: Final = "X-Auth-Token"  # noqa: S105  (the name of spec §5)
_WORD = re.compile(r"[\x21-\x7e]+")  # printable ASCII without spaces
_VARIABLES = {setting: f"LOANASYNC_{setting.upper()}" for setting in ("base_url", "shop_id", "auth_token")}
_PATH_CHARACTERS = re.compile(r"[/\\?#%]")

LEDGER: Final = "LOANASYNC_LEDGER"
LEDGER_KEY: Final = "LOANASYNC_LEDGER_KEY"
LEDGER_OLD_KEYS: Final = "LOANASYNC_LEDGER_OLD_KEYS"
LEDGER_CIPHER: Final = "LOANASYNC_LEDGER_CIPHER"
_LEDGER_VARIABLES = (LEDGER, LEDGER_KEY, LEDGER_OLD_KEYS, LEDGER_CIPHER)
# Kubernetes sets these for each Service, also for one that is named loanasync-ledger.
_OF_KUBERNETES = re.compile(r".+_(SERVICE_HOST|SERVICE_PORT.*|PORT|PORT_.*)", re.DOTALL)
_RESEMBLANCE = 0.875  # of two names: 1.0 if they are equal


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


def require(expected_type: type, setting: str, value: object) -> None:
    """Check the type of a setting when the client is created, not when the setting is first used.

    Raises:
        ConfigurationError: The value has another type.
    """
    if not isinstance(value, expected_type) or (expected_type is int and isinstance(value, bool)):
        raise ConfigurationError(
            setting, f"must be of type {expected_type.__name__}, not {values.type_name(value)}"
        )


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


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a shop from environment variables, which have no defaults.

    Raises:
        ConfigurationError: The name of a variable is mistyped; or variables are not set, and the error names
            all of them.
    """
    if (mistyped := _mistyped_error(environment, _VARIABLES.values())) is not None:
        del environment  # secret: must not be in the traceback
        raise mistyped
    settings = {setting: environment.get(variable, "") for setting, variable in _VARIABLES.items()}
    missing = [_VARIABLES[setting] for setting, value in settings.items() if not value.strip()]
    if not missing:
        return settings
    del environment, settings  # secret: must not be in the traceback
    others = f", and so must {' and '.join(missing[1:])}" if missing[1:] else ""
    raise ConfigurationError(missing[0], f"must be set in the environment{others}")


def normalized_url(base_url: object) -> str:
    """Return the form of a base URL that ledgers store.

    Raises:
        ConfigurationError: The URL is invalid.
    """
    return _address(base_url)[0]


def ledger_variables(environment: Iterable[str]) -> list[str]:
    """Return the variables of the ledger that are set. `loanasync.ledger.environment` reads them.

    Without a mistyped variable a program would have no ledger, or another key, and would request known
    customers again.

    Args:
        environment: Names of environment variables.

    Raises:
        ConfigurationError: A variable begins like those of the ledger and is unknown, or a name is mistyped.
    """
    if (mistyped := _mistyped_error(environment, _LEDGER_VARIABLES, prefix=LEDGER)) is not None:
        del environment  # its values may be secret
        raise mistyped
    return [name for name in _LEDGER_VARIABLES if name in environment]


def _mistyped_error(
    environment: Iterable[str], known: Collection[str], prefix: str = ""
) -> ConfigurationError | None:
    """Return an error that names the first mistyped variable and the name that was probably meant."""
    from difflib import get_close_matches  # noqa: PLC0415  (clients without variables do not need it)

    for name in environment:
        upper = name.upper()
        begins = prefix != "" and upper.startswith(prefix)
        is_other = _OF_KUBERNETES.fullmatch(upper) is not None
        is_other |= upper.endswith(tuple(f"_{each}" for each in known))
        is_other |= not begins and upper.startswith(tuple(f"{each}_" for each in known))  # such as ..._FILE
        if name not in known and not is_other:
            cutoff = 0.0 if begins else _RESEMBLANCE
            for meant in get_close_matches(upper, known, n=1, cutoff=cutoff):
                return ConfigurationError(name, f"is unknown; rename it to {meant}, or remove it")
    return None


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


_DEFAULT_MAX_CONCURRENCY = 100  # with the client's own session


@attrs.frozen(kw_only=True, slots=False, eq=False, repr=False)
class Options(ValueObject):
    """The options of a client: shop, dialect, limits, retries, timeouts and strictness."""

    shop: Shop
    dialect: Dialect
    limits: Limits
    retry: RetryPolicy
    timeout: Timeout
    strict: bool

    def __attrs_post_init__(self) -> None:
        require(Dialect, "dialect", self.dialect)
        require(Limits, "limits", self.limits)
        require(RetryPolicy, "retry", self.retry)
        require(Timeout, "timeout", self.timeout)
        require(bool, "strict", self.strict)
        if self.strict and find_spec("stdnum") is None:
            raise ConfigurationError(
                "strict", "needs python-stdnum; run: pip install '.[strict]' in a checkout"
            )

    def with_changes(
        self, *, shop_id: str | None = None, auth_token: AuthToken | None = None, **changes: object
    ) -> Self:
        """Return a copy with the changes that are not None.

        Raises:
            ConfigurationError: A setting is invalid; the error names it.
        """
        new: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        try:
            if (shop_id is None) != (auth_token is None):
                raise ConfigurationError("shop_id", "must be given together with auth_token")
            if shop_id is not None:
                new["shop"] = configure(self.shop.base_url, shop_id, auth_token)
        finally:
            del auth_token  # secret: must not be in a traceback
        return attrs.evolve(self, **new)


def slot_count(session: object, max_concurrency: int | None) -> int | None:
    """Return the number of slots per event loop, None if the user's session limits the connections.

    Raises:
        ConfigurationError: `max_concurrency` is not a positive int.
    """
    if max_concurrency is None:
        return _DEFAULT_MAX_CONCURRENCY if session is None else None
    require(int, "max_concurrency", max_concurrency)
    if max_concurrency < 1:
        raise ConfigurationError("max_concurrency", "must be at least 1, or None")
    return max_concurrency
