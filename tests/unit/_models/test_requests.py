"""The models: frozen values that survive copies, whose `repr` shows no personal value."""

import copy
import json
import pickle
import re
import traceback
from collections import UserDict
from typing import Any

import attrs
import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from loanasync import (
    AdditionalData,
    ApprovalRequest,
    Approved,
    Dialect,
    Limits,
    Meta,
    Problem,
    RawResponse,
    Refused,
    RetryPolicy,
    Timeout,
    UserData,
)
from loanasync._models.masking import Body, Items, mask, masked_unless
from support.builders import additional_data, approval_request, user_data

META = Meta(status=201, attempts=1, elapsed=0.5)
MODELS = [approval_request(extra={"a": [1]}, additional=additional_data()), additional_data(), user_data()]
DECISIONS: list[Approved | Refused] = [
    Approved(email="anna@example.com", redirect_url="https://x/#t", meta=META),
    Refused(meta=META),
]


VALUES: list[Any] = [
    *(META, Problem("email", "email", "is taken", "email.taken", {"least": 3}, "call us")),
    *(RawResponse(201, b"{"), Dialect.civic_number(), Limits(mobile_phone="[0-9]+")),
    *(RetryPolicy(attempts=2), Timeout(total=9)),
]


def copies(value: Any) -> list[Any]:
    return [copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))]  # noqa: S301  (our own bytes)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_value_of_any_other_type_survives_copies(value: Any) -> None:
    for each in copies(value):
        assert (each, attrs.astuple(each)) == (value, attrs.astuple(value))


@pytest.mark.parametrize("model", [*MODELS, *DECISIONS], ids=lambda model: type(model).__name__)
def test_a_model_is_frozen_and_survives_copies(model: Any) -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        model.amount = 1
    assert copies(model) == [model] * 3
    assert len({model, *copies(model)}) == 1
    assert hasattr(model, "__dict__") == isinstance(model, Approved | Refused)


@pytest.mark.parametrize("model", [*MODELS, *DECISIONS], ids=lambda model: type(model).__name__)
def test_repr_masks_personal_values(model: Any) -> None:
    shown = repr(model) + str(model)
    texts = {value for value in attrs.asdict(model).values() if isinstance(value, str)} - {"ecommerce_shop"}
    assert not [text for text in texts if text in shown]
    if isinstance(model, ApprovalRequest):
        assert shown.startswith("ApprovalRequest(amount=45000, instalments=12, ")
    if isinstance(model, Approved):
        assert "redirect_url=***" in shown


def test_repr_masks_values_of_other_types() -> None:
    show = masked_unless(bool)
    assert (show(True), show("zzq"), show(""), show(None)) == ("True", "***", "***", "None")  # noqa: FBT003  (a value)
    assert (mask("zzq"), mask(None)) == ("***", "None")


@pytest.mark.parametrize("changes", [{"city": None}, {"fiscal_code": "TSTXYZ00A00A000A"}])
def test_model_missing_or_unknown_field_is_a_type_error(changes: dict[str, Any]) -> None:
    members = {**attrs.asdict(approval_request()), **changes}
    values = {name: value for name, value in members.items() if value is not None}
    with pytest.raises(TypeError, match=f"argument:? '{next(iter(changes))}'") as caught:
        ApprovalRequest(**values)
    assert len([*traceback.walk_tb(caught.value.__traceback__)]) == 1, "no frame of the model"


def test_extra_members_are_a_read_only_copy() -> None:
    members = {"new": 1}
    request = approval_request(extra=members)
    members["new"] = 2
    assert dict(request.extra) == {"new": 1}
    with pytest.raises(TypeError):
        request.extra["new"] = 3  # type: ignore[index]

    class Broken(UserDict[str, Any]):
        def __iter__(self) -> Any:
            raise TypeError("raised by the mapping")

    with pytest.raises(TypeError, match="raised by the mapping"):
        approval_request(extra=Broken(a=1))


@pytest.mark.parametrize("decision", DECISIONS, ids=["approved", "refused"])
def test_decision_has_a_fixed_result_and_no_truth_value(decision: Approved | Refused) -> None:
    advice = (
        "a decision has no truth value; use decision.approved, "
        "or match with case Approved() and case Refused()"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(advice)}$"):
        bool(decision)
    assert decision.approved is isinstance(decision, Approved)
    with pytest.raises(TypeError):
        attrs.evolve(decision, approved=not decision.approved)  # type: ignore[call-arg]


def test_decision_pairs_are_masked_like_its_repr() -> None:
    decision = Approved(email="anna@example.com", amount=45_000, raw=Body({"email": "anna@"}), meta=META)
    pairs = dict(decision)
    assert list(pairs) == [each.name for each in attrs.fields(Approved)]
    assert (pairs["email"], pairs["iban"], pairs["amount"]) == ("***", None, 45_000)
    assert (pairs["raw"], pairs["meta"], pairs["approved"]) == ("<Body of 1 member>", META, True)
    assert "anna" not in str(pairs)


@pytest.mark.parametrize("model", [Approved, Refused, RawResponse])
def test_pydantic_is_refused_a_type_with_personal_data(model: Any) -> None:
    with pytest.raises(TypeError, match=f"^{model.__name__} contains personal data, so .* own with the"):
        model.__get_pydantic_core_schema__(model, None)


@pytest.mark.parametrize("model", [AdditionalData, ApprovalRequest, UserData])
def test_request_model_is_a_pydantic_type_with_its_schema(model: Any) -> None:
    adapter = TypeAdapter(model)
    assert adapter.json_schema()["title"] == model.__name__
    with pytest.raises(ValidationError, match="unknown_field"):
        adapter.validate_python({"zzz": 1})


CHANGES: list[tuple[str, str, tuple[Any, ...]]] = [
    ("raw", "__setitem__", ("a", 1)),
    *(("object", name, ()) for name in ("clear", "popitem")),
    *(("object", name, ("b",)) for name in ("__delitem__", "pop")),
    *(("object", name, ("b", 1)) for name in ("__setitem__", "setdefault")),
    *(("object", name, ({"b": 1},)) for name in ("__ior__", "update")),
    *(("array", name, ()) for name in ("clear", "pop", "reverse", "sort")),
    *(("array", name, (1,)) for name in ("__delitem__", "__imul__", "append", "remove")),
    *(("array", name, (0, 1)) for name in ("__setitem__", "insert")),
    *(("array", name, ([1],)) for name in ("__iadd__", "extend")),
    ("object in an array", "clear", ()),
]


@pytest.mark.parametrize(("part", "change", "arguments"), CHANGES)
def test_raw_is_read_only_at_every_depth(part: str, change: str, arguments: tuple[Any, ...]) -> None:
    members: dict[str, Any] = {"a": {"b": [{"c": 1}, 2]}}
    for given in (members, Body(members)):
        raw: Any = Refused(meta=META, raw=given).raw
        parts = {
            "raw": raw,
            "object": raw["a"],
            "array": raw["a"]["b"],
            "object in an array": raw["a"]["b"][0],
        }
        with pytest.raises((AttributeError, TypeError), match=r"read-only|__setitem__"):
            getattr(parts[part], change)(*arguments)
        assert raw == members == json.loads(json.dumps(dict(raw)))
        assert copies(raw["a"]) == [raw["a"]] * 3


def test_body_and_items_are_masked_and_compared() -> None:
    assert [repr(Body()), repr(Body({"a": 1})), repr(Body({"a": 1, "b": 2}))] == [
        "<Body of 0 members>",
        "<Body of 1 member>",
        "<Body of 2 members>",
    ]
    assert [repr(Items()), repr(Items([1])), repr(Items([1, 2]))] == [
        "<Items of 0 values>",
        "<Items of 1 value>",
        "<Items of 2 values>",
    ]
    assert Body({"a": 1}) == {"a": 1} == Body({"a": 1})
    values: list[Any] = ["anna@example.com", {"a": 1}, 5]
    received = values.copy()
    items: Any = Items(received)
    received.append(6)
    assert (items[0], items[-1], list(items)) == ("anna@example.com", 5, values)
    assert (type(items[1:]), items[1:]) == (Items, [{"a": 1}, 5])
    assert [items == each for each in (values, tuple(values), *copies(items))] == [True] * 5
    assert [items != each for each in (received, Items(received), {"a": 1}, "anna@example.com")] == [True] * 4
    with pytest.raises(TypeError):
        items[0] = 1
    with pytest.raises(TypeError, match="read-only; change a copy"):
        items[1]["a"] = 2
    with pytest.raises(TypeError):
        hash(items)


class Exact:
    def __index__(self) -> int:
        return 12


class Unusable:
    def __index__(self) -> int:
        raise ValueError


UNUSABLE = Unusable()


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.int64(12), 12), (np.int32(12), 12), (np.uint8(12), 12), (Exact(), 12), (12, 12), (True, True),
        (np.bool_(1), np.bool_(1)), (np.float64(12), np.float64(12)), (12.0, 12.0),
        ("12", "12"), (None, None), (UNUSABLE, UNUSABLE),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_integer_fields_convert_exact_integers_only(given: Any, kept: Any) -> None:
    request = approval_request(
        amount=given, instalments=given, payment_day_of_month=given, additional=additional_data(salary=given)
    )
    data = user_data(payment_day_of_month=given)
    found = [request.amount, request.instalments, request.payment_day_of_month, data.payment_day_of_month]
    assert request.additional is not None
    for value in [*found, request.additional.salary]:
        assert (type(value), value) == (type(kept), kept)
