"""The command schema."""

import json

import pytest
from typer.testing import CliRunner

from loanasync import AdditionalData, ApprovalRequest, Dialect, UserData, schema
from loanasync.cli.app import app

RUNNER = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("approval-request", schema(ApprovalRequest)),
        ("additional-data --additional-data-needed", schema(AdditionalData, additional_data_needed=True)),
        ("user-data --wire-names", schema(UserData, wire_names=True)),
        (
            "approval-request --wire-names --dialect civic_number",
            schema(ApprovalRequest, dialect=Dialect.civic_number(), wire_names=True),
        ),
    ],
)
def test_schema_prints_the_schema_of_a_model(arguments: str, expected: object) -> None:
    done = RUNNER.invoke(app, ["schema", *arguments.split()])
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout) == expected


def test_schema_of_an_unknown_model_names_the_models() -> None:
    done = RUNNER.invoke(app, ["schema", "order"])
    assert done.exit_code == 2
    assert "'approval-request', 'additional-data', 'user-data'" in done.stderr
