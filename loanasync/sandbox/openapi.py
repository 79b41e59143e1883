"""The OpenAPI 3.1 document of the sandbox."""

from collections.abc import Iterable, Mapping
from typing import Any

from loanasync.sandbox.responder import DOMAIN
from loanasync.sandbox.validation import (
    ADDITIONAL,
    APPROVAL,
    BLANK_IN_ITALIAN,
    CREATION,
    FISCAL_CODE,
    SPEC_MESSAGES,
    USER_DATA,
    Field,
)

Schema = Mapping[str, Any]
Fields = Mapping[str, Field]


def _assumed(what: str, schema: Schema) -> Schema:
    """Return a schema marked as assumed, with a description of the assumption."""
    return {**schema, "x-assumed": True, "description": f"Assumed: {what}."}


def _schema(field: Field) -> Schema:
    return _assumed(field.assumed, field.schema) if field.assumed else field.schema


_DOMAIN = DOMAIN["verbatim"]  # spec §7
_UNKNOWN_TAG = _assumed("tags in e-mail addresses choose outcomes", {"pattern": "^Unknown sandbox tag"})


def _object(properties: Schema, required: Iterable[str] | None = None, **more: object) -> Schema:
    """Return the schema of an object, whose properties are all required if `required` is left out."""
    names = list(properties if required is None else required)
    return {"type": "object", "properties": properties, "required": names, **more}


def _body(fields: Fields) -> Schema:
    required = [name for name, field in fields.items() if field.required]
    return _object({name: _schema(field) for name, field in fields.items()}, required)


def _or_null(what: str, schema: Schema) -> Schema:
    return _assumed(what, {"anyOf": [schema, {"type": "null"}]})


def _either(first: str, second: str, schema: Schema) -> list[Schema]:
    """Return the schemas for a field with two spellings; if both are sent, the second one is used."""
    only_first = _object({first: schema, second: False}, [first])
    with_second = _object({second: schema})
    return [only_first, _assumed(f"if {first} is sent, too, this field is used", with_second)]


def _approval() -> Schema:
    needed = "required if the creation returned additionalDataNeeded"
    spelled = {name: field for name, field in APPROVAL.items() if field.other_name}
    properties = {
        name: _schema(field) if field.required else _or_null("null means not sent", _schema(field))
        for name, field in APPROVAL.items()
        if name not in spelled
    }
    properties |= {name: _or_null(needed, _schema(field)) for name, field in ADDITIONAL.items()}
    required = [name for name in properties if name in APPROVAL and APPROVAL[name].required]
    instalments, street_number = (
        _either(name, field.other_name, _schema(field)) for name, field in spelled.items()
    )
    return _object(properties, required, oneOf=instalments, anyOf=street_number)


def _decision(*, approved: bool) -> Schema:
    """Return the schema of a decision (spec §2.1; spec §7: a refusal has the shape of an approval)."""
    not_echoed = {"loanFinality", "countryCallingCode"}
    echoed = {name: field for name, field in APPROVAL.items() if name not in not_echoed}
    url: Schema = {"type": "string", "format": "uri"} if approved else {"not": {}}
    deprecated = {"type": "string", "deprecated": True}
    street_number = _schema(APPROVAL["streetNumber"])
    properties: Schema = {
        **{name: _schema(field) for name, field in echoed.items()},
        "approved": {"const": approved},
        "redirectUrl": _assumed("only an approval has it", url),
        "approvalMessageApiFull": deprecated,
        "approvalMessageApiSemiFull": deprecated,
        "fiscalCode": _schema(FISCAL_CODE),
        "streetNumber": street_number,
        "civicNumber": street_number,
        "netAmount": {"type": "integer"},
        "zeroInterestRate": _assumed("false if it was not requested", {"type": "boolean"}),
        "paymentDayOfMonth": _schema(USER_DATA["paymentDayOfMonth"]),  # here it is an integer
    }
    sometimes = {name for name, field in echoed.items() if not field.required} - {"zeroInterestRate"}
    sometimes |= {"streetNumber", "civicNumber"} | (set() if approved else {"redirectUrl"})
    required = [name for name in properties if name not in sometimes]
    one_spelling = [{"required": ["streetNumber"]}, {"required": ["civicNumber"]}]
    what = "fields that were not sent are not echoed, and the street number keeps its spelling"
    return _assumed(what, _object(properties, required, oneOf=one_spelling))


def _message(text: str) -> Schema:
    is_in_spec = text in SPEC_MESSAGES or text in _DOMAIN.values()
    return {"const": text} if is_in_spec else _assumed("the wording", {"const": text})


def _rejection(fields: Fields, *domain: str, **more: Schema) -> Schema:
    """Return the schema of a 400 (spec §7): `errors` maps a parameter, or `domain`, to messages."""
    texts = {name: field.messages for name, field in fields.items()}
    texts |= {"domain": domain, "body": ("This value should be a JSON object.",)}
    messages = {name: [_message(text) for text in each] for name, each in texts.items()}
    messages |= {name: [*messages.get(name, []), message] for name, message in more.items()}
    lists = {
        name: {"type": "array", "minItems": 1, "items": {"anyOf": each}} for name, each in messages.items()
    }
    errors = _object(lists, (), minProperties=1, additionalProperties=False)
    return _object({"errors": errors}, additionalProperties=False)


def _schemas() -> Mapping[str, Schema]:
    no_documents = _assumed("the response without documents", _message(BLANK_IN_ITALIAN))
    code = {"fiscalCode": _schema(FISCAL_CODE)}
    approval = {**APPROVAL, **ADDITIONAL, "fiscalCode": FISCAL_CODE}
    return {
        "Creation": _assumed("the whole shape", _body(CREATION)),
        "Created": _assumed(
            "the whole shape", _object({**code, "additionalDataNeeded": {"type": "boolean"}})
        ),
        "CreationRejected": _assumed("the list of errors", _rejection(CREATION, _DOMAIN["already"])),
        "Approval": _approval(),
        "Approved": _decision(approved=True),
        "Refused": _decision(approved=False),
        "ApprovalRejected": _rejection(approval, *_DOMAIN.values(), email=_UNKNOWN_TAG),
        "Conflict": _object({"errors": _assumed("the wording", {"type": "string"})}),
        "Documents": _assumed("any object is accepted", {"type": "object"}),
        "DocumentsReceived": _assumed(
            "the whole shape", _object({**code, "documents": {"const": "received"}})
        ),
        "DocumentsRejected": _assumed("the list of errors", _rejection({}, _DOMAIN["nouser"])),
        "UserData": _assumed("no field is mandatory", _body(USER_DATA)),
        "UserDataRejected": _rejection(USER_DATA, _DOMAIN["code"], _DOMAIN["nouser"], documents=no_documents),
        "Denied": _object({"error": {"const": "Access denied"}}),  # spec §7: singular, and a string
        "SystemError": _object({"errors": {"const": {"system": ["System error"]}}}),
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


def _operation(summary: str, sent: str, results: Mapping[int, str]) -> Schema:
    return {
        "summary": summary,
        "operationId": summary.replace(" ", "-").lower(),
        "requestBody": {"required": True, "content": _json(sent)},
        "responses": {
            str(status): {"description": _MEANINGS[status], "content": _json(name)}
            for status, name in {**results, 403: "Denied"}.items()
        },
    }


def _paths() -> Mapping[str, Schema]:
    requests = "/api/shops/{shopId}/requests"
    shop, customer = _ref("parameters", "shopId"), _ref("parameters", "fiscalCode")
    create = _operation("Create a request", "Creation", {201: "Created", 400: "CreationRejected"})
    decisions = {201: "Approved", 422: "Refused", 409: "Conflict"}
    failures = {400: "ApprovalRejected", 500: "SystemError"}
    approve = _operation("Approve a request", "Approval", {**decisions, **failures})

    completions = {200: "UserData", 400: "UserDataRejected", 500: "SystemError"}
    complete = _operation("Complete user data", "UserData", completions)
    upload = _operation("Upload documents", "Documents", {201: "DocumentsReceived", 400: "DocumentsRejected"})
    not_shown = "the shapes of request and response, which spec §4.3 does not show"
    of_request = {"parameters": [shop, customer]}
    return {
        requests: {"parameters": [shop], "post": _assumed(not_shown, create)},
        f"{requests}/{{fiscalCode}}": {**of_request, "post": approve, "patch": complete},
        f"{requests}/{{fiscalCode}}/documents": {**of_request, "post": _assumed(not_shown, upload)},
    }


def _path_parameter(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": schema}


_ABOUT = "Schemas marked with x-assumed are not in the specification. Integers have no fraction. "
_ABOUT += "The document describes the default readings, also if the sandbox uses other readings. "
_ABOUT += "A sandbox with a fixed dialect accepts the spellings of that description only."


def document(base_url: str) -> dict[str, Any]:
    """Return the OpenAPI document of a sandbox; assumptions are marked with `x-assumed`."""
    title = "Sandbox of the loan request approval service"
    token = {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}  # spec §5
    parameters = {"shopId": {"type": "string"}, "fiscalCode": _schema(FISCAL_CODE)}
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
