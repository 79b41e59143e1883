"""Printers and loggers that know attrs classes show no personal data: they read the `repr` of each field."""

import importlib
import io
import pprint
from collections.abc import Callable, Mapping
from enum import EnumType
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import attrs
import pytest
import rich.pretty
import structlog
from rich.console import Console
from rich.traceback import Traceback

from loanasync import (
    AdditionalData,
    ApprovalRequest,
    Approved,
    LoanError,
    Meta,
    Problem,
    RawResponse,
    Refused,
    RejectedError,
    UserData,
)
from loanasync._models.decisions import Problems
from loanasync._models.masking import Body
from loanasync.ledger import Entry, Subject
from loanasync.testing.sent import Headers
from support.pages import PACKAGES
from support.privacy.plants import CODE, ECHO, NOT_PERSONAL, PLANTS, TOKEN, found_in, planted, values_of
from support.privacy.plants import MODELS as PERSONAL_MODELS

# Texts, by field, that are not personal. A field that is not listed here is planted.
SHOWN = {
    *NOT_PERSONAL,
    *("operation", "method", "template", "route", "fault", "findings", "reason", "reasons", "cause_type"),
    *("key", "entry", "trace_id", "state", "stated", "ledger", "file", "setting", "hint", "params"),
    *(
        "note",
        "source",
        "order_id",
        "id",
        "task",
        "task_id",
        "errors",
        "token",
        "payload",
        "customer",
        "order",
    ),
    "history",
}
# Settings, and messages of this package.
IMPERSONAL = {"Limits", "Meta", "Dialect", "ConfigurationError", "Finding", "InputProblem"}

META = Meta(status=400, attempts=1, elapsed=0.1)
ERRORS = Problems([Problem("Zzqcityvalue", "Zzqcityvalue", f"{CODE} {TOKEN}", "rejected")])
VALUES: dict[object, object] = {
    **{kind: kind(raw=Body(ECHO), meta=META, **values_of(kind)) for kind in (Approved, Refused)},
    **{model: planted(model) for model in (ApprovalRequest, AdditionalData, UserData)},
    Meta: META,
    LoanError: RejectedError("approve", ERRORS, META),
    RawResponse: RawResponse(201, CODE.encode()),
    Problems: ERRORS,
    str: f"{CODE} {TOKEN}",
    bytes: CODE.encode(),
    Mapping: Body(ECHO),
    tuple: (CODE.encode(),),
    object: CODE,
    bool: True,
    int: 1,
    float: 1.0,
}
IMPERSONAL_VALUES: dict[object, object] = {str: "shown", object: "shown", tuple: (), Mapping: {}}
BY_NAME = {
    **{plant.field.rpartition(".")[2]: plant.value for plant in PLANTS},
    "headers": Headers({"X-Auth-Token": TOKEN}),
    "problems": ERRORS,
    "code": "rejected",
}


def value_of(each: "attrs.Attribute[Any]") -> object:
    """Return a planted value for a field, according to its name, or to the first of its types."""
    kind: Any = each.type
    if get_origin(kind) in (Union, UnionType):
        kind = get_args(kind)[0]
    origin = get_origin(kind) or kind
    if origin is Literal:
        return get_args(kind)[0]
    if each.name in SHOWN and origin in IMPERSONAL_VALUES:
        return IMPERSONAL_VALUES[origin]
    if each.name in BY_NAME:
        return BY_NAME[each.name]
    return next(iter(origin)) if isinstance(origin, EnumType) else VALUES.get(origin)


def instance(model: type) -> object:
    """Return an instance with a planted value in each field, also where a converter would refuse it."""
    made: object = object.__new__(model) if not issubclass(model, Exception) else Exception.__new__(model)
    for each in attrs.fields(model):
        is_digest = each.name == "order_token" and model in {Entry, Subject}
        object.__setattr__(made, each.name, "shown" if is_digest else value_of(each))
    return made


def public_models() -> list[type]:
    public = [
        vars(module)[name] for module in map(importlib.import_module, PACKAGES) for name in module.__all__
    ]
    models = [each for each in public if isinstance(each, type) and attrs.has(each)]
    return [each for each in dict.fromkeys(models) if each.__name__ not in IMPERSONAL]


def with_rich(value: object) -> str:
    shown = io.StringIO()
    Console(file=shown, width=10_000).print(value, [value])
    return shown.getvalue()


def failure(local: object) -> Exception:
    """Return an exception whose traceback has a frame with this local variable."""
    try:
        getattr(local, "no such attribute")
    except AttributeError as error:
        return error
    raise AssertionError


def with_traceback_of_rich(value: object) -> str:
    error = failure(value)
    shown = io.StringIO()
    Console(file=shown, width=10_000).print(
        Traceback.from_exception(
            type(error), error, error.__traceback__, show_locals=True, locals_max_string=10_000
        )
    )
    return shown.getvalue()


def with_structlog(value: object) -> str:
    formatter = structlog.dev.RichTracebackFormatter(width=10_000, locals_max_string=10_000)
    render = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=formatter)
    event = {"event": "decided", "value": value, "exc_info": failure(value)}
    return str(render(None, "error", event))


def with_json_of_structlog(value: object) -> str:
    exceptions = structlog.tracebacks.ExceptionDictTransformer(show_locals=True, locals_max_string=10_000)
    event = structlog.processors.ExceptionRenderer(exceptions)(
        None, "error", {"value": value, "exc_info": failure(value)}
    )
    return str(structlog.processors.JSONRenderer(default=repr)(None, "error", event))


TOOLS: dict[str, Callable[[object], str]] = {
    "repr": repr,
    "pprint": pprint.pformat,
    "rich.pretty": rich.pretty.pretty_repr,
    "rich": with_rich,
    "rich.traceback": with_traceback_of_rich,
    "structlog": with_structlog,
    "structlog.tracebacks": with_json_of_structlog,
}


@pytest.mark.parametrize("model", public_models())
def test_public_model_is_shown_without_personal_data(model: type) -> None:
    for name, show in TOOLS.items():
        shown = show(instance(model))
        assert model.__name__ in shown, name
        assert found_in(shown) == set(), name


@pytest.mark.parametrize("model", PERSONAL_MODELS)
def test_each_personal_field_is_masked(model: type) -> None:
    """A mask in `__repr__` of the class would not be seen by tools that know attrs."""
    personal = [each for each in attrs.fields(model) if each.name not in NOT_PERSONAL]
    assert [each.name for each in personal if each.repr is True] == []


def test_planted_values_are_found_if_a_field_is_not_masked() -> None:
    bare = attrs.make_class("Bare", {each.name: attrs.field() for each in attrs.fields(UserData)})
    values = {each.name: value_of(each) for each in attrs.fields(UserData)}
    for tool in TOOLS.values():
        assert "UserData.document_code" in found_in(tool(bare(**values)))
