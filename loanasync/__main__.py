"""Entry point of ``python -m loanasync``, which runs the command ``loanasync``."""

from loanasync.cli import main

if __name__ == "__main__":
    main()
