"""The environment variables of a shop and of its ledger: their names, and the check for mistyped ones."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from loanasync.errors import ConfigurationError

_VARIABLES = {setting: f"LOANASYNC_{setting.upper()}" for setting in ("base_url", "shop_id", "auth_token")}
LEDGER: Final = "LOANASYNC_LEDGER"
LEDGER_KEY: Final = "LOANASYNC_LEDGER_KEY"
LEDGER_OLD_KEYS: Final = "LOANASYNC_LEDGER_OLD_KEYS"
LEDGER_CIPHER: Final = "LOANASYNC_LEDGER_CIPHER"
_LEDGER_VARIABLES = (LEDGER, LEDGER_KEY, LEDGER_OLD_KEYS, LEDGER_CIPHER)
# Kubernetes sets these for each Service, also for one that is named loanasync-ledger.
_OF_KUBERNETES = re.compile(r".+_(SERVICE_HOST|SERVICE_PORT.*|PORT|PORT_.*)", re.DOTALL)
_RESEMBLANCE = 0.875  # of two names: 1.0 if they are equal


def shop_settings(environment: Mapping[str, str]) -> dict[str, str]:
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


def ledger_variables(environment: Iterable[str]) -> list[str]:
    """Return the variables of the ledger that are set. `loanasync.ledger.address` reads them.

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
