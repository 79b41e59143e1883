"""A client that creates the loan request of a customer before it requests the approval (spec §1.1, §4.3)."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from attrs import define, field

from loanasync import AlreadyEvaluatedError, ApprovalRequest, LoanClient, LoanError, UserNotFoundError
from loanasync._results import Decision
from loanasync._validation.rules import normalize_fiscal_code


@define
class Creation:
    """The creation of a customer's loan request.

    Args:
        body: Body of the call.
        mark: Records in the job that the creation may have been sent.
        may_exist: The creation may have been sent, in this run or an earlier one.
    """

    body: Mapping[str, Any] = field(repr=False)
    mark: Callable[[], Awaitable[None]]
    may_exist: bool


class CreatingClient(LoanClient):
    """A client whose `approve_many` creates the requests.

    The specification does not say whether a creation may be repeated. So a creation is sent if none was sent
    before, or if the service says that the customer is not known.
    """

    creations: dict[str, Creation]
    """The creation for each customer in progress."""

    async def _approve_row(self, fiscal_code: str, request: ApprovalRequest, **options: Any) -> Decision:
        creation = self.creations.get(normalize_fiscal_code(fiscal_code))
        is_first = creation is not None and not creation.may_exist
        if creation is not None and is_first:
            await self._create(creation)
        try:
            return await super()._approve_row(fiscal_code, request, **options)
        except UserNotFoundError:
            if creation is None or is_first:
                raise
        await self._create(creation)
        return await super()._approve_row(fiscal_code, request, **options)

    async def _create(self, creation: Creation) -> None:
        if not creation.may_exist:
            await creation.mark()
            creation.may_exist = True
        try:
            await self.create_request(creation.body)
        except AlreadyEvaluatedError:
            return  # so the request exists, and the ledger may have its decision
        except LoanError as error:
            if error.outcome != "unknown":  # then the approval shows whether the request exists
                creation.may_exist = False
                raise
