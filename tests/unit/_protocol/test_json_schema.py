from typing import Any

import pytest

from loanasync import (
    AdditionalData,
    ApprovalRequest,
    ConfigurationError,
    LoanClient,
    RequestRules,
    UserData,
    schema,
)


@pytest.mark.parametrize("model", [ApprovalRequest, AdditionalData, UserData])
@pytest.mark.parametrize("wire_names", [False, True])
def test_schema_describes_each_field(model: Any, wire_names: bool) -> None:  # noqa: FBT001
    made = schema(model, wire_names=wire_names)
    assert made["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert made["title"] == model.__name__
    assert made["properties"]
    assert all(member["description"] for member in made["properties"].values())


def test_schema_description_has_the_unit_and_no_markup() -> None:
    members = schema(ApprovalRequest)["properties"]
    assert members["amount"]["description"] == "Loan amount in euro cents."
    assert members["instalments"]["description"] == "Number of instalments."
    assert not [each for each in members.values() if "`" in each["description"]]


def test_schema_has_the_default_of_the_model() -> None:
    made = schema(ApprovalRequest)
    assert made["properties"]["loan_finality"]["default"] == "ecommerce_shop"
    assert "loan_finality" not in made["required"]


def test_schema_of_user_data_requires_nothing() -> None:
    assert schema(UserData)["required"] == schema(UserData, wire_names=True)["required"] == []


def test_schema_returns_a_new_dict() -> None:
    schema(UserData)["properties"].clear()
    assert schema(UserData)["properties"]


@pytest.mark.parametrize("model", [LoanClient, dict, None])
def test_schema_of_another_type_raises(model: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^model: must be ApprovalRequest, AdditionalData or UserD"):
        schema(model)


@pytest.mark.parametrize("setting", ["dialect", "limits"])
def test_setting_of_another_type_raises(setting: str) -> None:
    wrong: dict[str, Any] = {setting: {"amount_max": 200_000}}
    for use in (lambda: schema(ApprovalRequest, **wrong), lambda: RequestRules(**wrong)):
        with pytest.raises(
            ConfigurationError, match=rf"^{setting}: must be of type {setting.title()}, not dict"
        ):
            use()
