"""The models of requests (spec §2.1).

To add a field, add an attribute. Its name in the JSON body is the same in camel case, unless it is listed in
`_OTHER_WIRE_NAMES`. The codec, the columns of files and the checks for unknown fields use this name. Add a
rule in `loanasync._protocol.rules` unless there is one for the type.
"""

import re
from collections.abc import Mapping
from datetime import date
from operator import index
from types import MappingProxyType
from typing import Any, ClassVar, Self, SupportsIndex

import attrs
from attrs import field, frozen

from loanasync._models.cells import BY_TYPE, CellError, to_cents, to_euro
from loanasync._models.characters import is_blank, seen
from loanasync._models.enumerations import (
    Citizenship,
    DocumentType,
    EducationalQualification,
    Residence,
    SalaryType,
)
from loanasync._models.masking import EMPTY_BODY, JSON, Body, ValueObject, mask, masked_unless, read_only


class PydanticType(ValueObject):
    """Base class of the models, which makes them types of pydantic fields and of FastAPI bodies.

    pydantic calls these methods. Other programs do not need it. `rules` are the rules with default settings,
    set by the module that defines them.
    """

    __slots__ = ()

    rules: ClassVar[Any]

    @classmethod
    def __get_pydantic_core_schema__(cls, model: type[Any], handler: object) -> object:
        return PydanticType.rules.__get_pydantic_core_schema__(model, handler)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Mapping[str, Any], handler: object) -> object:
        return PydanticType.rules.__get_pydantic_json_schema__(core_schema, handler)


def as_int(value: SupportsIndex) -> int:
    """Return an exact integer, such as one of NumPy, as an int. Return other values unchanged for the rules.

    A bool and a float are not exact integers: the rules refuse True and 12.0.
    """
    if type(value) is int or isinstance(value, bool):
        return value
    try:
        return index(value)
    except Exception:  # noqa: BLE001  (the method of another class may raise any error)
        return value  # type: ignore[return-value]  # the rules report it


def as_int_or_none(value: SupportsIndex | None) -> int | None:
    """Return an exact integer as an int, and None. `optional` of attrs would be another function call."""
    return value if value is None or type(value) is int else as_int(value)


# Optional fields (spec §2.1, §2.2): an empty text is None. Other fields report an empty text.
_MAY_BE_EMPTY = frozenset({"country_calling_code", "iban", "payment_day_of_month", "profession"})
# The shop decides these, so a shopper cannot set them in a form.
_OF_THE_SHOP = frozenset({"amount", "loan_finality", "zero_interest_rate", "order_token"})


def _typed_values(model: type, form: Mapping[str, object]) -> dict[str, Any]:
    """Return the values of a form by field. A text that cannot be converted stays unchanged."""
    values = {}
    fields = attrs.fields_dict(model)
    for name, wire in wire_names(model).items():
        found = next((each for each in form_names(name, wire) if each in form), None)
        if found is not None and name not in _OF_THE_SHOP:
            values[name] = _typed_value(fields[name], form[found], may_be_empty=model is AdditionalData)
    return values


def _typed_value(each: "attrs.Attribute[Any]", value: object, *, may_be_empty: bool) -> object:
    if not isinstance(value, str):
        return value
    text, shown = value.strip(), seen(value).strip()
    if is_blank(value) and (may_be_empty or each.name in _MAY_BE_EMPTY):
        return None
    try:
        if each.name == "salary":
            return to_euro(shown)
        return BY_TYPE[each.type](shown) if each.type in BY_TYPE else text
    except CellError:
        return text


@frozen(kw_only=True, eq=False, repr=False)
class AdditionalData(PydanticType):
    """Additional data of an approval (spec §2.1). Fields that are None are not sent.

    All fields are required if the service asked for the additional data (``additionalDataNeeded``). Pass
    ``additional_data_needed=True`` to `LoanClient.approve` in this case. Otherwise each field is optional.

    Args:
        residence: Housing situation, a `Residence` or its wire value.
        residence_start_date: Start of the residence. Only month and year are sent (MM/YYYY).
        educational_qualification: Highest qualification, an `EducationalQualification` or its wire value.
        children: Number of children, ``"0"`` to ``"4"`` or ``"5+"``.
        salary_type: Meaning of `salary`, a `SalaryType` or its wire value.
        salary: Whole euros, not cents.

    Raises:
        TypeError: A field is unknown.

    Example:
        >>> data = AdditionalData(
        ...     residence=Residence.RENT, residence_start_date=date(2019, 5, 1),
        ...     educational_qualification=EducationalQualification.DIPLOMA, children="2",
        ...     salary_type=SalaryType.NET_MONTHLY, salary=1600,
        ... )
        >>> data.children, data.salary
        ('2', 1600)
    """

    residence: Residence | str | None = field(default=None, repr=mask)
    """Housing situation (spec §2.1)."""
    residence_start_date: date | None = field(default=None, repr=mask)
    """Start of the residence; only month and year are sent (spec §2.1, MM/YYYY)."""
    educational_qualification: EducationalQualification | str | None = field(default=None, repr=mask)
    """Highest educational qualification (spec §2.1)."""
    children: str | None = field(default=None, repr=mask)
    """Number of children, "0" to "4" or "5+" (spec §2.1)."""
    salary_type: SalaryType | str | None = field(default=None, repr=mask)
    """Meaning of `salary`: net per month or gross per year (spec §2.1)."""
    salary: int | None = field(default=None, converter=as_int_or_none, repr=mask)
    """Whole euros, not cents (spec §2.1)."""


@frozen(kw_only=True, eq=False, repr=False)
class ApprovalRequest(PydanticType):
    """Data of an order and its customer for `LoanClient.approve` (spec §2.1).

    The constructor checks no rules. It converts exact integers, such as those of NumPy, to int.
    `LoanClient.check` and `LoanClient.approve` check the rules and report all broken ones at once. Personal
    fields are masked in `repr()`.

    Args:
        amount: Loan amount in euro cents, by default 5000 to 1500000.
        instalments: Number of instalments, by default 3 to 60.
        loan_finality: Purpose of the loan. The default is the only value in the specification.
        email: E-mail address.
        last_name: Family name, sent as ``lastname``.
        first_name: Given name, sent as ``firstname``.
        mobile_phone: Mobile number without the international prefix.
        country_calling_code: International prefix such as ``+39``. The service assumes ``+39`` for None.
        city: City of residence.
        address: Street name without commas and without the street number.
        province: Two upper-case letters, such as ``RM``.
        postal_code: Five digits as a string.
        street_number: For example ``12`` or ``12/A``. Sent as ``streetNumber`` or ``civicNumber``.
        citizenship: Citizenship of the customer, a `Citizenship` or its wire value.
        iban: Bank account identifier.
        zero_interest_rate: Zero interest rate, True or False. None for the setting of the shop (not sent).
        order_token: Token of an existing order. One of the two descriptions requires it.
        payment_day_of_month: Day of the month for payment, 1 to 31. Sent as a string.
        additional: The additional data, if the service asked for them.
        extra: Further members to send unchanged, for fields that this version does not know.

    Raises:
        TypeError: A field is missing or unknown.

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

    amount: int = field(converter=as_int, repr=masked_unless(int))
    """Loan amount, euro cents, 5000 to 1500000 (spec §2.1, §8)."""
    instalments: int = field(converter=as_int, repr=masked_unless(int))
    """Number of instalments, 3 to 60 (spec §2.1, §8)."""
    loan_finality: str = "ecommerce_shop"
    """Purpose of the loan (spec §2.1)."""
    email: str = field(repr=mask)
    """E-mail address (spec §2.1)."""
    last_name: str = field(repr=mask)
    """Family name (spec §2.1, ``lastname``)."""
    first_name: str = field(repr=mask)
    """Given name (spec §2.1, ``firstname``)."""
    mobile_phone: str = field(repr=mask)
    """Mobile number without the international prefix (spec §2.1)."""
    country_calling_code: str | None = field(default=None, repr=mask)
    """International prefix; the service assumes ``+39`` for None (spec §2.1)."""
    city: str = field(repr=mask)
    """City of residence (spec §2.1)."""
    address: str = field(repr=mask)
    """Street name without commas and without the street number (spec §2.1)."""
    province: str = field(repr=mask)
    """Two upper-case letters, such as ``RM`` (spec §2.1, §8)."""
    postal_code: str = field(repr=mask)
    """Five digits as a string (spec §2.1, §8)."""
    street_number: str = field(repr=mask)
    """For example ``12`` or ``12/A`` (spec §2.1, ``streetNumber`` or ``civicNumber``)."""
    citizenship: Citizenship | str = field(repr=mask)
    """A `Citizenship` or its wire value (spec §2.1)."""
    iban: str | None = field(default=None, repr=mask)
    """Bank account identifier (spec §2.1)."""
    zero_interest_rate: bool | None = None
    """True or False, or None for the setting of the shop (not sent) (spec §2.1)."""
    order_token: str | None = field(default=None, repr=mask)
    """Token of an existing order; one of the two descriptions requires it (spec §2.1)."""
    payment_day_of_month: int | None = field(default=None, converter=as_int_or_none, repr=masked_unless(int))
    """Day of the month, 1 to 31; sent as a string (spec §2.1)."""
    additional: AdditionalData | None = field(default=None, repr=masked_unless(AdditionalData))
    """The additional data, if the service asked for them (spec §2.1)."""
    extra: Mapping[str, JSON] = field(
        default=EMPTY_BODY, converter=read_only, hash=False, repr=masked_unless(Body)
    )
    """Further members to send unchanged, for fields that this version does not know (spec §2.1)."""

    @classmethod
    def from_form(cls, form: Mapping[str, object], *, amount: int | str, **values: Any) -> Self:
        """Return the request that a shopper has typed into a form.

        The form has the names of this class or of the specification. Its texts are converted: ``12``,
        ``31/05/2019``, ``05/2019``, ``1.600,00`` for a salary, ``italiana``. A text that cannot be converted
        stays in its field, and `LoanClient.check` reports it.

        A shopper can send any field with a form. Therefore `amount`, `loan_finality`, `zero_interest_rate`,
        `order_token` and `extra` are never read from it: pass them as arguments.

        Args:
            form: The fields of the form. The additional data are among them if one of them is not empty.
            amount: Euro cents as an int, from your order. A text is in euro: ``1.450,00`` or ``450``.
            values: Values for other fields, which precede those of the form.

        Raises:
            TypeError: A name in `values` is unknown.

        Example:
            >>> form = {"instalments": "12", "email": "anna@example.com", "firstname": "Anna", "city": "Roma"}
            >>> typed = ApprovalRequest.from_form(form, amount=45_000)
            >>> typed.instalments, typed.first_name, typed.last_name
            (12, 'Anna', None)
            >>> [problem.field for problem in client.check(fiscal_code, typed)][:2]
            ['last_name', 'mobile_phone']
        """
        typed: Any = amount
        if isinstance(amount, str):
            try:
                typed = to_cents(seen(amount).strip(), euro=True)
            except CellError:
                typed = amount.strip()
        fields = dict.fromkeys(each.name for each in attrs.fields(cls) if each.default is attrs.NOTHING)
        additional = _typed_values(AdditionalData, form)
        if any(value is not None for value in additional.values()):
            fields["additional"] = AdditionalData(**additional)
        arguments = {**fields, **_typed_values(cls, form), "amount": typed, **values}
        del form, fields, additional, values, amount, typed  # personal: must not be in a traceback
        try:
            return cls(**arguments)
        finally:
            del arguments


@frozen(kw_only=True, eq=False, repr=False)
class UserData(PydanticType):
    """Data of the customer that complete an approved request, sent and returned (spec §2.2).

    All fields are optional, because the specification does not say which ones the service requires
    (spec §4.2).

    Args:
        document_type: Type of identity document, a `DocumentType` or its wire value. Sent as
            ``documentOfType``.
        document_code: Code of the document.
        document_city: City that issued the document.
        document_issue_date: Date of issue.
        document_expiration_date: Last day of validity. A date in the past is sent, too.
        iban: Bank account identifier.
        politically_exposed: True for a politically exposed person.
        us_person: True for a US citizen.
        marketing: True if the data may be used for marketing.
        payment_day_of_month: Day of the month for payment, 1 to 31. Sent as an integer.
        profession: Profession of the customer.
        extra: Further members to send unchanged. In a response, the members that this version does not know.
        unread: In a response, wire names of members that could not be read and are None. Neither sent nor
            compared.

    Raises:
        TypeError: A field is unknown.

    Example:
        >>> data = UserData(document_type=DocumentType.PASSPORT, us_person=False)
        >>> data.us_person, data.iban
        (False, None)
    """

    document_type: DocumentType | str | None = field(default=None, repr=mask)
    """A `DocumentType` or its wire value (spec §2.2, ``documentOfType``)."""
    document_code: str | None = field(default=None, repr=mask)
    """Code of the document (spec §2.2)."""
    document_city: str | None = field(default=None, repr=mask)
    """City that issued the document (spec §2.2)."""
    document_issue_date: date | None = field(default=None, repr=mask)
    """Date of issue (spec §2.2)."""
    document_expiration_date: date | None = field(default=None, repr=mask)
    """Last day of validity (spec §2.2)."""
    iban: str | None = field(default=None, repr=mask)
    """Bank account identifier (spec §2.2)."""
    politically_exposed: bool | None = field(default=None, repr=mask)
    """True for a politically exposed person (spec §2.2)."""
    us_person: bool | None = field(default=None, repr=mask)
    """True for a US citizen (spec §2.2)."""
    marketing: bool | None = field(default=None, repr=mask)
    """True if the data may be used for marketing (spec §2.2)."""
    payment_day_of_month: int | None = field(default=None, converter=as_int_or_none, repr=masked_unless(int))
    """Day of the month, 1 to 31; sent as an integer (spec §2.2)."""
    profession: str | None = field(default=None, repr=mask)
    """Profession of the customer (spec §2.2)."""
    extra: Mapping[str, JSON] = field(
        default=EMPTY_BODY, converter=read_only, hash=False, repr=masked_unless(Body)
    )
    """Further members to send unchanged; in a response, unknown members (spec §2.2)."""
    unread: tuple[str, ...] = field(default=(), eq=False)
    """In a response, wire names of members that could not be read; neither sent nor compared (spec §4.2)."""

    @classmethod
    def from_form(cls, form: Mapping[str, object], **values: Any) -> Self:
        """Return the data that a shopper has typed into a form, converted as by `ApprovalRequest.from_form`.

        A browser does not send a box that is not checked. Pass boxes as arguments, as in the example.

        Args:
            form: The fields of the form, with the names of this class or of the specification.
            values: Values for fields, which precede those of the form.

        Raises:
            TypeError: A name in `values` is unknown.

        Example:
            >>> form = {"documentOfType": "passaporto", "documentIssueDate": "31/05/2019", "marketing": "on"}
            >>> data = UserData.from_form(form, marketing="marketing" in form, us_person="us_person" in form)
            >>> data.document_issue_date, data.marketing, data.us_person
            (datetime.date(2019, 5, 31), True, False)
        """
        arguments = {**_typed_values(cls, form), **values}
        del form, values  # personal: must not be in a traceback
        try:
            return cls(**arguments)
        finally:
            del arguments


# The type of dates in the models. A test that freezes the clock replaces `date` in modules, so another
# `date | None` is not always the same type.
DATE_TYPE: object = attrs.fields(UserData).document_issue_date.type

# Names in the JSON body that are not those of the fields in camel case; None: the field is not a member.
_OTHER_WIRE_NAMES = {
    "last_name": "lastname",
    "first_name": "firstname",
    "document_type": "documentOfType",
    "additional": None,
    "extra": None,
    "unread": None,
}


def wire_names(model: type) -> dict[str, str]:
    """Return the names in the JSON body of the fields of a model that are members of it."""
    names = {
        each.name: _OTHER_WIRE_NAMES.get(each.name, re.sub("_(.)", lambda found: found[1].upper(), each.name))
        for each in attrs.fields(model)
    }
    return {name: wire for name, wire in names.items() if wire is not None}


# spec §2.1: where the descriptions differ, the name in Dialect.street_number().
APPROVAL_NAMES: Mapping[str, str] = MappingProxyType(
    {
        **wire_names(ApprovalRequest),
        **wire_names(AdditionalData),
        # in the response only
        "fiscal_code": "fiscalCode",
        "net_amount": "netAmount",
        "redirect_url": "redirectUrl",
    }
)
# spec §2.2
USER_DATA_NAMES: Mapping[str, str] = MappingProxyType(wire_names(UserData))

# Names that are accepted in responses, forms and files, whichever dialect is used, and what replaces them.
READ_ALIASES: Mapping[str, str] = MappingProxyType(
    {"civicNumber": "streetNumber", "installments": "instalments"}
)


def form_names(name: str, wire: str) -> tuple[str, ...]:
    """Return the names that a form may have for a field, the preferred one first.

    Example:
        >>> form_names("street_number", "civicNumber")
        ('street_number', 'civicNumber', 'streetNumber')
    """
    usual = APPROVAL_NAMES.get(name, wire)
    aliases = (alias for alias, alias_of in READ_ALIASES.items() if alias_of == usual)
    return tuple(dict.fromkeys((name, wire, usual, *aliases)))


_FIELD_NAMES = {wire: name for name, wire in {**USER_DATA_NAMES, **APPROVAL_NAMES}.items()}


def field_name(wire_name: str) -> str:
    """Return the field name for a wire name of either description. Unknown wire names stay unchanged.

    Example:
        >>> field_name("civicNumber"), field_name("lastname"), field_name("privacy")
        ('street_number', 'last_name', 'privacy')
    """
    return _FIELD_NAMES.get(READ_ALIASES.get(wire_name, wire_name), wire_name)
