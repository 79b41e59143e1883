"""The OpenAPI document agrees with the specification and, by schemathesis, with the running sandbox."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from loanasync.sandbox import Sandbox
from loanasync.sandbox.openapi import document
from support.raw_shop import Raw
from support.specification import SPECIFICATION

if TYPE_CHECKING:
    from schemathesis import Case, HookContext
    from schemathesis.schemas import BaseSchema

REQUESTS = "/api/shops/{shopId}/requests"
REQUEST = REQUESTS + "/{fiscalCode}"
DOCUMENTS = REQUEST + "/documents"
OPERATIONS = [("POST", REQUESTS), ("POST", REQUEST), ("PATCH", REQUEST), ("POST", DOCUMENTS)]

CONFIG: dict[str, Any] = {
    "seed": 1,
    "auth": {"openapi": {"shopToken": {"api_key": "sandbox-token"}}},
    "generation": {"deterministic": True},
    "phases": {"stateful": {"enabled": False}},
    "checks": {
        # Stricter than the defaults of schemathesis: 403 and 500 do not count as accepted, and a conflict
        # or a refusal does not count as rejected.
        "positive_data_acceptance": {"expected-statuses": ["2xx"]},
        "negative_data_rejection": {"expected-statuses": [400, 403, 404, 405]},
    },
    "operations": [
        {
            "include-name": f"POST {REQUEST}",
            # spec §7: a refusal is a decision on valid data, in the shape of an approval
            "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", 422]}},
        }
    ],
}


@pytest.fixture(scope="module")
def schema() -> "BaseSchema":
    """The document for schemathesis, which is imported here since it takes a second."""
    from schemathesis import openapi  # noqa: PLC0415
    from schemathesis.config import SchemathesisConfig  # noqa: PLC0415

    loaded = openapi.from_dict(strictly_described(), config=SchemathesisConfig.from_dict(CONFIG))
    loaded.hook(filter_case)
    loaded.hook(map_case)
    return loaded


def filter_case(_: "HookContext", case: "Case[Any]") -> bool:
    """Exclude e-mail addresses with a tag, which would choose an outcome."""
    return not (isinstance(case.body, dict) and "+" in str(case.body.get("email")))


def map_case(_: "HookContext", case: "Case[Any]") -> "Case[Any]":
    """Exclude 12.0 and the like: an integer in JSON Schema, but not in the sandbox."""
    if isinstance(case.body, dict):
        case.body = {name: _whole(value) for name, value in case.body.items()}
    return case


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def names(paragraph: str) -> set[str]:
    """Return the field names in a table of the specification; a row may have two spellings."""
    return {name for row in SPECIFICATION[paragraph] for name in row.split("/")}


APPROVAL = names("2.1 request") | {"installments"}  # the other spelling, named in a note
DECISION = names("2.1 response")
USER_DATA = names("2.2")

URL = "http://127.0.0.1"


def described() -> dict[str, Any]:
    return document(URL, "sandbox-shop")


def strictly_described() -> dict[str, Any]:
    """Return the document with constraints that generators do not support: one spelling, and real days."""
    found = described()
    schemas = found["components"]["schemas"]
    for first, second in (("instalments", "installments"), ("streetNumber", "civicNumber")):
        only_first = {first: schemas["Approval"]["properties"].pop(first), second: False}
        no_second = {"required": [first], "properties": only_first}
        schemas["Approval"].setdefault("allOf", []).append({"oneOf": [no_second, {"required": [second]}]})
    months = {"pattern": "^(0[1-9]|1[0-2])/[0-9]{4}$"}
    schemas["Creation"]["properties"]["actualJobEndingDate"] = {
        "type": "string",
        "anyOf": [months, {"format": "date"}],
    }
    return found


def schema_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = described()["components"]["schemas"][name]
    return found


def validate(name: str, value: object) -> None:
    jsonschema_rs.validate({**described(), "$ref": f"#/components/schemas/{name}"}, value)


def fields(within: object) -> set[str]:
    """Return the names of all properties, at any depth."""
    if isinstance(within, list):
        return set().union(*map(fields, within))
    if not isinstance(within, dict):
        return set()
    return set(within.get("properties", {})).union(*map(fields, within.values()))


def test_document_is_valid(schema: "BaseSchema") -> None:
    schema.validate()  # against OpenAPI 3.1
    for each in described()["components"]["schemas"].values():
        jsonschema_rs.meta.validate(each)


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("Approval", APPROVAL),
        ("Approved", DECISION),
        ("Refused", DECISION - {"redirectUrl"}),
        ("UserData", USER_DATA),
    ],
)
def test_document_has_the_fields_of_the_specification(name: str, table: set[str]) -> None:
    assert fields(schema_of(name)) == table


def test_examples_are_valid() -> None:
    def contents(within: object) -> Iterator[dict[str, Any]]:
        if isinstance(within, dict):
            yield from ([within["application/json"]] if "application/json" in within else [])
            for each in within.values():
                yield from contents(each)

    found = list(contents(described()["paths"]))
    assert len(found) == len(OPERATIONS) + 18  # a body of each request and response
    for content in found:
        validate(content["schema"]["$ref"].rpartition("/")[2], content["example"])


def test_links_lead_through_all_operations() -> None:
    operations = {
        operation["operationId"]: operation
        for path in described()["paths"].values()
        for method, operation in path.items()
        if method != "parameters"
    }
    followed, links = ["create_request"], True
    while links:
        links = operations[followed[-1]]["responses"].get("201", {}).get("links", {})
        for name, link in links.items():
            assert link["parameters"]["fiscalCode"] == "$response.body#/fiscalCode"
            followed.append(name)
    assert followed == ["create_request", "approve", "upload_documents", "complete"]


def test_document_has_no_construct_that_generators_lack() -> None:
    """They fail on boolean schemas, constants that are objects, and objects that are also a union."""

    def check(schema: object) -> None:
        assert isinstance(schema, dict), "a boolean schema"
        assert not isinstance(schema.get("const"), (dict, list))
        assert schema.get("type") != "object" or not {"oneOf", "anyOf", "allOf"} & schema.keys()
        inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
        inner += [schema[name] for name in ("items", "additionalProperties") if name in schema]
        for each in inner:
            check(each)

    for each in described()["components"]["schemas"].values():
        check(each)


@pytest.fixture(scope="module")
def running() -> Iterator[Sandbox]:
    """A sandbox in a separate thread, because schemathesis is a blocking client."""
    with Sandbox.in_thread() as sandbox:
        yield sandbox


def remember(sandbox: Sandbox, code: str) -> None:
    """Reset the sandbox to one customer, created and with documents."""
    customers = sandbox._engine.customers
    customers.restore({})
    customer = customers.of(code)
    customer.created = customer.documents = True


def test_document_has_exactly_the_served_paths(running: Sandbox) -> None:
    assert running._runner is not None
    app = running._runner.app
    served = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource}
    documented = {
        (method.upper(), path)
        for path, item in described()["paths"].items()
        for method in item.keys() - {"parameters"}
    }
    assert documented == {each for each in served if each[1].startswith("/api/")} == set(OPERATIONS)


def test_assumptions_are_marked_and_described() -> None:
    def check(within: object) -> int:
        if isinstance(within, list):
            return sum(map(check, within))
        if not isinstance(within, dict):
            return 0
        if "x-assumed" in within:
            assert within["description"].startswith("Assumed: ")
        return ("x-assumed" in within) + sum(map(check, within.values()))

    assert check(described()) > len(schema_of("Approval")["properties"])
    for path in (REQUESTS, DOCUMENTS):  # spec §4.3; §7 shows the errors
        operation = described()["paths"][path]["post"]
        assert operation["x-assumed"] is True
        for shape in (operation["requestBody"], operation["responses"]["201"]):
            reference = shape["content"]["application/json"]["schema"]["$ref"]
            assert schema_of(reference.rpartition("/")[2])["x-assumed"] is True


@pytest.mark.parametrize(
    ("tag", "status", "name"),
    [
        ("refused", 422, "Refused"),
        ("conflict", 409, "Conflict"),
        ("500x1", 500, "SystemError"),
        ("500after", 500, "SystemError"),
        *((tag, 400, "Rejected") for tag in ("nouser", "already", "noshop", "unheard")),
    ],
)
async def test_responses_to_tags_match_the_document(raw: Raw, tag: str, status: int, name: str) -> None:
    await raw.create()
    found, response = await raw.approve(email=f"anna+{tag}@example.com")
    assert found == status
    validate(name, response)


@pytest.mark.parametrize("examples", [5, pytest.param(50, marks=pytest.mark.scheduled)])
def test_schemathesis_finds_no_difference_from_the_document(
    schema: "BaseSchema", running: Sandbox, examples: int
) -> None:
    """Send requests at each boundary of the document, and random ones, valid and not."""
    from schemathesis import engine, hook, hooks  # noqa: PLC0415  (see the fixture `schema`)

    sent: Counter[tuple[str, str]] = Counter()

    def before_call(_: "HookContext", case: "Case[Any]", __: dict[str, Any]) -> None:
        sent[case.method, case.path] += 1
        running.reset()  # a decided request would be rejected even if the data is valid
        code = str(case.path_parameters.get("fiscalCode"))
        if re.fullmatch("[A-Z0-9]{16}", code):  # spec §4.1, §4.2: created, and with documents
            remember(running, code)

    hook(before_call)
    schema.config.update(base_url=running.base_url)
    schema.config.generation.update(max_examples=examples)
    try:
        events = list(engine.from_schema(schema).execute())
    finally:
        hooks.unregister_all()
    finished = [event for event in events if isinstance(event, engine.events.ScenarioFinished)]
    checks = [check for event in finished for each in event.recorder.checks.values() for check in each]
    assert [check.failure_info.failure for check in checks if check.failure_info] == []
    assert {event.status for event in finished} <= {engine.Status.SUCCESS, engine.Status.SKIP}
    errors = engine.events.NonFatalError | engine.events.FatalError
    assert [event for event in events if isinstance(event, errors)] == []
    assert min(sent[operation] for operation in OPERATIONS) > 10
