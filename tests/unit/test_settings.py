"""Configuration of a client: URL, credentials, limits, dialects and policies."""

import math
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from traceback import TracebackException
from typing import Any

import pytest

from loanasync import CircuitBreaker, ConfigurationError, Dialect, Limits, LoanClient, RetryPolicy, Timeout
from loanasync._environment import shop_settings
from loanasync._settings import require_wait
from loanasync._shop import _aiohttp_version, configure


def shop(**changes: object) -> Any:
    settings = {"base_url": "https://loans.example.com", "shop_id": "shop", "auth_token": "token", **changes}
    return configure(**settings)


@pytest.mark.parametrize(
    ("base_url", "host", "port"),
    [
        ("https://loans.example.com", "loans.example.com", 443),
        ("https://loans.example.com:8443/v1/", "loans.example.com", 8443),
        ("http://localhost:8080", "localhost", 8080),
        ("https://shop.localhost", "shop.localhost", 443),
        ("http://127.0.0.1:1", "127.0.0.1", 1),
        ("http://[::1]:5", "::1", 5),
    ],
)
def test_base_url_is_parsed(base_url: str, host: str, port: int) -> None:
    parsed = shop(base_url=base_url)
    assert (parsed.base_url, parsed.host, parsed.port) == (base_url.rstrip("/"), host, port)


@pytest.mark.parametrize(
    ("base_url", "normalized"),
    [
        ("HTTPS://Loans.Example.COM:443/V1/", "https://loans.example.com/V1"),
        ("https://loans.example.com:", "https://loans.example.com"),
        ("http://LOCALHOST:80", "http://localhost"),
        ("http://[::1]:80/", "http://[::1]"),
        ("http://127.0.0.1:443", "http://127.0.0.1:443"),
    ],
)
def test_base_url_is_normalized(base_url: str, normalized: str) -> None:
    assert shop(base_url=base_url).base_url == normalized


LONG = "https://" + "a" * 64 + ".example.com"
URLS = [
    *("", "loans.example.com", "ftp://loans.example.com", "https://", "https://user:pass@loans.example.com"),
    *("https://loans.example.com?a=b", "https://loans.example.com#a", "https://loans.example.com/a b"),
    *("https://loans.example.com/%2e%2e", "https://loans.example.com/../x", "https://loans.example.com\n"),
    *("https://loans.example.com:port", "https://loans.example.com:99999", "https://löans.example.com", LONG),
    *("https://[::1", "http://loans.example.com", "http://8.8.8.8", None, 5),
    # Python asks a DNS server for these names.
    *("http://shop.localhost", "http://LOCALHOST.", "http://127.0.0.1.", "http://127.0.0.1.example.com"),
]
SHOPS = [
    *("", " ", ".", "..", "a/b", "a\\b", "a?b", "a#b", "a%2fb", "a b", "a\nb", "a\x00", "shöp", "\ud800"),
    *(None, 5),
]
TOKENS = ["", " ", "se cret", "secret\r\nX: y", "secret\x00", "sécret", None, 5]
SECONDS = [0, -1, None, "5", float("nan"), float("inf"), 10**400, True]
INVALID: list[tuple[Callable[..., object], str, list[Any]]] = [
    (shop, "base_url", URLS),
    (shop, "shop_id", SHOPS),
    (shop, "auth_token", TOKENS),
    (RetryPolicy, "retry.attempts", [0, True, 2.0]),
    (RetryPolicy, "retry.quota", [-1]),
    (RetryPolicy, "retry.base", [0, "1"]),
    (RetryPolicy, "retry.cap", [float("inf"), float("nan")]),
    (Timeout, "timeout.total", SECONDS),
    (Timeout, "timeout.attempt", SECONDS),
    (Timeout, "timeout.connect", [*SECONDS, 31]),  # longer than an attempt
    (CircuitBreaker, "breaker.unknown", [0, -1, 1.5, True, None]),
    (CircuitBreaker, "breaker.within", [0, -1, float("inf"), None]),
    (CircuitBreaker, "breaker.pause", [0, float("nan"), "30", True]),
    (Limits, "limits.amount_min", [2_000_000, 5.0]),
    (Limits, "limits.amount_max", [5.0]),
    (Limits, "limits.instalments_min", ["3", 61]),
    (partial(Limits, instalments_max=2), "limits.instalments_min", [3]),
    (Limits, "limits.province", ["["]),
    (Limits, "limits.postal_code", [5]),
    (Limits, "limits.mobile_phone", ["("]),
    (Dialect, "dialect.street_number_field", ["else"]),
    (Dialect, "dialect.instalments_field", ["else"]),
    (Dialect, "dialect.italian", ["else"]),
]


@pytest.mark.parametrize(
    ("make", "setting", "value"),
    [(make, setting, value) for make, setting, values in INVALID for value in values],
    ids=lambda each: getattr(each, "__name__", repr(each)),  # the repr of a function has an address
)
def test_invalid_value_is_refused_and_not_shown(
    make: Callable[..., object], setting: str, value: Any
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(**{setting.rpartition(".")[2]: value})
    error = caught.value
    assert error.setting == setting
    assert str(error).startswith(f"{setting}: ")
    assert "cret" not in str(error)
    assert error.__context__ is None or error.__suppress_context__
    frames = TracebackException.from_exception(error, capture_locals=True).stack
    ours = [frame.locals for frame in frames if frame.filename.endswith(("/_settings.py", "/_shop.py"))]
    assert "cret" not in str(ours)


def test_values_at_their_limits_are_accepted() -> None:
    RetryPolicy(attempts=1, quota=0)
    Timeout(attempt=3, connect=3)
    Limits(amount_min=5, amount_max=5, instalments_min=12, instalments_max=12)
    for seconds in (0, math.inf):
        require_wait("wait", seconds)


def test_preset_of_a_dialect_sets_only_the_option_in_its_name() -> None:
    assert Dialect.street_number() == Dialect()
    assert Dialect.civic_number() == Dialect(street_number_field="civicNumber")


def test_shop_id_is_percent_encoded() -> None:
    assert shop(shop_id="a:b@c+d").shop_id == "a%3Ab%40c%2Bd"


@pytest.mark.parametrize("missing", ["LOANASYNC_BASE_URL", "LOANASYNC_SHOP_ID", "LOANASYNC_AUTH_TOKEN"])
@pytest.mark.parametrize("value", [None, "", "  "])
def test_shop_settings_names_a_missing_variable(missing: str, value: str | None) -> None:
    environment = {"LOANASYNC_BASE_URL": "a", "LOANASYNC_SHOP_ID": "b", "LOANASYNC_AUTH_TOKEN": "c"}
    assert shop_settings(environment) == {"base_url": "a", "shop_id": "b", "auth_token": "c"}
    del environment[missing]
    if value is not None:
        environment[missing] = value
    with pytest.raises(ConfigurationError) as caught:
        shop_settings(environment)
    assert str(caught.value) == f"{missing}: must be set in the environment"


@pytest.mark.parametrize(
    ("environment", "others"),
    [
        ({}, ", and so must LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN"),
        ({"LOANASYNC_SHOP_ID": "b"}, ", and so must LOANASYNC_AUTH_TOKEN"),
    ],
)
def test_shop_settings_names_all_missing_variables(environment: dict[str, str], others: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        shop_settings(environment)
    assert str(caught.value) == f"LOANASYNC_BASE_URL: must be set in the environment{others}"


@pytest.mark.parametrize(("attempt", "connect"), [(30, 5), (3, 3)])
def test_timeout_connect_is_by_default_five_seconds_or_attempt(attempt: float, connect: float) -> None:
    assert Timeout(total=6, attempt=attempt).connect == connect


@pytest.mark.parametrize("is_loaded", [True, False])
def test_user_agent_names_the_version_of_aiohttp(is_loaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001  (parametrised)
    _aiohttp_version.cache_clear()
    if not is_loaded:  # as in a process that uses another transport
        monkeypatch.delitem(sys.modules, "aiohttp")
    assert f" aiohttp/{version('aiohttp')} " in shop().headers["User-Agent"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("max_concurrency", value) for value in (True, 0, 1.5)),
        *(("strict", 1), ("direct_connections", None), ("dialect", "street_number"), ("limits", {})),
        *(("retry", None), ("timeout", 5), ("breaker", False), ("telemetry", None)),
    ],
)
def test_setting_of_a_wrong_type_is_refused(setting: str, value: object) -> None:
    options: Any = {setting: value}
    with pytest.raises(ConfigurationError) as caught:
        LoanClient("https://loans.example.com", shop_id="shop", auth_token="token", **options)
    assert caught.value.setting == setting
