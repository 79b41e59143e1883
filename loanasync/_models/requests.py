"""Models of the requests: `ApprovalRequest`, `AdditionalData` and `UserData`.

To add a field, add an attribute with its name in the body as metadata ``wire``. Codec, columns of files and
unknown-field checks follow from it. If its type implies no rule, add one in `loanasync._validation.rules`.
"""

import difflib
from collections.abc import Callable, Mapping
from datetime import date
from functools import wraps
from typing import TypeVar

import attrs
from attrs import field, frozen

from loanasync._display.masking import EMPTY_BODY, JSON, Body, mask, masked_unless, read_only
from loanasync._enums import Citizenship, DocumentType, EducationalQualification, Residence, SalaryType
from loanasync._results import Problem
from loanasync.errors import InvalidRequestError

Model = TypeVar("Model", bound=type)

# The metadata of each field has its name in the body, "wire"; None for a field that is not a member
# itself. Where the two descriptions differ, this is the spelling of Dialect.street_number().


def names_its_fields(model: Model) -> Model:
    """Make a missing or unknown field an `InvalidRequestError` that names it, not a TypeError."""
    fields = attrs.fields_dict(model)
    known = frozenset(fields)
    required = frozenset(name for name, each in fields.items() if each.default is attrs.NOTHING)
    written_by_attrs: Callable[..., None] = vars(model)["__init__"]

    @wraps(written_by_attrs)
    def __init__(self: object, **values: object) -> None:  # noqa: N807  (it becomes the model's own)
        try:
            return written_by_attrs(self, **values)
        except TypeError:
            given = values.keys()
            missing = [Problem(name, name, "is required") for name in fields if name in required - given]
            unknown = [Problem(name, name, _unknown(name, known)) for name in sorted(given - known)]
            if not missing and not unknown:
                raise
        del self, given, values  # half made, and personal: must not stand in the traceback
        raise InvalidRequestError((*missing, *unknown))

    type.__setattr__(model, "__init__", __init__)
    return model


def _unknown(name: str, known: frozenset[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"is not a field of this model; {meant}members that this version does not know go into extra"


@names_its_fields
@frozen(kw_only=True)
class AdditionalData:
    """The conditional block of an approval (spec §2.1); fields that are None are not sent.

    Each field is required when ``additionalDataNeeded`` is true; hand that on as
    ``additional_data_needed=True``. Without it, each may be left out.

    Args:
        residence: How the customer lives.
        residence_start_date: Since when; the day is not sent (MM/YYYY).
        educational_qualification: The customer's degree.
        children: Number of children, ``"0"`` to ``"4"`` or ``"5+"``.
        salary_type: What `salary` counts.
        salary: Whole euros, not cents.

    Raises:
        InvalidRequestError: A field is unknown.

    Example:
        >>> AdditionalData(
        ...     residence=Residence.RENT, residence_start_date=date(2019, 5, 1),
        ...     educational_qualification=EducationalQualification.DIPLOMA, children="2",
        ...     salary_type=SalaryType.NET_MONTHLY, salary=1600,
        ... )
        AdditionalData(***)
    """

    residence: Residence | str | None = field(default=None, metadata={"wire": "residence"})
    """How the customer lives (spec §2.1)."""
    residence_start_date: date | None = field(default=None, metadata={"wire": "residenceStartDate"})
    """Since when; the day is not sent (spec §2.1, MM/YYYY)."""
    educational_qualification: EducationalQualification | str | None = field(
        default=None, metadata={"wire": "educationalQualification"}
    )
    """The customer's degree (spec §2.1)."""
    children: str | None = field(default=None, metadata={"wire": "children"})
    """Number of children, "0" to "4" or "5+" (spec §2.1)."""
    salary_type: SalaryType | str | None = field(default=None, metadata={"wire": "salaryType"})
    """What `salary` counts (spec §2.1)."""
    salary: int | None = field(default=None, metadata={"wire": "salary"})
    """Whole euros, not cents (spec §2.1)."""

    def __repr__(self) -> str:
        return "AdditionalData(***)"


@names_its_fields
@frozen(kw_only=True)
class ApprovalRequest:
    """What is asked when a customer's order is to be financed (spec §2.1).

    Building one checks only that each field is there; `LoanClient.check` and `LoanClient.approve` check
    the rules, all at once. Personal fields are masked when it is printed.

    Args:
        amount: Loan amount in euro cents, 5000 to 1500000.
        instalments: Number of instalments, 3 to 60.
        loan_finality: Purpose of the loan; the one value that the specification gives is the default.
        email: E-mail address.
        last_name: Family name, sent as ``lastname``.
        first_name: Given name, sent as ``firstname``.
        mobile_phone: Mobile number without the international prefix.
        country_calling_code: International prefix such as ``+39``, which the service assumes for None.
        city: City of residence.
        address: Street name without commas and without the street number.
        province: Two upper-case letters, such as ``RM``.
        postal_code: Five digits as a string.
        street_number: Such as ``12`` or ``12/A``; sent as ``streetNumber`` or ``civicNumber``.
        citizenship: A `Citizenship` or its wire value.
        iban: Bank account identifier.
        zero_interest_rate: None leaves it to the shop's own setting and is not sent.
        order_token: Token of an existing order; one of the two descriptions requires it.
        payment_day_of_month: 1 to 31; sent as a string.
        additional: The conditional block, when the service wants it.
        extra: Members to send as they are, for fields that this version does not know.

    Raises:
        InvalidRequestError: A field is missing or unknown.

    Example:
        >>> request = ApprovalRequest(
        ...     amount=45_000, instalments=12, email="anna@example.com", last_name="Prova",
        ...     first_name="Anna", mobile_phone="3330000000", city="Roma", address="Via Prova",
        ...     province="RM", postal_code="00100", street_number="12/A",
        ...     citizenship=Citizenship.ITALIAN,
        ... )
        >>> request.amount, request.loan_finality
        (45000, 'ecommerce_shop')
    """

    amount: int = field(metadata={"wire": "amount"})
    """Loan amount, euro cents, 5000 to 1500000 (spec §2.1, §8)."""
    instalments: int = field(metadata={"wire": "instalments"})
    """Number of instalments, 3 to 60 (spec §2.1, §8)."""
    loan_finality: str = field(default="ecommerce_shop", metadata={"wire": "loanFinality"})
    """Purpose of the loan (spec §2.1)."""
    email: str = field(repr=mask, metadata={"wire": "email"})
    """E-mail address (spec §2.1)."""
    last_name: str = field(repr=mask, metadata={"wire": "lastname"})
    """Family name (spec §2.1, ``lastname``)."""
    first_name: str = field(repr=mask, metadata={"wire": "firstname"})
    """Given name (spec §2.1, ``firstname``)."""
    mobile_phone: str = field(repr=mask, metadata={"wire": "mobilePhone"})
    """Mobile number without the international prefix (spec §2.1)."""
    country_calling_code: str | None = field(default=None, repr=mask, metadata={"wire": "countryCallingCode"})
    """International prefix; the service assumes ``+39`` for None (spec §2.1)."""
    city: str = field(repr=mask, metadata={"wire": "city"})
    """City of residence (spec §2.1)."""
    address: str = field(repr=mask, metadata={"wire": "address"})
    """Street name without commas and without the street number (spec §2.1)."""
    province: str = field(repr=mask, metadata={"wire": "province"})
    """Two upper-case letters, such as ``RM`` (spec §2.1, §8)."""
    postal_code: str = field(repr=mask, metadata={"wire": "postalCode"})
    """Five digits as a string (spec §2.1, §8)."""
    street_number: str = field(repr=mask, metadata={"wire": "streetNumber"})
    """Such as ``12`` or ``12/A`` (spec §2.1, ``streetNumber`` or ``civicNumber``)."""
    citizenship: Citizenship | str = field(repr=mask, metadata={"wire": "citizenship"})
    """A `Citizenship` or its wire value (spec §2.1)."""
    iban: str | None = field(default=None, repr=mask, metadata={"wire": "iban"})
    """Bank account identifier (spec §2.1)."""
    zero_interest_rate: bool | None = field(default=None, metadata={"wire": "zeroInterestRate"})
    """None leaves it to the shop's own setting and is not sent (spec §2.1)."""
    order_token: str | None = field(default=None, repr=mask, metadata={"wire": "orderToken"})
    """Token of an existing order; one of the two descriptions requires it (spec §2.1)."""
    payment_day_of_month: int | None = field(default=None, metadata={"wire": "paymentDayOfMonth"})
    """Day of the month, 1 to 31; sent as a string (spec §2.1)."""
    additional: AdditionalData | None = field(
        default=None, repr=masked_unless(AdditionalData), metadata={"wire": None}
    )
    """The conditional block, when the service wants it (spec §2.1)."""
    extra: Mapping[str, JSON] = field(
        default=EMPTY_BODY, converter=read_only, hash=False, repr=masked_unless(Body), metadata={"wire": None}
    )
    """Members to send as they are, for fields that this version does not know (spec §2.1)."""


@names_its_fields
@frozen(kw_only=True)
class UserData:
    """The customer's data that completes an approved request, sent and returned (spec §2.2).

    Whether the service insists on fields other than `iban`, `payment_day_of_month` and `profession` is
    not shown (spec §4.2), so each may be left out.

    Args:
        document_type: A `DocumentType` or its wire value, sent as ``documentOfType``.
        document_code: The document's code.
        document_city: City that issued it.
        document_issue_date: Day of issue.
        document_expiration_date: Last day of validity; an expired one is the service's to judge.
        iban: Bank account identifier.
        politically_exposed: True for a politically exposed person.
        us_person: True for a US citizen.
        marketing: True if the data may be used for marketing.
        payment_day_of_month: 1 to 31; sent as an integer.
        profession: A profession.
        extra: Members to send as they are; in an answer, the members that this version does not know.
        unread: In a response, wire names of members that could not be read and therefore are None; never
            sent, and not compared.

    Raises:
        InvalidRequestError: A field is unknown.

    Example:
        >>> UserData(document_type=DocumentType.PASSPORT, us_person=False)
        UserData(***)
    """

    document_type: DocumentType | str | None = field(default=None, metadata={"wire": "documentOfType"})
    """A `DocumentType` or its wire value (spec §2.2, ``documentOfType``)."""
    document_code: str | None = field(default=None, metadata={"wire": "documentCode"})
    """The document's code (spec §2.2)."""
    document_city: str | None = field(default=None, metadata={"wire": "documentCity"})
    """City that issued the document (spec §2.2)."""
    document_issue_date: date | None = field(default=None, metadata={"wire": "documentIssueDate"})
    """Day of issue (spec §2.2)."""
    document_expiration_date: date | None = field(default=None, metadata={"wire": "documentExpirationDate"})
    """Last day of validity (spec §2.2)."""
    iban: str | None = field(default=None, metadata={"wire": "iban"})
    """Bank account identifier (spec §2.2)."""
    politically_exposed: bool | None = field(default=None, metadata={"wire": "politicallyExposed"})
    """True for a politically exposed person (spec §2.2)."""
    us_person: bool | None = field(default=None, metadata={"wire": "usPerson"})
    """True for a US citizen (spec §2.2)."""
    marketing: bool | None = field(default=None, metadata={"wire": "marketing"})
    """True if the data may be used for marketing (spec §2.2)."""
    payment_day_of_month: int | None = field(default=None, metadata={"wire": "paymentDayOfMonth"})
    """Day of the month, 1 to 31; sent as an integer (spec §2.2)."""
    profession: str | None = field(default=None, metadata={"wire": "profession"})
    """A profession (spec §2.2)."""
    extra: Mapping[str, JSON] = field(
        default=EMPTY_BODY, converter=read_only, hash=False, metadata={"wire": None}
    )
    """Members to send as they are; in an answer, those that this version does not know (spec §2.2)."""
    unread: tuple[str, ...] = field(default=(), eq=False, metadata={"wire": None})
    """In a response, wire names of members that could not be read; never sent, not compared (spec §4.2)."""

    def __repr__(self) -> str:
        return "UserData(***)"
