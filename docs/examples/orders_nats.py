"""A queue of approvals on NATS, with metrics; run `python3 orders_nats.py create` once before the workers."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import nats
from nats.js.api import ObjectStoreConfig
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from taskiq.serializers import JSONSerializer
from taskiq_nats import NATSObjectStoreResultBackend

from loanasync import LoanClient, Telemetry
from loanasync.testing import approval_request, fiscal_code
from loanasync.worker import message, register
from loanasync.worker.nats import JetStream

url = os.environ["NATS_URL"]
# Without a serializer, it would be pickle, which lets anyone who can write to the bucket run code.
results = NATSObjectStoreResultBackend[Any](url, keep_results=False, serializer=JSONSerializer())
broker = JetStream(url).with_result_backend(results)
metering = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
client = LoanClient.from_env(telemetry=Telemetry(meter_provider=metering))


@asynccontextmanager
async def telemetry() -> AsyncGenerator[None, None]:
    """Export the metrics of the last interval when a worker stops."""
    yield
    await asyncio.to_thread(metering.shutdown)


approve = register(broker, client, lifespan=telemetry)


async def create() -> None:
    """Create the bucket of the results. It deletes a result that nobody has read after an hour."""
    async with await nats.connect(url) as connection:
        lifetime = ObjectStoreConfig(ttl=3600)
        await connection.jetstream().create_object_store(results.bucket_name, lifetime)


async def checkout() -> None:
    """Send an approval to the queue and wait for its result, as a shop does."""
    await broker.startup()
    async with client:
        customer = fiscal_code()  # a made-up customer
        await client.create_request({"fiscalCode": customer})
        task = await approve.kiq(message(customer, approval_request(), order_id="A-1001"))
        result = (await task.wait_result(timeout=60)).return_value
        print(result["status"])
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(create() if sys.argv[1:] == ["create"] else checkout())
