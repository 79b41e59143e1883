"""Configuration of a client: its shop, its options, and the environment."""

import platform
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Any, Self
from urllib.parse import quote, urlsplit

import attrs
from attrs import field, frozen

from loanasync._display.masking import mask
from loanasync._models.dialect import Dialect
from loanasync._settings import Limits, RetryPolicy, Timeout
from loanasync._validation import validators as values
from loanasync.errors import ConfigurationError

_TOKEN = re.compile("[\x21-\x7e]+")
_SEGMENT = re.compile(r"[\x21-\x7e]+")
_VARIABLES = {setting: f"LOANASYNC_{setting.upper()}" for setting in ("base_url", "shop_id", "auth_token")}
_PATH_CHARACTERS = re.compile(r"[/\\?#%]")


@frozen(kw_only=True)
class Shop:
    """A shop at an environment of the service; what of it goes into a URL is already quoted."""

    base_url: str
    shop_id: str
    headers: Mapping[str, str] = field(repr=mask, hash=False)
    host: str
    port: int


def require(kind: type, setting: str, value: object) -> None:
    """Refuse a setting of a wrong type where it is given, not where it is used first.

    Raises:
        ConfigurationError: The value is of another type.
    """
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigurationError(setting, f"must be of type {kind.__name__}, not {values.type_name(value)}")


def require_provider(of: str, setting: str, value: object) -> None:
    """Refuse what is no provider of OpenTelemetry's: another object of it is easily given in its place.

    Raises:
        ConfigurationError: The value does not give out tracers, or meters.
    """
    if value is not None and not callable(getattr(value, f"get_{of.lower()}", None)):
        raise ConfigurationError(
            setting, f"must be OpenTelemetry's {of}Provider, not {values.type_name(value)}"
        )


def configure(base_url: object, shop_id: object, auth_token: object) -> Shop:
    """Check what identifies a shop (spec §5).

    Raises:
        ConfigurationError: The first setting that cannot work, by name.
    """
    try:
        return _shop(base_url, shop_id, auth_token)
    except ConfigurationError as error:
        wrong = error.args
    del base_url, shop_id, auth_token  # secret: must not stand in the traceback, nor must the frames below
    raise ConfigurationError(*wrong)


def _shop(base_url: object, shop_id: object, auth_token: object) -> Shop:
    address, host, port = _address(base_url)
    return Shop(
        base_url=address,
        shop_id=quote(_shop_id(shop_id), safe=""),
        headers={
            "Accept": "application/json",
            # A decision is about a kilobyte: nothing to gain, and a session may be set to inflate nothing.
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": _user_agent(),
            "X-Auth-Token": _auth_token(auth_token),  # spec §5
        },
        host=host,
        port=port,
    )


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Read the settings of a shop from environment variables; none has a default.

    Raises:
        ConfigurationError: The first variable that is not set.
    """
    settings = {setting: environment.get(variable, "") for setting, variable in _VARIABLES.items()}
    missing = [_VARIABLES[setting] for setting, value in settings.items() if not value.strip()]
    if not missing:
        return settings
    del environment, settings  # secret: must not stand in the traceback
    raise ConfigurationError(missing[0], "must be set in the environment")


@cache
def release(package: str) -> str:
    """The version of a package that is installed; its metadata is a file, and read once."""
    from importlib.metadata import version  # noqa: PLC0415  (it takes a tenth of our import, and is for clients)

    return version(package)


def _user_agent() -> str:
    return f"loanasync/{release('loanasync')} aiohttp/{release('aiohttp')} Python/{platform.python_version()}"


def _address(base_url: object) -> tuple[str, str, int]:
    if (wrong := values.text(base_url)) is not None:
        raise ConfigurationError("base_url", wrong)
    wrong = "must be an address such as https://loans.example.com, without user, query and fragment"
    try:
        parts = urlsplit(str(base_url))
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")  # what the resolver will do; labels may be too long
    except ValueError:  # and UnicodeError, which is one
        host, port, parts = None, None, urlsplit("")
    extras = "@" in parts.netloc or parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or not host or extras or not str(base_url).isascii():
        raise ConfigurationError("base_url", wrong)
    if " " in str(base_url) or "%" in str(base_url) or ".." in parts.path.split("/"):
        raise ConfigurationError("base_url", wrong)
    if parts.scheme == "http" and not _is_loopback(host):
        raise ConfigurationError(
            "base_url",
            "must be https: over http the token and the customer's data are open to read",
        )
    default = 443 if parts.scheme == "https" else 80
    # In one spelling, whichever is given: a ledger's keys are made from it.
    where = f"[{host}]" if ":" in host else host
    if port not in (None, default):
        where = f"{where}:{port}"
    return f"{parts.scheme}://{where}{parts.path.rstrip('/')}", host, port or default


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _shop_id(shop_id: object) -> str:
    if (wrong := values.text(shop_id)) is not None:
        raise ConfigurationError("shop_id", wrong)
    segment = str(shop_id)
    # ".." is normalised away by URL libraries: the request would go to another resource.
    if segment in (".", "..") or not _SEGMENT.fullmatch(segment) or _PATH_CHARACTERS.search(segment):
        raise ConfigurationError(
            "shop_id", "must be printable ASCII without spaces and without any of / \\ ? # %"
        )
    return segment


def _auth_token(auth_token: object) -> str:
    if (wrong := values.text(auth_token)) is not None:
        raise ConfigurationError("auth_token", wrong)
    if not _TOKEN.fullmatch(str(auth_token)):
        raise ConfigurationError("auth_token", "must be printable ASCII without spaces")
    return str(auth_token)


_CALLS_AT_ONCE = 100  # with a session of our own, unless max_concurrency says otherwise


@attrs.frozen(kw_only=True)
class Options:
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
            raise ConfigurationError("strict", "needs python-stdnum: pip install 'loanasync[strict]'")

    def changed(
        self, *, shop_id: str | None = None, auth_token: str | None = None, **changes: object
    ) -> Self:
        """These options with those changes that are not None.

        Raises:
            ConfigurationError: A change cannot work; it is named.
        """
        new: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        try:
            if (shop_id is None) != (auth_token is None):
                raise ConfigurationError("shop_id", "and auth_token belong together: give both or none")
            if shop_id is not None:
                new["shop"] = configure(self.shop.base_url, shop_id, auth_token)
        finally:
            del auth_token  # secret: must not stand in a traceback
        return attrs.evolve(self, **new)


def slots_of(session: object, max_concurrency: int | None) -> int | None:
    """Return the number of slots of one event loop; None if the user's session limits connections.

    Raises:
        ConfigurationError: The limit is no count.
    """
    if max_concurrency is None:
        return _CALLS_AT_ONCE if session is None else None
    require(int, "max_concurrency", max_concurrency)
    if max_concurrency < 1:
        raise ConfigurationError("max_concurrency", "must be at least 1, or None")
    return max_concurrency
