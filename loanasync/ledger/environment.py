"""The ledger and the policy that environment variables name."""

import pkgutil
from collections.abc import Mapping

from attrs import frozen

from loanasync._environment import LEDGER, LEDGER_CIPHER, LEDGER_KEY, LEDGER_OLD_KEYS, ledger_variables
from loanasync.errors import ConfigurationError
from loanasync.ledger.address import ledger_at
from loanasync.ledger.ledger import Ledger
from loanasync.ledger.policy import Cipher, LedgerPolicy

_SETTINGS: Mapping[str, str] = {
    "ledger_policy.key": LEDGER_KEY,
    "ledger_policy.old_keys": LEDGER_OLD_KEYS,
    "ledger_policy.encrypt": LEDGER_CIPHER,
}


@frozen
class LedgerSettings:
    """The arguments ``ledger`` and ``ledger_policy`` of a client."""

    ledger: Ledger
    policy: LedgerPolicy


def ledger_settings(environment: Mapping[str, str]) -> LedgerSettings:
    """Return the ledger of LOANASYNC_LEDGER, and its policy.

    No other function reads the variables of the ledger. The ledger is neither opened nor created.

    Args:
        environment: The environment variables. An empty variable of the policy is ignored. An empty
            LOANASYNC_LEDGER is an error: a client without its ledger would request known customers again.

    Raises:
        ConfigurationError: LOANASYNC_LEDGER is not set, a value is invalid, or a name is mistyped.
    """
    try:
        return _settings(environment)
    except ConfigurationError as error:
        setting, message = error.setting, error.message
    # The traceback of the new error contains neither these secrets nor the frames of `_settings`.
    del environment
    raise ConfigurationError(_SETTINGS.get(setting, setting), message)


def _settings(environment: Mapping[str, str]) -> LedgerSettings:
    ledger_variables(environment)
    address = environment.get(LEDGER, "").strip()
    if not address:
        raise ConfigurationError(
            LEDGER, "must name the ledger: a file's path, redis://... or postgresql://..."
        )
    keys = _keys(environment, LEDGER_KEY)
    if len(keys) > 1:
        raise ConfigurationError(
            LEDGER_KEY, f"must be one key, without commas; {LEDGER_OLD_KEYS} has earlier keys"
        )
    policy = LedgerPolicy(
        key=keys[0] if keys else None,
        old_keys=_keys(environment, LEDGER_OLD_KEYS),
        encrypt=cipher_of(environment.get(LEDGER_CIPHER)),
    )
    return LedgerSettings(ledger_at(address), policy)


def _keys(environment: Mapping[str, str], variable: str) -> tuple[bytes, ...]:
    """Return the keys of a variable, which are separated by commas."""
    if not (value := environment.get(variable)):
        return ()
    keys = value.split(",")
    if any(key != key.strip() for key in keys):
        raise ConfigurationError(variable, "must have no spaces and no line ends around a key")
    return tuple(key.encode(errors="surrogateescape") for key in keys)  # as the bytes were set


def cipher_of(name: str | None) -> Cipher | None:
    """Import the cipher with a name ``module:object``; return None without a name.

    Raises:
        ConfigurationError: It cannot be imported.
    """
    if not name:
        return None
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise ConfigurationError(LEDGER_CIPHER, "must be module:object, such as shop.secrets:cipher")
    try:
        return pkgutil.resolve_name(name)  # type: ignore[no-any-return]  # `LedgerPolicy` checks it
    except Exception as error:  # noqa: BLE001  (its text may contain a secret of the user's module)
        raise ConfigurationError(
            LEDGER_CIPHER,
            f"cannot be imported ({type(error).__name__}): check the name, and PYTHONPATH if the module is "
            "not installed",
        ) from None
