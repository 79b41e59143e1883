// A flow with the types that openapi-typescript generated, sent with openapi-fetch.
import assert from "node:assert";
import createClient from "openapi-fetch";
import type { components, paths } from "./generated_schema";

const client = createClient<paths>({ baseUrl: process.argv[2], headers: { "X-Auth-Token": "sandbox-token" } });
const params = { path: { shopId: "sandbox-shop", fiscalCode: "TSTXYZ00A00A000A" } } as const;
const order: components["schemas"]["Approval"] = {
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
  const { fiscalCode, shopId } = params.path;
  const created = await client.POST("/api/shops/{shopId}/requests", { params: { path: { shopId } }, body: { fiscalCode } });
  assert.equal(created.data?.additionalDataNeeded, false);
  const decision = await client.POST("/api/shops/{shopId}/requests/{fiscalCode}", { params, body: order });
  assert(decision.data?.approved);
  assert(decision.data.redirectUrl.startsWith(process.argv[2]));
  await client.POST("/api/shops/{shopId}/requests/{fiscalCode}/documents", { params, body: {} });
  const body = { documentCity: "Roma", usPerson: false };
  const saved = await client.PATCH("/api/shops/{shopId}/requests/{fiscalCode}", { params, body });
  assert.equal(saved.data?.documentCity, "Roma");
  const repeated = await client.POST("/api/shops/{shopId}/requests/{fiscalCode}", { params, body: order });
  assert.equal(repeated.response.status, 400);
  const { errors } = repeated.error as components["schemas"]["Rejected"];
  assert.deepEqual(errors.domain, ["User already evaluated for approval"]);
}

void main();
