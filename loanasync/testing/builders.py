"""Builders of valid requests for made-up customers; each argument replaces a field."""

import re
import secrets
from datetime import date
from random import Random, SystemRandom
from string import ascii_uppercase
from typing import Any

from loanasync._enums import Citizenship, DocumentType, EducationalQualification, Residence, SalaryType
from loanasync._models.requests import AdditionalData, ApprovalRequest, UserData

_MONTHS = "ABCDEHLMPRST"
# What a character counts at the odd places of a fiscal code, A for 0 to Z for 25, by its own number:
# 0 or A is worth B (1), 1 or B is worth A (0), 2 or C is worth F (5) and so on.
_ODD = "BAFHJNPRTVCESULDGIMOQKWZYX"
_TAG = re.compile("[A-Za-z0-9.-]+")


def fiscal_code(random: Random | None = None) -> str:
    """Make up the fiscal code of someone who does not exist, another one with each call.

    Its form and its check letter are right, so that ``strict=True`` lets it pass. The family name reads
    ``TST``, and the place of birth begins with ``X``, as no place does: it can be nobody's.

    Args:
        random: A generator of yours, for codes that come again with its seed; None: fresh ones, also
            where a test runner seeds the global generator.

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
    day = source.randrange(1, 29) + source.choice((0, 40))  # 40 more for women
    place = source.randrange(1000)
    code = f"TST{name}{year}{month}{day:02}X{place:03}"
    return code + _check_letter(code)


def _check_letter(code: str) -> str:
    total = 0
    for place, character in enumerate(code, start=1):
        number = int(character) if character.isdigit() else ascii_uppercase.index(character)
        total += ascii_uppercase.index(_ODD[number]) if place % 2 else number
    return ascii_uppercase[total % 26]


def email(tag: str | None = None) -> str:
    """Make up an e-mail address, another one with each call, in the domain that is kept for examples.

    Args:
        tag: What the sandbox is to answer, such as ``refused`` or ``500x2.refused``.

    Raises:
        ValueError: The tag has something else than letters, digits, dots and hyphens.

    Example:
        >>> from loanasync.testing import email
        >>> email("refused")
        'shopper-...+refused@example.com'
    """
    if tag is not None and not _TAG.fullmatch(tag):
        raise ValueError("a tag is letters, digits, dots and hyphens, such as 500x2.refused")
    return f"shopper-{secrets.token_hex(6)}{'' if tag is None else f'+{tag}'}@example.com"


def approval_request(*, tag: str | None = None, **changes: Any) -> ApprovalRequest:
    """Make a valid approval request: 450 euro (``amount=45_000`` euro cents) in 12 instalments.

    Its e-mail address is a fresh one with each call.

    Args:
        tag: The tag of the e-mail address, as of `email`: what the sandbox is to answer.
        changes: Other values for fields of `ApprovalRequest`, also such as break a rule; amounts in euro
            cents.

    Raises:
        ValueError: Both a tag and an e-mail address are given, or the tag cannot be one.
        InvalidRequestError: A change is of no field.

    Example:
        >>> from loanasync.testing import approval_request
        >>> request = approval_request(tag="refused", amount=90_000)
        >>> request.amount, request.instalments, request.email
        (90000, 12, 'shopper-...+refused@example.com')
    """
    if tag is not None and "email" in changes:
        raise ValueError("give a tag or an email, not both: the tag is a part of the address")
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
    """Make the conditional block of an approval, valid: a net salary of 1600 euro a month.

    Args:
        changes: Other values for fields of `AdditionalData`; its `salary` is in whole euros.

    Raises:
        InvalidRequestError: A change is of no field.

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
    """Make the data that complete an approved request, valid, with every field but `extra`.

    Args:
        changes: Other values for fields of `UserData`; None leaves a field out.

    Raises:
        InvalidRequestError: A change is of no field.

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
