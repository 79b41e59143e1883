"""Proof: whether a response is certainly the whole response to its request."""

from loanasync._protocol.json import Malformed, decode
from loanasync._protocol.messages import Response


def is_proof(response: Response) -> bool:
    """Return True if a response is certainly whole, and nothing else was received with it.

    The end of a connection may cut off a body whose length the response does not state. The body is then
    whole only if its own form says so. Three questions need proof:

    - Does the response prove that the customer was not evaluated?
    - Is a 422 with an empty body a refusal?
    - May a 500 be retried?

    A response without proof is still read for a decision. If it shows none, the outcome is unknown.
    """
    if response.fault is not None or response.is_followed:
        return False
    return response.end == "stated" or (response.end == "closed" and _shows_its_end(response.body))


def _shows_its_end(body: bytes) -> bool:
    """Return True if a body shows its own end: a JSON object, or HTML with its last tag."""
    if body.rstrip()[-7:].lower() == b"</html>":
        return True
    try:
        decode(body)
    except Malformed:
        return False
    return True
