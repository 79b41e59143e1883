"""The orders of the benchmarks, built as users of the package do.

It imports the package only, because `first.py` measures what a process imports.
"""

from datetime import date

from loanasync import (
    AdditionalData,
    ApprovalRequest,
    Citizenship,
    EducationalQualification,
    Residence,
    SalaryType,
)


def full_request() -> ApprovalRequest:
    """Build the order with every member that an approval may have."""
    return ApprovalRequest(
        amount=45_000,
        instalments=12,
        email="anna@example.com",
        last_name="Prova",
        first_name="Anna",
        mobile_phone="3330000000",
        country_calling_code="+39",
        city="Roma",
        address="Via Prova",
        province="RM",
        postal_code="00100",
        street_number="12/A",
        citizenship=Citizenship.ITALIAN,
        iban="IT60X0542811101000000123456",
        zero_interest_rate=False,
        order_token="order-2025-0000001",  # noqa: S106  (made up)
        payment_day_of_month=15,
        additional=AdditionalData(
            residence=Residence.RENT,
            residence_start_date=date(2019, 5, 1),
            educational_qualification=EducationalQualification.DIPLOMA,
            children="2",
            salary_type=SalaryType.NET_MONTHLY,
            salary=1600,
        ),
    )


def short_request() -> ApprovalRequest:
    """Build the order without the conditional block and three optional members."""
    return ApprovalRequest(
        amount=45_000,
        instalments=12,
        email="anna@example.com",
        last_name="Prova",
        first_name="Anna",
        mobile_phone="3330000000",
        city="Roma",
        address="Via Prova",
        province="RM",
        postal_code="00100",
        street_number="12/A",
        citizenship=Citizenship.ITALIAN,
        zero_interest_rate=False,
        order_token="order-2025-0000001",  # noqa: S106  (made up)
    )
