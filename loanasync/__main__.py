"""``python -m loanasync`` is the command ``loanasync``."""

from loanasync.cli import main

if __name__ == "__main__":
    main()
