"""Enumerations of the specification (spec §2)."""

from enum import StrEnum


class Citizenship(StrEnum):
    """Citizenship of the customer (spec §2.1, ``citizenship``).

    Example:
        >>> Citizenship("outside_eu") is Citizenship.OUTSIDE_EU
        True
    """

    ITALIAN = "italian"
    EU = "eu"
    OUTSIDE_EU = "outside_eu"


class Residence(StrEnum):
    """Housing situation of the customer (spec §2.1, ``residence``).

    Example:
        >>> Residence("rent")
        <Residence.RENT: 'rent'>
    """

    RENT = "rent"
    HOME_OWNERSHIP = "home_ownership"
    HOME_OWNERSHIP_MORTGAGE = "home_ownership_mortgage"
    HOME_BUSINESS = "home_business"
    WITH_RELATIVES = "with_relatives"


class EducationalQualification(StrEnum):
    """Highest educational qualification of the customer (spec §2.1, ``educationalQualification``).

    Example:
        >>> EducationalQualification("diploma")
        <EducationalQualification.DIPLOMA: 'diploma'>
    """

    MIDDLE_SCHOOL = "middle_school"
    DIPLOMA = "diploma"
    GRADUATION = "graduation"
    MASTER = "master"
    DOCTORATE = "doctorate"


class SalaryType(StrEnum):
    """Meaning of ``salary``: net per month or gross per year (spec §2.1, ``salaryType``).

    Example:
        >>> SalaryType("net-monthly")
        <SalaryType.NET_MONTHLY: 'net-monthly'>
    """

    NET_MONTHLY = "net-monthly"
    GROSS_YEARLY = "gross-yearly"


class DocumentType(StrEnum):
    """Type of identity document (spec §2.2, ``documentOfType``).

    Example:
        >>> DocumentType("passport")
        <DocumentType.PASSPORT: 'passport'>
    """

    IDENTITY_CARD = "identity_card"
    DRIVING_LICENSE = "driving_license"
    PASSPORT = "passport"
