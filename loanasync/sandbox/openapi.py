"""The OpenAPI 3.1 document of the sandbox.

It uses only constructs that client generators support: a field with two spellings is two optional properties,
and a 400 is a map of lists.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from loanasync.sandbox.outcomes import CONFLICT, DENIED, SYSTEM_ERROR, decision_texts
from loanasync.sandbox.validation import (
    ADDITIONAL,
    AMOUNT,
    APPROVAL,
    CREATION,
    ECHOED,
    EXAMPLE_CODE,
    EXAMPLES,
    FISCAL_CODE,
    USER_DATA,
    Field,
)

Schema = Mapping[str, Any]
Fields = Mapping[str, Field]


def _assumed(what: str, schema: Schema) -> Schema:
    """Return a schema marked as assumed, with a description of the assumption."""
    return {**schema, "x-assumed": True, "description": f"Assumed: {what}."}


def _ref(kind: str, name: str) -> Schema:
    return {"$ref": f"#/components/{kind}/{name}"}


def _schema(field: Field) -> Schema:
    return _assumed(field.assumed, field.schema) if field.assumed else field.schema


def _type_name(name: str) -> str:
    return name[0].upper() + name[1:]


def _property(name: str, field: Field) -> Schema:
    """Return the schema of a property; an enumeration is a separate schema, so that it has one name."""
    return _ref("schemas", _type_name(name)) if "enum" in field.schema else _schema(field)


def _or_null(what: str, name: str, field: Field) -> Schema:
    if "enum" in field.schema:
        return _assumed(what, {"anyOf": [_property(name, field), {"type": "null"}]})
    return _assumed(what, {**field.schema, "type": [field.schema["type"], "null"]})


def _object(properties: Schema, required: Iterable[str] | None = None) -> Schema:
    """Return the schema of an object, whose properties are all required if `required` is left out."""
    names = list(properties if required is None else required)
    return {"type": "object", "properties": properties, "required": names}


def _body(fields: Fields) -> Schema:
    required = [name for name, field in fields.items() if field.required]
    return _object({name: _property(name, field) for name, field in fields.items()}, required)


def _approval() -> Schema:
    properties: dict[str, Schema] = {}
    for name, field in APPROVAL.items():
        properties[name] = (
            _property(name, field) if field.required else _or_null("null means not sent", name, field)
        )
        if field.other_name:
            what = f"send {name} or {field.other_name}. If both are sent, {field.other_name} is used"
            properties |= dict.fromkeys((name, field.other_name), _assumed(what, field.schema))
    needed = "required if the creation returned additionalDataNeeded"
    properties |= {name: _or_null(needed, name, field) for name, field in ADDITIONAL.items()}
    one_spelling = [name for name, field in APPROVAL.items() if field.required and not field.other_name]
    return _object(properties, one_spelling)


def _decision(*, approved: bool) -> Schema:
    """Return the schema of a decision (spec §2.1; spec §7: a refusal has the shape of an approval)."""
    echoed = {name: APPROVAL[name] for name in ECHOED}
    deprecated = {"type": "string", "deprecated": True}
    street_number = _assumed("in the spelling that was sent", APPROVAL["streetNumber"].schema)
    properties: dict[str, Schema] = {
        **{name: _property(name, field) for name, field in echoed.items()},
        "approved": {"type": "boolean", "const": approved},
        **dict.fromkeys(decision_texts(approved=approved), deprecated),
        "fiscalCode": _schema(FISCAL_CODE),
        "streetNumber": street_number,
        "civicNumber": street_number,
        "netAmount": {"type": "integer"},
        "zeroInterestRate": _assumed("false if it was not requested", {"type": "boolean"}),
        "paymentDayOfMonth": _schema(USER_DATA["paymentDayOfMonth"]),  # here it is an integer
    }
    if approved:
        properties["redirectUrl"] = _assumed("only an approval has it", {"type": "string", "format": "uri"})
    sometimes = {name for name, field in echoed.items() if not field.required} - {"zeroInterestRate"}
    sometimes |= {"streetNumber", "civicNumber"}
    required = [name for name in properties if name not in sometimes]
    return _assumed("fields that were not sent are not echoed", _object(properties, required))


def _schemas(shop_id: str) -> Mapping[str, Schema]:
    code, text = {"fiscalCode": _schema(FISCAL_CODE)}, {"type": "string"}
    messages = {"type": "array", "items": text, "minItems": 1}
    # spec §7: `errors` maps a parameter, or `domain`, to messages.
    errors = {"type": "object", "additionalProperties": messages, "minProperties": 1}
    needed = {"additionalDataNeeded": {"type": "boolean"}}
    received = {"documents": {"type": "string", "const": "received"}}
    fields = {**CREATION, **APPROVAL, **ADDITIONAL, **USER_DATA}
    return {
        **{_type_name(name): _schema(field) for name, field in fields.items() if "enum" in field.schema},
        "Shop": {**text, "enum": [shop_id]},
        "Creation": _assumed("the whole shape", _body(CREATION)),
        "Created": _assumed("the whole shape", _object({**code, **needed})),
        "Approval": _approval(),
        "Approved": _decision(approved=True),
        "Refused": _decision(approved=False),
        "Conflict": _object({"errors": _assumed("the wording", text)}),
        "Documents": _assumed("any object is accepted", {"type": "object"}),
        "DocumentsReceived": _assumed("the whole shape", _object({**code, **received})),
        "UserData": _assumed("no field is mandatory", _body(USER_DATA)),
        "Rejected": _object({"errors": errors}),
        "Denied": _object({"error": {**text, "const": "Access denied"}}),  # spec §7: singular, and a string
        "SystemError": _object({"errors": _object({"system": messages})}),
    }


def _json(name: str) -> Schema:
    return {"application/json": {"schema": _ref("schemas", name), "example": _BODIES[name]}}


_ECHO = {name: value for name, value in EXAMPLES["approve"].items() if name != "loanFinality"}
_DECIDED = {**_ECHO, "fiscalCode": EXAMPLE_CODE, "netAmount": 43_650, "zeroInterestRate": False}
_PAGE = "http://127.0.0.1:8080/apply/example#token=example"
# Example of a body, by schema
_BODIES: Mapping[str, Any] = {
    "Creation": EXAMPLES["create_request"],
    "Created": {"fiscalCode": EXAMPLE_CODE, "additionalDataNeeded": False},
    "Approval": EXAMPLES["approve"],
    "Approved": {**_DECIDED, "approved": True, **decision_texts(approved=True), "redirectUrl": _PAGE},
    "Refused": {**_DECIDED, "approved": False, **decision_texts(approved=False)},
    "Documents": EXAMPLES["upload_documents"],
    "DocumentsReceived": {"fiscalCode": EXAMPLE_CODE, "documents": "received"},
    "UserData": EXAMPLES["complete"],
    "Rejected": {"errors": {"amount": [AMOUNT]}},
    "Conflict": CONFLICT.body,
    "Denied": DENIED.body,
    "SystemError": SYSTEM_ERROR.body,
}

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


def _operation(name: str, summary: str, sent: str, results: Mapping[int, str], follows: str = "") -> Schema:
    """Return an operation; `follows` names the operation that takes the same customer after a success."""
    responses: dict[str, dict[str, Any]] = {
        str(status): {"description": _MEANINGS[status], "content": _json(result)}
        for status, result in {**results, 403: "Denied", 500: "SystemError"}.items()
    }
    if follows:
        path = {"shopId": "$request.path.shopId", "fiscalCode": "$response.body#/fiscalCode"}
        responses["201"]["links"] = {follows: {"operationId": follows, "parameters": path}}
    return {
        "summary": summary,
        "operationId": name,
        "requestBody": {"required": True, "content": _json(sent)},
        "responses": responses,
    }


def _paths() -> Mapping[str, Schema]:
    requests = "/api/shops/{shopId}/requests"
    shop, customer = _ref("parameters", "shopId"), _ref("parameters", "fiscalCode")
    created = {201: "Created", 400: "Rejected"}
    create = _operation("create_request", "Create a request", "Creation", created, "approve")
    decisions = {201: "Approved", 400: "Rejected", 409: "Conflict", 422: "Refused"}
    approve = _operation("approve", "Approve a request", "Approval", decisions, "upload_documents")
    received = {201: "DocumentsReceived", 400: "Rejected"}
    upload = _operation("upload_documents", "Upload documents", "Documents", received, "complete")
    completed = {200: "UserData", 400: "Rejected"}
    complete = _operation("complete", "Complete user data", "UserData", completed)
    not_shown = "the shapes of request and response, which spec §4.3 does not show"
    of_request = {"parameters": [shop, customer]}
    return {
        requests: {"parameters": [shop], "post": _assumed(not_shown, create)},
        f"{requests}/{{fiscalCode}}": {**of_request, "post": approve, "patch": complete},
        f"{requests}/{{fiscalCode}}/documents": {**of_request, "post": _assumed(not_shown, upload)},
    }


def _path_parameter(name: str, schema: Schema, example: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": schema, "example": example}


_ABOUT = "Schemas marked with x-assumed are not in the specification. Integers have no fraction. "
_ABOUT += "The document describes the default readings, also if the sandbox uses other readings. "
_ABOUT += "A sandbox with a fixed dialect accepts the spellings of that description only. "
_ABOUT += "The specification shows no version."


def document(base_url: str, shop_id: str) -> dict[str, Any]:
    """Return the OpenAPI document of a sandbox and its shop; assumptions are marked with `x-assumed`."""
    token = {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}  # spec §5
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sandbox of the loan request approval service",
            "version": "0",
            "description": _ABOUT,
        },
        "servers": [{"url": base_url}],
        "security": [{"shopToken": []}],
        "paths": _paths(),
        "components": {
            "parameters": {
                "shopId": _path_parameter("shopId", _ref("schemas", "Shop"), shop_id),
                "fiscalCode": _path_parameter("fiscalCode", _schema(FISCAL_CODE), EXAMPLE_CODE),
            },
            "schemas": _schemas(shop_id),
            "securitySchemes": {
                "shopToken": {**token, "description": "The token that the sandbox printed when it started."}
            },
        },
    }
