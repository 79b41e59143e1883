import copy
import inspect
import json
import pickle
import re
import traceback
from collections import UserDict
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest

from loanasync import (
    AdditionalData,
    ApprovalRequest,
    Approved,
    Citizenship,
    Meta,
    Problem,
    RawResponse,
    Refused,
)
from loanasync._display.masking import Body, Items, mask, masked_unless
from loanasync._models import wire_names
from support.builders import additional_data, approval_request, user_data

META = Meta(status=201, attempts=1, elapsed=0.5)
MODELS = [approval_request(extra={"a": [1]}, additional=additional_data()), additional_data(), user_data()]
DECISIONS: list[Approved | Refused] = [
    Approved(email="anna@example.com", redirect_url="https://x/#t", meta=META),
    Refused(meta=META),
]


@pytest.mark.parametrize("model", [*MODELS, *DECISIONS], ids=lambda model: type(model).__name__)
def test_a_model_is_frozen_and_survives_copies(model: Any) -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        model.amount = 1
    assert pickle.loads(pickle.dumps(model)) == model  # noqa: S301  (our own bytes)
    assert copy.deepcopy(model) == copy.copy(model) == model
    assert len({model, copy.copy(model)}) == 1


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_request_models_have_slots(model: Any) -> None:
    assert not hasattr(model, "__dict__")


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_repr_masks_personal_values(model: Any) -> None:
    shown = repr(model) + str(model)
    texts = [value for value in attrs.asdict(model).values() if isinstance(value, str)]
    assert texts
    public = {"ecommerce_shop"}
    assert not [text for text in texts if text in shown and text not in public]


def test_repr_shows_amounts_and_counts() -> None:
    assert repr(approval_request()).startswith("ApprovalRequest(amount=45000, instalments=12, ")
    shown = repr(DECISIONS[0])
    assert "anna@" not in shown
    assert "https" not in shown
    assert "redirect_url=***" in shown


def test_model_reraises_a_type_error_of_a_custom_mapping() -> None:
    class Broken(UserDict[str, Any]):
        def __iter__(self) -> Any:
            raise TypeError("raised by the mapping")

    with pytest.raises(TypeError, match="raised by the mapping"):
        approval_request(extra=Broken(a=1))


def test_model_fields_are_keyword_only() -> None:
    with pytest.raises(TypeError):
        ApprovalRequest(45_000)  # type: ignore[call-arg]
    for decision in (Approved, Refused):
        assert all(each.kw_only for each in attrs.fields(decision))


@pytest.mark.parametrize("changes", [{"city": None}, {"fiscal_code": "TSTXYZ00A00A000A"}])
def test_model_missing_or_unknown_field_is_a_type_error(changes: dict[str, Any]) -> None:
    members = {**attrs.asdict(approval_request()), **changes}
    values = {name: value for name, value in members.items() if value is not None}
    with pytest.raises(TypeError, match=f"argument:? '{next(iter(changes))}'") as caught:
        ApprovalRequest(**values)
    assert len([*traceback.walk_tb(caught.value.__traceback__)]) == 1, "no frame of the model"


def test_additional_data_fields_are_optional() -> None:
    assert set(attrs.asdict(AdditionalData()).values()) == {None}
    assert AdditionalData(salary=1).salary == 1
    with pytest.raises(TypeError, match="unexpected keyword argument 'residense'"):
        AdditionalData(residense="rent")  # type: ignore[call-arg]


def test_signatures_show_the_fields() -> None:
    parameters = inspect.signature(ApprovalRequest).parameters
    assert list(parameters)[:3] == ["amount", "instalments", "loan_finality"]
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters.values())


def test_extra_members_are_a_read_only_copy() -> None:
    members = {"new": 1}
    request = approval_request(extra=members)
    members["new"] = 2
    assert dict(request.extra) == {"new": 1}
    with pytest.raises(TypeError):
        request.extra["new"] = 3  # type: ignore[index]


@pytest.mark.parametrize("decision", DECISIONS, ids=["approved", "refused"])
def test_decision_has_no_truth_value(decision: Approved | Refused) -> None:
    advice = (
        "a decision has no truth value; use decision.approved, "
        "or match with case Approved() and case Refused()"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(advice)}$"):
        bool(decision)


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


def test_decision_approved_is_fixed_by_its_class() -> None:
    assert [decision.approved for decision in DECISIONS] == [True, False]
    with pytest.raises(TypeError):
        Refused(approved=True, meta=META)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Approved(approved=False, meta=META)  # type: ignore[call-arg]


def test_enumerations_are_their_wire_values() -> None:
    assert Citizenship("outside_eu") is Citizenship.OUTSIDE_EU
    assert str(Citizenship.EU) == "eu"


def test_body_repr_counts_its_members() -> None:
    assert [repr(Body()), repr(Body({"a": 1})), repr(Body({"a": 1, "b": 2}))] == [
        "<Body of 0 members>",
        "<Body of 1 member>",
        "<Body of 2 members>",
    ]
    assert Body({"a": 1}) == {"a": 1}
    assert "a" in Body({"a": 1})


CHANGES: list[Callable[[Any], object]] = [
    lambda raw: raw.__setitem__("a", 1),
    lambda raw: raw["a"].__setitem__("b", 1),
    lambda raw: raw["a"].update(b=1),
    lambda raw: raw["a"].__ior__({"b": 1}),
    lambda raw: raw["a"]["b"].append(1),
    lambda raw: raw["a"]["b"].__setitem__(0, 1),
    lambda raw: raw["a"]["b"].__iadd__([1]),
    lambda raw: raw["a"]["b"][0].clear(),
]


@pytest.mark.parametrize("change", CHANGES)
def test_raw_is_read_only_at_every_depth(change: Callable[[Any], object]) -> None:
    members: dict[str, Any] = {"a": {"b": [{"c": 1}, 2]}}
    for given in (members, Body(members)):
        raw = Refused(meta=META, raw=given).raw
        with pytest.raises((AttributeError, TypeError)):
            change(raw)
        assert raw == members == json.loads(json.dumps(dict(raw)))
        assert pickle.loads(pickle.dumps(raw["a"])) == copy.deepcopy(raw["a"])  # noqa: S301  (our own bytes)


def test_items_are_read_only_and_masked() -> None:
    values: list[Any] = ["anna@example.com", {"a": 1}, 5]
    received = values.copy()
    items: Any = Items(received)
    received.append(6)
    assert [repr(Items()), repr(Items([1])), repr(items)] == [
        "<Items of 0 values>",
        "<Items of 1 value>",
        "<Items of 3 values>",
    ]
    assert (items[0], items[-1], list(items)) == ("anna@example.com", 5, values)
    assert (type(items[1:]), items[1:]) == (Items, [{"a": 1}, 5])
    for same in (values, tuple(values), Items(values)):
        assert items == same
    for another in (received, Items(received), {"a": 1}, "anna@example.com"):
        assert items != another
    with pytest.raises(TypeError):
        items[0] = 1
    with pytest.raises(TypeError, match="read-only; change a copy"):
        items[1]["a"] = 2
    with pytest.raises(TypeError):
        hash(items)
    for other in (copy.copy(items), copy.deepcopy(items), pickle.loads(pickle.dumps(items))):  # noqa: S301  (our own bytes)
        assert (type(other), other) == (Items, items)


def test_mask_of_none_is_none() -> None:
    assert (mask(None), mask("x"), mask("")) == ("None", "***", "***")


def test_a_problem_prints_as_a_line() -> None:
    assert str(Problem("amount", "amount", "is required")) == "amount: is required"
    assert str(Problem("", "", "Access denied")) == "Access denied"


def test_repr_masks_values_of_other_types() -> None:
    show = masked_unless(bool)
    assert (show(True), show("zzq"), show(None)) == ("True", mask("zzq"), mask(None))  # noqa: FBT003  (a value)
    assert mask("zzq") != mask(None), "whether there is one may be seen"


def test_wire_names_field_without_metadata_raises_type_error() -> None:
    """Without this error, a new field would be accepted but never sent."""

    @attrs.frozen
    class Model:
        city: str = attrs.field(metadata={"wire": "city"})
        inner: str = attrs.field(metadata={"wire": None})

    assert wire_names(Model) == {"city": "city"}

    @attrs.frozen
    class Extended(Model):
        seller_code: str = ""

    with pytest.raises(TypeError, match=r"Extended\.seller_code"):
        wire_names(Extended)


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
        amount=given,
        instalments=given,
        payment_day_of_month=given,
        additional=additional_data(salary=given),
    )
    data = user_data(payment_day_of_month=given)
    found = [request.amount, request.instalments, request.payment_day_of_month, data.payment_day_of_month]
    assert request.additional is not None
    for value in [*found, request.additional.salary]:
        assert (type(value), value) == (type(kept), kept)
