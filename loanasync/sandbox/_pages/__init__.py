"""What people see of the sandbox: the customer's page and the inspector, and what other programs may ask."""

from loanasync.sandbox._pages._web import Web

__all__ = ["Web"]
