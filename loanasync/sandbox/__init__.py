"""A service to talk to without credentials and network: it answers as the specification says.

It shares no code with the SDK, only the wire, so that an error in one does not hide in the other.
"""

from loanasync.sandbox._server import Sandbox, serve

__all__ = ["Sandbox", "serve"]
