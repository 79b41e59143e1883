"""A flow with the models that datamodel-code-generator generated, sent with httpx."""

import sys

import httpx
from generated_models import (
    Approval,
    Approved,
    Citizenship,
    Created,
    Creation,
    DocumentsReceived,
    Rejected,
    UserData,
)
from pydantic import BaseModel

CODE = "TSTXYZ00A00A000A"
client = httpx.Client(headers={"X-Auth-Token": "sandbox-token"})
requests = f"{sys.argv[1]}/api/shops/sandbox-shop/requests"
request = f"{requests}/{CODE}"
order = Approval(
    amount=45_000,
    instalments=12,
    loanFinality="ecommerce_shop",
    email="anna@example.com",
    firstname="Anna",
    lastname="Prova",
    mobilePhone="3330000000",
    city="Roma",
    address="Via Prova",
    province="RM",
    postalCode="00100",
    streetNumber="12/A",
    citizenship=Citizenship.ITALIAN,
)


def sent(method: str, url: str, body: BaseModel) -> bytes:
    response = client.request(method, url, json=body.model_dump(mode="json", exclude_unset=True))
    content: bytes = response.content
    return content


created = Created.model_validate_json(sent("POST", requests, Creation(fiscalCode=CODE)))
assert not created.additionalDataNeeded
decision = Approved.model_validate_json(sent("POST", request, order))
assert decision.approved
assert str(decision.redirectUrl).startswith(sys.argv[1])
received = client.post(f"{request}/documents", json={"front": "..."})
assert DocumentsReceived.model_validate_json(received.content).documents == "received"
saved = UserData.model_validate_json(sent("PATCH", request, UserData(documentCity="Roma", usPerson=False)))
assert saved.documentCity == "Roma"
repeated = Rejected.model_validate_json(sent("POST", request, order))
assert repeated.errors["domain"] == ["User already evaluated for approval"]
