"""``loanasync schema``: the JSON Schema of a request model."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from loanasync import AdditionalData, ApprovalRequest, UserData
from loanasync import schema as schema_of
from loanasync.cli.rows.orders import DialectName, dialect_of


class ModelName(StrEnum):
    """The values of the argument: the names of the request models."""

    APPROVAL_REQUEST = "approval-request"
    ADDITIONAL_DATA = "additional-data"
    USER_DATA = "user-data"


_MODELS = {
    ModelName.APPROVAL_REQUEST: ApprovalRequest,
    ModelName.ADDITIONAL_DATA: AdditionalData,
    ModelName.USER_DATA: UserData,
}


def schema(
    model: Annotated[ModelName, typer.Argument(help="The request model.")],
    dialect: Annotated[
        DialectName,
        typer.Option(help="Which description the service follows, named after its street number field."),
    ] = DialectName.STREET_NUMBER,
    *,
    additional_data_needed: Annotated[
        bool, typer.Option("--additional-data-needed", help="Require the additional data.")
    ] = False,
    wire_names: Annotated[
        bool,
        typer.Option(
            "--wire-names",
            help="Describe the body that the service receives, with names such as postalCode, instead of the"
            " fields of the model, such as postal_code.",
        ),
    ] = False,
) -> None:
    """Print the JSON Schema (2020-12) of a request, such as for a form that sends one to your shop.

    The limits are the defaults of the client. In Python, `loanasync.schema` takes other limits.

    Example: loanasync schema approval-request --wire-names
    """
    made = schema_of(
        _MODELS[model],
        dialect=dialect_of(dialect),
        additional_data_needed=additional_data_needed,
        wire_names=wire_names,
    )
    typer.echo(json.dumps(made, indent=2))
