"""The one door from the sandbox to the SDK: a client with the sandbox's address in it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loanasync import LoanClient


def client_of(base_url: str, shop_id: str, auth_token: str, options: Mapping[str, Any]) -> "LoanClient":
    """A client for the service at this address."""
    from loanasync import LoanClient  # noqa: PLC0415  (the sandbox itself runs without the SDK)

    return LoanClient(base_url, shop_id=shop_id, auth_token=auth_token, **options)
