// A flow with the SDK that @hey-api/openapi-ts generated.
import assert from "node:assert";
import { approve, complete, createRequest, uploadDocuments } from "./generated_sdk";
import type { Approval, Rejected } from "./generated_sdk";
import { client } from "./generated_sdk/client.gen";

client.setConfig({ baseUrl: process.argv[2], auth: "sandbox-token" });
const path = { shopId: "sandbox-shop", fiscalCode: "TSTXYZ00A00A000A" } as const;
const order: Approval = {
  amount: 45000,
  instalments: 12,
  loanFinality: "ecommerce_shop",
  email: "anna@example.com",
  firstname: "Anna",
  lastname: "Prova",
  mobilePhone: "3330000000",
  city: "Roma",
  address: "Via Prova",
  province: "RM",
  postalCode: "00100",
  streetNumber: "12/A",
  citizenship: "italian",
};

async function main(): Promise<void> {
  const { fiscalCode, shopId } = path;
  const created = await createRequest({ path: { shopId }, body: { fiscalCode } });
  assert.equal(created.data?.additionalDataNeeded, false);
  const decision = await approve({ path, body: order });
  assert(decision.data?.approved);
  assert(decision.data.redirectUrl.startsWith(process.argv[2]));
  await uploadDocuments({ path, body: {} });
  const saved = await complete({ path, body: { documentCity: "Roma", usPerson: false } });
  assert.equal(saved.data?.documentCity, "Roma");
  const repeated = await approve({ path, body: order });
  assert.equal(repeated.response?.status, 400);
  assert.deepEqual((repeated.error as Rejected).errors.domain, ["User already evaluated for approval"]);
}

void main();
