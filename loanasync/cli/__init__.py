"""The command ``loanasync``: approvals from files, a ledger of decisions, a demo and a sandbox."""

import sys
from importlib.util import find_spec

__all__ = ["main"]

_NEEDED = ("typer", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http", "requests")


def main() -> None:
    """Run the command, or say what is missing for it."""
    missing = [name for name in _NEEDED if not _installed(name)]
    if missing:
        sys.exit(
            "the command needs its extra: pip install 'loanasync[cli]'."
            " The sandbox alone needs none: python -m loanasync.sandbox"
        )
    from loanasync.cli.app import app  # noqa: PLC0415  (needs what was looked for above)

    app()


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False
