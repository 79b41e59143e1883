"""Everything the sandbox serves of the specification, as an OpenAPI 3.1 document."""

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from loanasync.sandbox import _validation as said

__all__ = ["document"]

Schema = dict[str, Any]


def _assumed(what: str, schema: Schema) -> Schema:
    """A shape that the specification leaves open, and what is assumed of it."""
    return {**schema, "x-assumed": True, "description": f"Assumed: {what}."}


@frozen
class Field:
    """A field of a body.

    Args:
        schema: The values that are accepted.
        messages: What is said of any other in a 400.
        required: Whether it has to be sent.
    """

    schema: Schema
    messages: tuple[str, ...]
    required: bool = True


Fields = Mapping[str, Field]


def _text(pattern: str, *messages: str) -> Field:
    return Field({"type": "string", "pattern": pattern}, messages)


def _matching(pattern: str) -> Field:
    return _text(f"^{pattern}$", said.BLANK, said.FORMAT)


def _choice(*options: str, messages: tuple[str, ...] = (said.BLANK, said.CHOICE)) -> Field:
    return Field({"type": "string", "enum": list(options)}, messages)


def _integer(message: str, **limits: int) -> Field:
    return Field({"type": "integer", **limits}, (message,))


def _boolean(message: str) -> Field:
    return Field({"type": "boolean"}, (message,))


def _day(message: str) -> Field:
    return Field({"type": "string", "format": "date"}, (message,))


def _optional(field: Field) -> Field:
    return evolve(field, required=False)


def _open(what: str, field: Field) -> Field:
    return evolve(field, schema=_assumed(what, field.schema))


_BLANK = r"\s\x1c-\x1f\x85"  # what is blank to Python; to the patterns of JSON Schema, \s alone is less
_TEXT = _text(f"[^{_BLANK}]", said.BLANK)
_TEXT_IN_ITALIAN = _text(f"[^{_BLANK}]", said.BLANK_IN_ITALIAN)
_YES_OR_NO_IN_ITALIAN = _boolean(said.TYPE_IN_ITALIAN)
_FISCAL_CODE = _open("16 capital letters and digits", _text("^[A-Z0-9]{16}$", said.FISCAL_CODE))

# spec §2.1, input, and §8
_APPROVAL: Fields = {
    "amount": _integer(said.AMOUNT, minimum=5_000, maximum=1_500_000),
    "loanFinality": _open("any purpose, as one description gives no values", _TEXT),
    "email": _open("anything around one @ is an address", _matching(f"[^@{_BLANK}]+@[^@{_BLANK}]+")),
    **dict.fromkeys(("lastname", "firstname", "mobilePhone", "city", "address"), _TEXT),
    "province": _matching("[A-Z]{2}"),
    "postalCode": _matching("[0-9]{5}"),
    "citizenship": _choice("italian", "Italian", "eu", "outside_eu"),
    "iban": _optional(_TEXT),
    "orderToken": _optional(_TEXT),  # required in one description, optional in the other
    "countryCallingCode": _optional(_TEXT),
    "zeroInterestRate": _optional(_boolean(said.FORMAT)),
    "paymentDayOfMonth": _optional(_matching("([1-9]|[12][0-9]|3[01])")),
}
# spec §2.1: two descriptions, two spellings; spec §7: the messages name the first
_SPELLINGS: Mapping[tuple[str, str], Field] = {
    ("instalments", "installments"): _integer(said.INSTALMENTS, minimum=3, maximum=60),
    ("streetNumber", "civicNumber"): _TEXT,
}
_FIRST_SPELLINGS: Fields = {first: field for (first, _), field in _SPELLINGS.items()}
# spec §2.1: required when additionalDataNeeded is true, which is not in the body
_CONDITIONAL: Fields = {
    "residence": _choice(
        "rent", "home_ownership", "home_ownership_mortgage", "home_business", "with_relatives"
    ),
    "residenceStartDate": _matching("(0[1-9]|1[0-2])/[0-9]{4}"),
    "educationalQualification": _choice("middle_school", "diploma", "graduation", "master", "doctorate"),
    "children": _choice("0", "1", "2", "3", "4", "5+"),
    "salaryType": _choice("net-monthly", "gross-yearly"),
    "salary": Field({"type": "integer", "minimum": 0}, (said.BLANK, said.FORMAT)),
}
# spec §2.2
_USER_DATA: Fields = {
    "documentOfType": _choice(
        *("identity_card", "driving_license", "passport"), messages=(said.CHOICE_IN_ITALIAN,)
    ),
    **dict.fromkeys(("documentCode", "documentCity", "iban", "profession"), _TEXT_IN_ITALIAN),
    **dict.fromkeys(("documentIssueDate", "documentExpirationDate"), _day(said.DATE_IN_ITALIAN)),
    **dict.fromkeys(("politicallyExposed", "usPerson", "marketing"), _YES_OR_NO_IN_ITALIAN),
    "paymentDayOfMonth": _integer(said.TYPE_IN_ITALIAN, minimum=1, maximum=31),
}
# spec §4.3: not shown; spec §7 has messages for two of them
_CREATION: Fields = {
    "fiscalCode": _FISCAL_CODE,
    "privacy": _optional(Field({"enum": [True, "true"]}, (said.PRIVACY,))),
    "actualJobEndingDate": _optional(_day(said.DATE)),
    "additionalDataNeeded": _optional(_boolean(said.FORMAT)),
}

# spec §7, domain errors
_NOT_FOUND = "User not found"
_EVALUATED = "User already evaluated for approval"
_NOT_ALLOWED = "This sales point cannot apply for a loan"
_INVALID = "Invalid fiscalCode."

# spec §7; the wording of all other messages is assumed
_SHOWN = {said.AMOUNT, said.BLANK, said.CHOICE, said.DATE, said.FISCAL_CODE, said.INSTALMENTS, said.PRIVACY}
_SHOWN |= {_NOT_FOUND, _EVALUATED, _NOT_ALLOWED, _INVALID}
_UNKNOWN_TAG = _assumed("a tag in an address asks for an outcome", {"pattern": "^Unknown sandbox tag"})


def _object(properties: Schema, *required: str, **more: object) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), **more}


def _required(fields: Fields) -> list[str]:
    return [name for name, field in fields.items() if field.required]


def _values(fields: Fields) -> Schema:
    return {name: field.schema for name, field in fields.items()}


def _or_null(what: str, field: Field) -> Schema:
    return _assumed(what, {"anyOf": [field.schema, {"type": "null"}]})


def _either(first: str, second: str, field: Field) -> list[Schema]:
    """Two spellings of one field: at least one is sent, and of both only the second is read."""
    only_first = _object({first: field.schema, second: False}, first)
    with_second = _object({second: field.schema}, second)
    return [only_first, _assumed(f"it counts where {first} is sent, too", with_second)]


def _approval() -> Schema:
    optional = {name: field for name, field in _APPROVAL.items() if not field.required}
    properties = {
        **_values(_APPROVAL),
        **{name: _or_null("null is as good as nothing", field) for name, field in optional.items()},
        **{
            name: _or_null("wanted where the creation answered additionalDataNeeded", field)
            for name, field in _CONDITIONAL.items()
        },
    }
    instalments, street_number = (_either(*names, field) for names, field in _SPELLINGS.items())
    return _object(properties, *_required(_APPROVAL), oneOf=instalments, anyOf=street_number)


def _decision(*, approved: bool) -> Schema:
    """Spec §2.1, response; spec §7: a refusal has the shape of an approval."""
    deprecated = {"type": "string", "deprecated": True}
    echoed = {
        name: field for name, field in _APPROVAL.items() if name not in {"loanFinality", "countryCallingCode"}
    }
    always: Schema = {
        "approved": {"const": approved},
        "approvalMessageApiFull": deprecated,
        "approvalMessageApiSemiFull": deprecated,
        "fiscalCode": _FISCAL_CODE.schema,
        "netAmount": {"type": "integer"},
        "zeroInterestRate": {"type": "boolean"},
        "instalments": _FIRST_SPELLINGS["instalments"].schema,
    }
    sometimes: Schema = {
        "streetNumber": _TEXT.schema,
        "civicNumber": _TEXT.schema,
        "paymentDayOfMonth": {"type": "integer", "minimum": 1, "maximum": 31},
        "redirectUrl": _assumed(
            "only an approval has it", {"type": "string", "format": "uri"} if approved else {"not": {}}
        ),
    }
    required = [*always, *_required(echoed), *(["redirectUrl"] if approved else [])]
    one_spelling = [{"required": ["streetNumber"]}, {"required": ["civicNumber"]}]
    shape = _object({**_values(echoed), **always, **sometimes}, *required, oneOf=one_spelling)
    return _assumed("what was not sent is not echoed, and the street number keeps its spelling", shape)


def _message(text: str) -> Schema:
    return {"const": text} if text in _SHOWN else _assumed("the wording", {"const": text})


def _rejection(fields: Fields, *domain: str, **more: list[Schema]) -> Schema:
    """Spec §7, 400: `errors` maps a parameter, or `domain`, to its messages."""
    messages = {name: [_message(text) for text in field.messages] for name, field in fields.items()}
    messages["domain"] = [_message(text) for text in domain]
    messages["body"] = [_message("This value should be a JSON object.")]
    for name, further in more.items():
        messages[name] = messages.get(name, []) + further
    lists = {
        name: {"type": "array", "items": {"anyOf": options}, "minItems": 1}
        for name, options in messages.items()
    }
    errors = _object(lists, minProperties=1, additionalProperties=False)
    return _object({"errors": errors}, "errors", additionalProperties=False)


def _schemas() -> Mapping[str, Schema]:
    known = _object({"errors": _assumed("the wording", {"type": "string"})}, "errors")
    system = _object({"system": {"const": ["System error"]}}, "system")
    no_documents = _assumed("the answer while there are no documents", _message(said.BLANK_IN_ITALIAN))
    created = {"fiscalCode": _FISCAL_CODE.schema, "additionalDataNeeded": {"type": "boolean"}}
    uploaded = {"fiscalCode": _FISCAL_CODE.schema, "documents": {"const": "received"}}
    approval = {**_APPROVAL, **_FIRST_SPELLINGS, **_CONDITIONAL, "fiscalCode": _FISCAL_CODE}
    return {
        "Creation": _assumed("the whole shape", _object(_values(_CREATION), *_required(_CREATION))),
        "Created": _assumed("the whole shape", _object(created, *created)),
        "CreationRejected": _assumed("which errors there are", _rejection(_CREATION, _EVALUATED)),
        "Approval": _approval(),
        "Approved": _decision(approved=True),
        "Refused": _decision(approved=False),
        "ApprovalRejected": _rejection(
            approval, _NOT_FOUND, _EVALUATED, _NOT_ALLOWED, _INVALID, email=[_UNKNOWN_TAG]
        ),
        "Conflict": known,
        "Documents": _assumed("any object will do", {"type": "object"}),
        "DocumentsReceived": _assumed("the whole shape", _object(uploaded, *uploaded)),
        "DocumentsRejected": _assumed("which errors there are", _rejection({}, _NOT_FOUND)),
        "UserData": _assumed("no field is mandatory", _object(_values(_USER_DATA))),
        "UserDataRejected": _rejection(_USER_DATA, _INVALID, _NOT_FOUND, documents=[no_documents]),
        "Denied": _object({"error": {"const": "Access denied"}}, "error"),  # spec §7: singular, and a string
        "SystemError": _object({"errors": system}, "errors"),
    }


def _ref(kind: str, name: str) -> Schema:
    return {"$ref": f"#/components/{kind}/{name}"}


def _json(name: str) -> Schema:
    return {"application/json": {"schema": _ref("schemas", name)}}


# spec §4.1, §4.2 and §7
_MEANINGS = {
    200: "Success",
    201: "Resource created",
    400: "A formally wrong parameter, or a domain error",
    403: "Invalid credentials: check shopId and X-Auth-Token",
    409: "The request cannot be completed",
    422: "User refused; not repeatable",
    500: "System error",
}


def _operation(summary: str, sent: str, answers: Mapping[int, str]) -> Schema:
    return {
        "summary": summary,
        "operationId": summary.split(" (", maxsplit=1)[0].replace(" ", "-").lower(),
        "requestBody": {"required": True, "content": _json(sent)},
        "responses": {
            str(status): {"description": _MEANINGS[status], "content": _json(name)}
            for status, name in {**answers, 403: "Denied"}.items()
        },
    }


def _paths() -> Mapping[str, Schema]:
    requests = "/api/shops/{shopId}/requests"
    request = requests + "/{fiscalCode}"
    of_shop, of_customer = [_ref("parameters", "shopId")], [_ref("parameters", "fiscalCode")]
    create = _operation("Create a request", "Creation", {201: "Created", 400: "CreationRejected"})
    approve = _operation(
        "Approve a request",
        "Approval",
        {201: "Approved", 400: "ApprovalRejected", 409: "Conflict", 422: "Refused", 500: "SystemError"},
    )
    complete = _operation(
        "Complete user data", "UserData", {200: "UserData", 400: "UserDataRejected", 500: "SystemError"}
    )
    upload = _operation("Upload documents", "Documents", {201: "DocumentsReceived", 400: "DocumentsRejected"})
    open_shape = "payload and answer, which spec §4.3 does not show"
    return {
        requests: {"parameters": of_shop, "post": _assumed(open_shape, create)},
        request: {"parameters": of_shop + of_customer, "post": approve, "patch": complete},
        f"{request}/documents": {"parameters": of_shop + of_customer, "post": _assumed(open_shape, upload)},
    }


def document(base_url: str) -> dict[str, Any]:
    """The document for a sandbox at an address; each shape that is only assumed has `x-assumed`."""
    shop_id = {"name": "shopId", "in": "path", "required": True, "schema": {"type": "string"}}
    fiscal_code = {"name": "fiscalCode", "in": "path", "required": True, "schema": _FISCAL_CODE.schema}
    token = {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}  # spec §5
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sandbox of the loan request approval service", "version": "not shown"},  # spec §9
        "servers": [{"url": base_url}],
        "security": [{"shopToken": []}],
        "paths": _paths(),
        "components": {
            "parameters": {"shopId": shop_id, "fiscalCode": fiscal_code},
            "schemas": _schemas(),
            "securitySchemes": {"shopToken": token},
        },
    }
