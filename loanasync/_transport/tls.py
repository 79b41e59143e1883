"""TLS settings: the trusted certificates, and the reason why a certificate was rejected."""

import ssl
from os import PathLike
from pathlib import Path
from typing import TypeAlias

import aiohttp

from loanasync.errors import ConfigurationError

Trust: TypeAlias = ssl.SSLContext | str | PathLike[str]

# OpenSSL's error codes (X509_V_ERR_...), which are stable.
_PROBLEMS = {
    9: "not yet valid",
    10: "expired",
    18: "self-signed",
    19: "unknown authority",  # the server sent the root certificate, which is not trusted
    20: "unknown authority",
    21: "unknown authority",
    62: "wrong host",
    64: "wrong host",  # wrong IP address
}


def ssl_context(setting: object) -> ssl.SSLContext | None:
    """Return the context for the setting `ssl=`; None for the default certificates of this machine.

    Raises:
        ConfigurationError: The CA file cannot be read, or the context does not verify certificates.
    """
    if setting is None:
        return None
    if isinstance(setting, ssl.SSLContext):
        if not verifies_certificates(setting):
            raise ConfigurationError(
                "ssl",
                "must verify certificates and host names, to protect the token and the customers' data",
            )
        return setting
    if not isinstance(setting, str | PathLike) or not str(setting):
        raise ConfigurationError(
            "ssl", "must be an ssl.SSLContext or the path of a CA file; verification cannot be turned off"
        )
    try:
        return ssl.create_default_context(cafile=Path(setting))
    except (OSError, ValueError) as error:  # SSLError is a subclass of OSError
        reason = type(error).__name__
    raise ConfigurationError("ssl", f"must be a readable file with certificates in PEM format ({reason})")


def verifies_certificates(trust: object) -> bool:
    """Return True if an `ssl` setting of aiohttp's connector verifies certificates or a fingerprint."""
    if isinstance(trust, ssl.SSLContext):
        return trust.verify_mode is not ssl.CERT_NONE and trust.check_hostname
    # With other values, aiohttp does not verify.
    return trust is True or isinstance(trust, aiohttp.Fingerprint)


def certificate_problem(error: object) -> str:
    """Return why a certificate was rejected, in our own words if we have some.

    OpenSSL's messages are constants, except those for wrong hosts, which contain the host.
    """
    problem = _PROBLEMS.get(getattr(error, "verify_code", 0))
    return problem or getattr(error, "verify_message", None) or "not accepted"
