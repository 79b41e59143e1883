"""Tests of planted values and of the scanner: all personal fields, all forms, all kinds of output."""

import base64
import json
import logging
import pickle
import warnings
from collections.abc import Callable
from datetime import date
from typing import Any
from urllib.parse import quote

import attrs
import pytest

import loanasync
from loanasync import (
    AdditionalData,
    ApprovalRequest,
    Approved,
    Meta,
    Problem,
    Refused,
    Telemetry,
    UserData,
    testing,
)
from loanasync._models.masking import Body
from loanasync.errors import RejectedError
from loanasync.sandbox import Sandbox
from support.privacy.plants import CODE, MODELS, NOT_PERSONAL, PLANTS, found_in, values_of
from support.privacy.scanner import OUTPUT_KINDS, Captured, OutputKind, capturing, leaks, text_of

META = Meta(status=400, attempts=1, elapsed=0.1)
FIELDS = [(model, each.name) for model in MODELS for each in attrs.fields(model)]
BOOLEANS = {"politically_exposed", "us_person", "marketing"}  # true and false cannot be unique
CONTAINERS = {"additional", "raw"}  # their members have planted values


@pytest.mark.parametrize(("model", "name"), FIELDS, ids=lambda each: getattr(each, "__name__", each))
def test_field_is_planted_unless_it_is_not_personal(model: type, name: str) -> None:
    exempt = {*NOT_PERSONAL, *BOOLEANS, *CONTAINERS}
    assert (f"{model.__name__}.{name}" in {plant.field for plant in PLANTS}) is (name not in exempt)


def test_fields_that_are_not_personal_have_a_reason() -> None:
    assert NOT_PERSONAL.keys() <= {name for _, name in FIELDS}
    assert all(NOT_PERSONAL.values())
    assert len(NOT_PERSONAL) == 9


def example(model: type) -> Any:
    made = {
        ApprovalRequest: testing.approval_request(additional=testing.additional_data(), extra={"a": 1}),
        AdditionalData: testing.additional_data(),
        UserData: testing.user_data(extra={"a": 1}),
        Approved: Approved(meta=META, raw=Body({"a": 1})),
        Refused: Refused(meta=META, raw=Body({"a": 1})),
    }
    return made[model]


def others(model: type, name: str) -> list[Any]:
    if name in BOOLEANS:
        return [True, False]
    if name == "additional":
        return [testing.additional_data(salary=1), testing.additional_data(children="5+")]
    if name in ("raw", "extra"):
        return [Body({"b": CODE}), Body({"c": None})]
    return [values_of(model)[name], "zzq", date(1977, 1, 1), [CODE]]


@pytest.mark.parametrize(("model", "name"), FIELDS, ids=lambda each: getattr(each, "__name__", each))
def test_printed_model_does_not_depend_on_personal_values(model: type, name: str) -> None:
    if name in NOT_PERSONAL:
        return
    printed = {text_of(attrs.evolve(example(model), **{name: value})) for value in others(model, name)}
    assert len(printed) == 1


@pytest.mark.parametrize("kind", [ApprovalRequest, UserData])
@pytest.mark.parametrize("name", ["extra", "additional"])
def test_value_in_place_of_a_block_is_masked(kind: type, name: str) -> None:
    if name in attrs.fields_dict(kind):
        assert CODE not in repr(attrs.evolve(example(kind), **{name: CODE}))


def public_classes() -> set[type]:
    names = [(loanasync, name) for name in loanasync.__all__] + [(testing, name) for name in testing.__all__]
    found = {getattr(module, name) for module, name in names} | {Sandbox}
    return {each for each in found if isinstance(each, type)}


def test_notebook_output_of_public_classes_is_searched() -> None:
    showing = {each for each in public_classes() if hasattr(each, "_repr_html_")}
    assert Sandbox in showing  # it shows its address only
    others = showing - {Sandbox}
    assert others
    # Covered by the tests of errors, which show their problems in the same table.
    assert all(issubclass(each, loanasync.LoanError | loanasync.Problems) for each in others)


@pytest.mark.parametrize("model", MODELS)
def test_pickle_of_a_model_has_all_values(model: type) -> None:
    """Another process or a cache needs the whole value. Only errors contain no personal data."""
    values = values_of(model)
    whole = attrs.evolve(example(model), **values)
    assert pickle.loads(pickle.dumps(whole)) == whole  # noqa: S301  (our own bytes)
    assert found_in(pickle.dumps(whole).decode("latin-1"))


FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "upper case": str.upper,
    "lower case": str.lower,
    "percent": lambda text: quote(text, safe=""),
    "percent, every letter": lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
    "JSON": json.dumps,
    "JSON, every letter": lambda text: "".join(f"\\u{ord(letter):04X}" for letter in text),
    "repr of bytes": lambda text: repr(text.encode()),
    "hex": lambda text: text.encode().hex(),
    "pickle": lambda text: pickle.dumps([text], 0).decode("latin-1"),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64, one later": lambda text: base64.b64encode(b"x" + text.encode()).decode(),
    "base64, two later": lambda text: base64.b64encode(b"xx" + text.encode()).decode(),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(f"{text}?".encode()).decode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_scanner_finds_a_value_in_every_form(form: str) -> None:
    for plant in PLANTS:
        text = str(plant.value) if not isinstance(plant.value, dict) else plant.marks[0]
        if form.startswith("base64") and len(text) < 9:
            continue  # too short to be recognised
        known = {each.field for each in PLANTS if plant.marks[0] in each.marks}
        assert found_in(f"before {FORMS[form](text)} after") & known, (plant, form)


def leaking_error() -> RejectedError:
    error = RejectedError("approve", (Problem("city", "city", f"not {CODE}"),), META)
    error.add_note(CODE)
    try:
        raise error
    except RejectedError:
        return error


def error_with_our_frame() -> BaseException:
    try:
        Telemetry(propagate=CODE)  # type: ignore[arg-type]
    except loanasync.ConfigurationError as error:
        return error
    raise AssertionError


def leak_into(output: OutputKind, captured: Captured) -> None:
    name = output.name
    if "local variables" in name:
        captured.add(error_with_our_frame())
    elif "error" in name:
        captured.add(leaking_error())
    elif "printed model" in name:
        captured.add([CODE])
    elif "loggers" in name:
        logging.getLogger("aiohttp.client").debug("to %s", CODE)
    elif "spans" in name:
        captured.providers["telemetry"].tracer_provider.get_tracer("t").start_span(CODE).end()
    elif "metrics" in name:
        captured.providers["telemetry"].meter_provider.get_meter("m").create_counter("c").add(1, {"a": CODE})
    elif "warnings" in name:
        warnings.warn(CODE, ResourceWarning, stacklevel=1)
    else:
        for texts in (captured.journal, captured.pages, captured.output):
            texts.append(CODE)


@pytest.mark.parametrize("output", OUTPUT_KINDS, ids=lambda output: output.name)
def test_scanner_searches_every_kind_of_output(output: OutputKind) -> None:
    with capturing() as captured:
        leak_into(output, captured)
    assert any(leak.startswith(f"{output.name}: ") for leak in leaks(captured))
    assert found_in("\n".join(output.texts(captured))) >= {"the fiscal code"}
