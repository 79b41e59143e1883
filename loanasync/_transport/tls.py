"""TLS: the trusted certificates, and the reason why a certificate was rejected."""

import ssl
from os import PathLike
from pathlib import Path
from typing import TypeAlias

import aiohttp

from loanasync.errors import ConfigurationError

Trust: TypeAlias = ssl.SSLContext | str | PathLike[str]

# OpenSSL's X509_V_ERR_..., which are part of its interface.
_FLAWS = {
    9: "not yet valid",
    10: "expired",
    18: "self-signed",
    19: "unknown authority",  # its root came along, and is not known here
    20: "unknown authority",
    21: "unknown authority",
    62: "wrong host",
    64: "wrong host",  # of an address in numbers
}


def trusted(given: object) -> ssl.SSLContext | None:
    """The context that a setting stands for; None for the authorities of this machine.

    Raises:
        ConfigurationError: The setting cannot be read, or would let any certificate pass.
    """
    if given is None:
        return None
    if isinstance(given, ssl.SSLContext):
        if not is_checking(given):
            raise ConfigurationError(
                "ssl",
                "must check certificates and host names: token and customer depend on it",
            )
        return given
    if not isinstance(given, str | PathLike) or not str(given):
        raise ConfigurationError(
            "ssl", "must be an ssl.SSLContext or the path of a CA file; checking cannot be turned off"
        )
    try:
        return ssl.create_default_context(cafile=Path(given))
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        why = type(error).__name__
    raise ConfigurationError("ssl", f"must be a readable file with certificates in PEM form ({why})")


def is_checking(trust: object) -> bool:
    """Whether what an aiohttp connector may hold lets no unknown certificate pass; a fingerprint does not."""
    if isinstance(trust, ssl.SSLContext):
        return trust.verify_mode is not ssl.CERT_NONE and trust.check_hostname
    return trust is True or isinstance(trust, aiohttp.Fingerprint)  # aiohttp checks nothing for all else


def flaw(error: object) -> str:
    """What is wrong with a certificate, in words of ours: those of OpenSSL quote the host."""
    return _FLAWS.get(getattr(error, "verify_code", 0), "not accepted")
