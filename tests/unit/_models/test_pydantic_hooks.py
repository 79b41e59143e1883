"""The models are types that pydantic understands, without a dependency on it."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from loanasync import AdditionalData, ApprovalRequest, UserData


@pytest.mark.parametrize("model", [AdditionalData, ApprovalRequest, UserData])
def test_model_is_a_pydantic_type_with_its_schema(model: Any) -> None:
    adapter = TypeAdapter(model)
    assert adapter.json_schema()["title"] == model.__name__
    with pytest.raises(ValidationError, match="unknown_field"):
        adapter.validate_python({"zzz": 1})
