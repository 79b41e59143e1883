"""Builders of valid requests for made-up customers; each argument replaces a field."""

import re
import secrets
from datetime import date
from random import Random, SystemRandom
from string import ascii_uppercase
from typing import Any

from loanasync._models.enumerations import (
    Citizenship,
    DocumentType,
    EducationalQualification,
    Residence,
    SalaryType,
)
from loanasync._models.requests import AdditionalData, ApprovalRequest, UserData

_MONTHS = "ABCDEHLMPRST"
# The values of the characters at odd positions of a fiscal code, in the order 0 or A, 1 or B, 2 or C and so
# on. Each value is written as a letter, A for 0 to Z for 25: a 0 at an odd position counts 1 (B).
_ODD = "BAFHJNPRTVCESULDGIMOQKWZYX"
_TAG = re.compile("[A-Za-z0-9.-]+")


def fiscal_code(random: Random | None = None) -> str:
    """Return a made-up fiscal code, a different one on each call.

    It has a valid form and check letter, so ``strict=True`` accepts it. It cannot belong to a real person:
    the letters of the last name are ``TST``, and the code of the birthplace begins with an unused ``X``.

    Args:
        random: A random generator, for codes that depend only on its seed. By default, codes are random
            even if the test runner seeds the global generator.

    Returns:
        16 upper-case letters and digits.

    Example:
        >>> from random import Random
        >>> from loanasync.testing import fiscal_code
        >>> code = fiscal_code()
        >>> len(code), code[:3], code == fiscal_code()
        (16, 'TST', False)
        >>> fiscal_code(Random(7)) == fiscal_code(Random(7))
        True
    """
    source = SystemRandom() if random is None else random
    name = "".join(source.choices(ascii_uppercase, k=3))
    year = source.randrange(50, 100)
    month = source.choice(_MONTHS)
    day = source.randrange(1, 29) + source.choice((0, 40))  # 40 is added for women
    birthplace = source.randrange(1000)
    code = f"TST{name}{year}{month}{day:02}X{birthplace:03}"
    return code + _check_letter(code)


def _check_letter(code: str) -> str:
    total = 0
    for position, character in enumerate(code, start=1):
        number = int(character) if character.isdigit() else ascii_uppercase.index(character)
        total += ascii_uppercase.index(_ODD[number]) if position % 2 else number
    return ascii_uppercase[total % 26]


def email(tag: str | None = None) -> str:
    """Return a made-up e-mail address, a different one on each call, at ``example.com``.

    Args:
        tag: A sandbox tag, which selects the response of the sandbox, such as ``refused`` or
            ``500x2.refused``.

    Raises:
        ValueError: The tag contains other characters than letters, digits, dots and hyphens.

    Example:
        >>> from loanasync.testing import email
        >>> email("refused")
        'shopper-...+refused@example.com'
    """
    if tag is not None and not _TAG.fullmatch(tag):
        raise ValueError("a tag may contain letters, digits, dots and hyphens, such as 500x2.refused")
    return f"shopper-{secrets.token_hex(6)}{'' if tag is None else f'+{tag}'}@example.com"


def approval_request(*, tag: str | None = None, **changes: Any) -> ApprovalRequest:
    """Return a valid approval request: 450 euro (``amount=45_000`` euro cents) in 12 instalments.

    It is different on each call: the e-mail address is. To test a double click, create one request and pass
    it twice. Another one has other data, which raise `PayloadMismatchError`.

    Args:
        tag: A sandbox tag for the e-mail address; see `email`.
        changes: Values for fields of `ApprovalRequest`, valid or not; amounts in euro cents.

    Raises:
        ValueError: Both a tag and an e-mail address are given, or the tag is invalid.
        TypeError: `ApprovalRequest` does not have a field that was given.

    Example:
        >>> from loanasync.testing import approval_request
        >>> request = approval_request(tag="refused", amount=90_000)
        >>> request.amount, request.instalments, request.email
        (90000, 12, 'shopper-...+refused@example.com')
    """
    if tag is not None and "email" in changes:
        raise ValueError("pass either tag or email: the tag is part of the e-mail address")
    values: dict[str, Any] = {
        "amount": 45_000,
        "instalments": 12,
        "email": email(tag),
        "last_name": "Prova",
        "first_name": "Anna",
        "mobile_phone": "3330000000",
        "city": "Roma",
        "address": "Via Prova",
        "province": "RM",
        "postal_code": "00100",
        "street_number": "12/A",
        "citizenship": Citizenship.ITALIAN,
    }
    return ApprovalRequest(**{**values, **changes})


def additional_data(**changes: Any) -> AdditionalData:
    """Return valid additional data for an approval: a net salary of 1600 euro a month.

    Args:
        changes: Values for fields of `AdditionalData`; `salary` is in whole euros.

    Raises:
        TypeError: `AdditionalData` does not have a field that was given.

    Example:
        >>> from loanasync.testing import additional_data, approval_request
        >>> approval_request(additional=additional_data(children="3")).additional.children
        '3'
    """
    values: dict[str, Any] = {
        "residence": Residence.RENT,
        "residence_start_date": date(2019, 5, 1),
        "educational_qualification": EducationalQualification.DIPLOMA,
        "children": "2",
        "salary_type": SalaryType.NET_MONTHLY,
        "salary": 1_600,
    }
    return AdditionalData(**{**values, **changes})


def user_data(**changes: Any) -> UserData:
    """Return valid data to complete an approved request, with all fields except `extra`.

    Args:
        changes: Values for fields of `UserData`; None leaves a field out.

    Raises:
        TypeError: `UserData` does not have a field that was given.

    Example:
        >>> from loanasync.testing import user_data
        >>> user_data(payment_day_of_month=27).payment_day_of_month
        27
    """
    values: dict[str, Any] = {
        "document_type": DocumentType.IDENTITY_CARD,
        "document_code": "AA00000AA",
        "document_city": "Roma",
        "document_issue_date": date(2022, 5, 17),
        "document_expiration_date": date(2032, 5, 17),
        "iban": "IT00A0000000000000000000000",
        "politically_exposed": False,
        "us_person": False,
        "marketing": True,
        "payment_day_of_month": 5,
        "profession": "baker",
    }
    return UserData(**{**values, **changes})
