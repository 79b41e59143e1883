"""Rows of the tables in the specification, by paragraph."""

_ROWS = {
    "2.1 request": (
        "amount, instalments, loanFinality, email, lastname, firstname, iban, mobilePhone, "
        "countryCallingCode, city, address, province, postalCode, civicNumber/streetNumber, citizenship, "
        "zeroInterestRate, orderToken, residence, residenceStartDate, educationalQualification, children, "
        "salaryType, salary, paymentDayOfMonth"
    ),
    "2.1 response": (
        "approved, redirectUrl, approvalMessageApiFull, approvalMessageApiSemiFull, email, lastname, "
        "firstname, fiscalCode, mobilePhone, city, address, province, postalCode, "
        "civicNumber/streetNumber, citizenship, iban, amount, netAmount, instalments, zeroInterestRate, "
        "orderToken, paymentDayOfMonth"
    ),
    "2.2": (
        "documentOfType, documentCode, documentCity, documentIssueDate, documentExpirationDate, iban, "
        "politicallyExposed, usPerson, marketing, paymentDayOfMonth, profession"
    ),
    "3": "created → approved, created → refused, already evaluated",
    "4.1": "POST, prerequisite, 201, 400, 403, 409, 422, 500",
    "4.2": "PATCH, prerequisite, 200, 400, 403, 500",
    "4.3": "POST requests, POST documents",
    "5": "shopId, X-Auth-Token",
    "7 status": "400, 403, 409, 422, 500",
    "7 validation": (
        "actualJobEndingDate, address, amount, citizenship, streetNumber, email, firstname, fiscalCode, "
        "instalments, lastname, mobilePhone, postalCode, privacy"
    ),
    "7 domain": (
        "User not found, User already evaluated for approval, This sales point cannot apply for a loan, "
        "Invalid fiscalCode."
    ),
    "7 localized": "documentCity, documentExpirationDate",
    "8": "amount, instalments, province, postalCode",
}
SPECIFICATION = {paragraph: rows.split(", ") for paragraph, rows in _ROWS.items()}
