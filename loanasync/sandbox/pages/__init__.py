"""What people see of the sandbox: the customer's page and the inspector, and what other programs may ask."""

from loanasync.sandbox.pages.web import Web

__all__ = ["Web"]
