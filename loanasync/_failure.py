"""What every exception of this package is, and the one that needs no more to say."""

__all__ = ["ClientClosedError", "LoanError"]


class LoanError(Exception):
    """Any failure of this package. Catch it to catch them all.

    Two errors are equal when their type and all they say are equal, so that one that crossed a process
    boundary still compares.
    """

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.args == self.args

    def __hash__(self) -> int:
        return hash((type(self), str(self)))


class ClientClosedError(LoanError):
    """A call on a client after `aclose`; nothing was sent. Make a new `LoanClient`."""

    def __str__(self) -> str:
        return (
            "this client was closed: make a new LoanClient, or keep this one open for as long as calls come"
        )
