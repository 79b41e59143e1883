"""The command ``loanasync``: approvals from files, a ledger of decisions, a demo and a sandbox."""

import sys
from importlib.util import find_spec

__all__ = ["main"]

_REQUIRED = ("typer", "opentelemetry.sdk")


def main() -> None:
    """Run the command. If its extra is not installed, print how to install it."""
    if not all(map(_is_installed, _REQUIRED)):
        sys.exit(
            "the command loanasync needs an extra: pip install '.[cli]' in a checkout."
            " The sandbox runs without it: python -m loanasync.sandbox"
        )
    from loanasync.cli.app import app  # noqa: PLC0415  (needs the extra)

    app()


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False
