"""Everything the sandbox serves of the specification, as an OpenAPI 3.1 document."""

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from loanasync.sandbox import validation as said

Schema = dict[str, Any]


def _assumed(what: str, schema: Schema) -> Schema:
    """A shape that the specification leaves open, and what is assumed of it."""
    return {**schema, "x-assumed": True, "description": f"Assumed: {what}."}


@frozen
class Field:
    """A field of a body: the values that are accepted, and what a 400 says of any other."""

    schema: Schema
    messages: tuple[str, ...] = ()
    required: bool = True


Fields = Mapping[str, Field]


def _of(kind: str, *messages: str, **limits: object) -> Field:
    return Field({"type": kind, **limits}, messages)


def _matching(pattern: str) -> Field:
    return _of("string", said.BLANK, said.FORMAT, pattern=f"^{pattern}$")


def _choice(*options: str, messages: tuple[str, ...] = (said.BLANK, said.CHOICE)) -> Field:
    return _of("string", *messages, enum=list(options))


def _optional(field: Field) -> Field:
    return evolve(field, required=False)


def _open(what: str, field: Field) -> Field:
    return evolve(field, schema=_assumed(what, field.schema))


_BLANK = r"\s\x1c-\x1f\x85"  # blank to Python, which is more than \s in a pattern of JSON Schema
_TEXT = _of("string", said.BLANK, pattern=f"[^{_BLANK}]")
_CODE = _of("string", said.FISCAL_CODE, pattern="^[A-Z0-9]{16}$")
_FISCAL_CODE = _open("16 capital letters and digits", _CODE)

# spec §2.1, input, and §8
_APPROVAL: Fields = {
    "amount": _of("integer", said.AMOUNT, minimum=5_000, maximum=1_500_000),
    "loanFinality": _open("any purpose, as one description gives no values", _TEXT),
    "email": _open("anything around one @ is an address", _matching(f"[^@{_BLANK}]+@[^@{_BLANK}]+")),
    **dict.fromkeys(("lastname", "firstname", "mobilePhone", "city", "address"), _TEXT),
    "province": _matching("[A-Z]{2}"),
    "postalCode": _matching("[0-9]{5}"),
    "citizenship": _choice("italian", "Italian", "eu", "outside_eu"),  # either description's spelling
    "iban": _optional(_TEXT),
    "orderToken": _optional(_TEXT),  # as in one description; the other requires it
    "countryCallingCode": _optional(_TEXT),
    "zeroInterestRate": _optional(_of("boolean", said.FORMAT)),
    "paymentDayOfMonth": _optional(_matching("([1-9]|[12][0-9]|3[01])")),
}
# spec §2.1: two descriptions, two spellings; spec §7: the messages name the first
_SPELLINGS: Mapping[tuple[str, str], Field] = {
    ("instalments", "installments"): _of("integer", said.INSTALMENTS, minimum=3, maximum=60),
    ("streetNumber", "civicNumber"): _open("more than the 5 digits of one description", _TEXT),
}
_FIRST_SPELLINGS: Fields = {first: field for (first, _), field in _SPELLINGS.items()}
# spec §2.1: required when additionalDataNeeded is true, which is not in the body
_CONDITIONAL: Fields = {
    "residence": _choice(
        "rent", "home_ownership", "home_ownership_mortgage", "home_business", "with_relatives"
    ),
    "residenceStartDate": _matching("(0[1-9]|1[0-2])/[0-9]{4}"),
    "educationalQualification": _choice("middle_school", "diploma", "graduation", "master", "doctorate"),
    "children": _open("0 is among them", _choice("0", "1", "2", "3", "4", "5+")),
    "salaryType": _choice("net-monthly", "gross-yearly"),
    "salary": _of("integer", said.BLANK, said.FORMAT, minimum=0),
}
_TEXT_IN_ITALIAN = evolve(_TEXT, messages=(said.BLANK_IN_ITALIAN,))
_DAY_IN_ITALIAN = _of("string", said.DATE_IN_ITALIAN, format="date")
_KINDS = ("identity_card", "driving_license", "passport")
# spec §2.2
_USER_DATA: Fields = {
    "documentOfType": _choice(*_KINDS, messages=(said.CHOICE_IN_ITALIAN,)),
    **dict.fromkeys(("documentCode", "documentCity", "iban", "profession"), _TEXT_IN_ITALIAN),
    **dict.fromkeys(("documentIssueDate", "documentExpirationDate"), _DAY_IN_ITALIAN),
    **dict.fromkeys(("politicallyExposed", "usPerson", "marketing"), _of("boolean", said.TYPE_IN_ITALIAN)),
    "paymentDayOfMonth": _of("integer", said.TYPE_IN_ITALIAN, minimum=1, maximum=31),
}
_MONTH = {"pattern": "^(0[1-9]|1[0-2])/[0-9]{4}$"}
_MONTH_OR_DAY = _of("string", said.DATE, anyOf=[_MONTH, {"format": "date"}])
# spec §4.3: not shown; spec §7 has messages for two of them
_CREATION: Fields = {
    "fiscalCode": _FISCAL_CODE,
    "privacy": _optional(Field({"enum": [True, "true"]}, (said.PRIVACY,))),
    "actualJobEndingDate": _optional(_open("a month or a day", _MONTH_OR_DAY)),
    "additionalDataNeeded": _optional(_of("boolean", said.FORMAT)),
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


def _body(fields: Fields, **more: object) -> Schema:
    required = [name for name, field in fields.items() if field.required]
    return _object({name: field.schema for name, field in fields.items()}, *required, **more)


def _or_null(what: str, field: Field) -> Field:
    schema = _assumed(what, {"anyOf": [field.schema, {"type": "null"}]})
    return evolve(field, schema=schema, required=False)


def _either(first: str, second: str, field: Field) -> list[Schema]:
    """Two spellings of one field: at least one is sent, and of both only the second is read."""
    only_first = _object({first: field.schema, second: False}, first)
    with_second = _object({second: field.schema}, second)
    return [only_first, _assumed(f"it counts where {first} is sent, too", with_second)]


def _approval() -> Schema:
    needed = "required where the creation answered additionalDataNeeded"
    optional = {name: field for name, field in _APPROVAL.items() if not field.required}
    fields = {
        **_APPROVAL,
        **{name: _or_null("null is as if not sent", field) for name, field in optional.items()},
        **{name: _or_null(needed, field) for name, field in _CONDITIONAL.items()},
    }
    instalments, street_number = (_either(*names, field) for names, field in _SPELLINGS.items())
    return _body(fields, oneOf=instalments, anyOf=street_number)


def _decision(*, approved: bool) -> Schema:
    """Spec §2.1, response; spec §7: a refusal has the shape of an approval."""
    not_echoed = {"loanFinality", "countryCallingCode"}
    deprecated = Field({"type": "string", "deprecated": True})
    url: Schema = {"type": "string", "format": "uri"} if approved else {"not": {}}
    fields: Fields = {
        **{name: field for name, field in _APPROVAL.items() if name not in not_echoed},
        "approved": Field({"const": approved}),
        "redirectUrl": Field(_assumed("only an approval has it", url), required=approved),
        **dict.fromkeys(("approvalMessageApiFull", "approvalMessageApiSemiFull"), deprecated),
        "fiscalCode": _FISCAL_CODE,
        **dict.fromkeys(("streetNumber", "civicNumber"), _optional(_FIRST_SPELLINGS["streetNumber"])),
        "instalments": _FIRST_SPELLINGS["instalments"],
        "netAmount": Field({"type": "integer"}),
        "zeroInterestRate": Field(_assumed("false where it was not asked for", {"type": "boolean"})),
        "paymentDayOfMonth": _optional(_USER_DATA["paymentDayOfMonth"]),  # here it is an integer
    }
    one_spelling = [{"required": ["streetNumber"]}, {"required": ["civicNumber"]}]
    what = "what was not sent is not echoed, and the street number keeps its spelling"
    return _assumed(what, _body(fields, oneOf=one_spelling))


def _message(text: str) -> Schema:
    return {"const": text} if text in _SHOWN else _assumed("the wording", {"const": text})


def _rejection(fields: Fields, *domain: str, **more: Schema) -> Schema:
    """Spec §7, 400: `errors` maps a parameter, or `domain`, to its messages."""
    texts = {name: field.messages for name, field in fields.items()}
    texts |= {"domain": domain, "body": ("This value should be a JSON object.",)}
    messages = {name: [_message(text) for text in each] for name, each in texts.items()}
    messages |= {name: [*messages.get(name, []), message] for name, message in more.items()}
    lists = {
        name: {"type": "array", "minItems": 1, "items": {"anyOf": each}} for name, each in messages.items()
    }
    errors = _object(lists, minProperties=1, additionalProperties=False)
    return _object({"errors": errors}, "errors", additionalProperties=False)


def _schemas() -> Mapping[str, Schema]:
    no_documents = _assumed("the answer while there are no documents", _message(said.BLANK_IN_ITALIAN))
    created = {"fiscalCode": _FISCAL_CODE, "additionalDataNeeded": Field({"type": "boolean"})}
    received = {"fiscalCode": _FISCAL_CODE, "documents": Field({"const": "received"})}
    approval = {**_APPROVAL, **_FIRST_SPELLINGS, **_CONDITIONAL, "fiscalCode": _FISCAL_CODE}
    domain = (_NOT_FOUND, _EVALUATED, _NOT_ALLOWED, _INVALID)
    return {
        "Creation": _assumed("the whole shape", _body(_CREATION)),
        "Created": _assumed("the whole shape", _body(created)),
        "CreationRejected": _assumed("which errors there are", _rejection(_CREATION, _EVALUATED)),
        "Approval": _approval(),
        "Approved": _decision(approved=True),
        "Refused": _decision(approved=False),
        "ApprovalRejected": _rejection(approval, *domain, email=_UNKNOWN_TAG),
        "Conflict": _object({"errors": _assumed("the wording", {"type": "string"})}, "errors"),
        "Documents": _assumed("any object will do", {"type": "object"}),
        "DocumentsReceived": _assumed("the whole shape", _body(received)),
        "DocumentsRejected": _assumed("which errors there are", _rejection({}, _NOT_FOUND)),
        "UserData": _assumed("no field is mandatory", {**_body(_USER_DATA), "required": []}),
        "UserDataRejected": _rejection(_USER_DATA, _INVALID, _NOT_FOUND, documents=no_documents),
        "Denied": _object({"error": {"const": "Access denied"}}, "error"),  # spec §7: singular, and a string
        "SystemError": _object({"errors": {"const": {"system": ["System error"]}}}, "errors"),
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
        "operationId": summary.replace(" ", "-").lower(),
        "requestBody": {"required": True, "content": _json(sent)},
        "responses": {
            str(status): {"description": _MEANINGS[status], "content": _json(name)}
            for status, name in {**answers, 403: "Denied"}.items()
        },
    }


def _paths() -> Mapping[str, Schema]:
    requests = "/api/shops/{shopId}/requests"
    shop, customer = _ref("parameters", "shopId"), _ref("parameters", "fiscalCode")
    create = _operation("Create a request", "Creation", {201: "Created", 400: "CreationRejected"})
    decisions = {201: "Approved", 422: "Refused", 409: "Conflict"}
    failures = {400: "ApprovalRejected", 500: "SystemError"}
    approve = _operation("Approve a request", "Approval", {**decisions, **failures})
    # spec §4.2 has a 500, too; the sandbox never answers it
    completions = {200: "UserData", 400: "UserDataRejected", 500: "SystemError"}
    complete = _operation("Complete user data", "UserData", completions)
    upload = _operation("Upload documents", "Documents", {201: "DocumentsReceived", 400: "DocumentsRejected"})
    not_shown = "what is sent and answered, which spec §4.3 does not show"
    of_request = {"parameters": [shop, customer]}
    return {
        requests: {"parameters": [shop], "post": _assumed(not_shown, create)},
        f"{requests}/{{fiscalCode}}": {**of_request, "post": approve, "patch": complete},
        f"{requests}/{{fiscalCode}}/documents": {**of_request, "post": _assumed(not_shown, upload)},
    }


def _path_parameter(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": schema}


_ABOUT = "What the specification leaves open has x-assumed. Integers are written without a fraction. "
_ABOUT += "It describes the default readings, whatever readings the sandbox plays. "
_ABOUT += "A sandbox that speaks one description only knows that one's spellings alone."


def document(base_url: str) -> dict[str, Any]:
    """The document of a sandbox at an address; what is only assumed in it is marked with `x-assumed`."""
    title = "Sandbox of the loan request approval service"
    token = {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}  # spec §5
    parameters = {"shopId": {"type": "string"}, "fiscalCode": _FISCAL_CODE.schema}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "not shown", "description": _ABOUT},  # spec §9: no version
        "servers": [{"url": base_url}],
        "security": [{"shopToken": []}],
        "paths": _paths(),
        "components": {
            "parameters": {name: _path_parameter(name, schema) for name, schema in parameters.items()},
            "schemas": _schemas(),
            "securitySchemes": {"shopToken": token},
        },
    }
