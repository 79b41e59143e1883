"""A client that creates the loan request of a customer before it requests the approval (spec §1.1, §4.3)."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from loanasync import AlreadyEvaluatedError, ApprovalRequest, LoanClient, LoanError, UserNotFoundError
from loanasync._results import Decision
from loanasync._validation.rules import normalize_fiscal_code


class CreatingClient(LoanClient):
    """A client whose `approve_many` creates the requests.

    The specification does not say whether a creation may be repeated. So a creation is sent if none was sent
    before, or if the service says that the customer is not known.
    """

    has_earlier_run: bool = False
    """An earlier run may have created some of the requests."""

    bodies: dict[str, Mapping[str, Any]]
    """Body of the creation for each customer in progress."""

    async def _approve_row(self, fiscal_code: str, request: ApprovalRequest, **options: Any) -> Decision:
        body = self.bodies.pop(normalize_fiscal_code(fiscal_code), None)
        if body is not None and not self.has_earlier_run:
            await self._create(body)
            body = None
        try:
            return await super()._approve_row(fiscal_code, request, **options)
        except UserNotFoundError:
            if body is None:
                raise
        await self._create(body)
        return await super()._approve_row(fiscal_code, request, **options)

    async def _create(self, body: Mapping[str, Any]) -> None:
        with suppress(AlreadyEvaluatedError):  # so the request exists, and the ledger may have its decision
            try:
                await self.create_request(body)
            except LoanError as error:
                if error.outcome != "unknown":  # then the approval shows whether the request exists
                    raise
