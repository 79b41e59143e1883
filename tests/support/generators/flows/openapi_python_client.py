"""A flow with the client that openapi-python-client generated."""

import sys

from generated_client import AuthenticatedClient
from generated_client.api.default import approve, complete, create_request, upload_documents
from generated_client.models import (
    Approval,
    Approved,
    Citizenship,
    Created,
    Creation,
    Documents,
    Rejected,
    Shop,
    UserData,
)

CODE = "TSTXYZ00A00A000A"
SHOP = Shop.SANDBOX_SHOP
client = AuthenticatedClient(
    base_url=sys.argv[1], token="sandbox-token", prefix="", auth_header_name="X-Auth-Token"
)
order = Approval(
    amount=45_000,
    instalments=12,
    loan_finality="ecommerce_shop",
    email="anna@example.com",
    firstname="Anna",
    lastname="Prova",
    mobile_phone="3330000000",
    city="Roma",
    address="Via Prova",
    province="RM",
    postal_code="00100",
    street_number="12/A",
    citizenship=Citizenship.ITALIAN,
)
created = create_request.sync(SHOP, client=client, body=Creation(fiscal_code=CODE))
assert isinstance(created, Created)
assert not created.additional_data_needed
decision = approve.sync(SHOP, CODE, client=client, body=order)
assert isinstance(decision, Approved)
assert decision.approved
assert decision.redirect_url.startswith(sys.argv[1])
upload_documents.sync(SHOP, CODE, client=client, body=Documents())
saved = complete.sync(SHOP, CODE, client=client, body=UserData(document_city="Roma", us_person=False))
assert isinstance(saved, UserData)
assert saved.document_city == "Roma"
repeated = approve.sync(SHOP, CODE, client=client, body=order)
assert isinstance(repeated, Rejected)
assert repeated.errors["domain"] == ["User already evaluated for approval"]
