"""Queries of the dashboard and of alerts match the Prometheus exporter, and use every metric."""

import asyncio
import json
import operator
import re
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import promql_parser as promql
import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, Metric
from taskiq import BrokerMessage
from taskiq.receiver import Receiver

from loanasync import LedgerMismatchError, Telemetry, Timeout
from loanasync.ledger import MemoryLedger
from loanasync.testing import approved, denied, fiscal_code, response, system_error, timed_out
from loanasync.testing.telemetry import _CLIENT_METRICS
from loanasync.worker import register
from loanasync.worker.delivery import QueueBroker
from support import ledger_clients
from support.call_ends import ENDS
from support.ledger_clients import FailingLedger, broken, held_response
from support.memory_clients import Shop

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD: dict[str, Any] = json.loads((DOCS / "_static" / "grafana.json").read_text(encoding="utf-8"))
# Values that Grafana fills into queries, and labels that Prometheus adds to samples.
FILLED_IN = {"$__rate_interval": "5m", "$__range": "1h", "$job": ".+"}
SCRAPED = {"job": "shop", "instance": "shop:8000"}
MATCHES: dict[str, Callable[[str, str], bool]] = {
    "Equal": operator.eq,
    "NotEqual": operator.ne,
    "Re": lambda value, pattern: re.fullmatch(pattern, value) is not None,
    "NotRe": lambda value, pattern: re.fullmatch(pattern, value) is None,
}


class QueueInMemory(QueueBroker):
    """A queue of the package without a server."""

    redelivery = 180.0
    _errors: ClassVar = (ConnectionError,)
    _queue = "orders"

    def __init__(self, *messages: bytes) -> None:
        super().__init__()
        self.messages = list(messages)
        self.dead: list[tuple[bytes, str]] = []
        self.owners: dict[str, str] = {}

    async def kick(self, message: BrokerMessage) -> None:
        self.messages.append(message.message)

    async def _open(self) -> None:
        """There is no server."""

    async def _fetch(self) -> list[tuple[bytes, bytes]]:
        return [(self.messages[0], self.messages[0])]

    async def _delete(self, delivery: bytes) -> None:
        self.messages.remove(delivery)

    async def _put_back(self, delivery: bytes, data: bytes, delay: float) -> None:
        """Leave it there."""

    async def _bury(self, delivery: bytes, data: bytes, reason: str) -> None:
        self.dead.append((data, reason))
        await self._delete(delivery)

    async def _backlog(self) -> int:
        return len(self.messages)

    async def _owner(self, task: str, owner: str) -> str:
        return self.owners.setdefault(task, owner)


async def _work(queue: QueueInMemory, shop: ledger_clients.Shop) -> None:
    """Start a worker of a queue that receives one message, and stop it."""
    register(queue, shop.client)
    queue.is_worker_process = True
    with suppress(LedgerMismatchError):
        await queue.startup()
        async for message in queue.listen():
            await Receiver(queue, run_startup=False).callback(message)
            break
    await queue.shutdown()


async def _leave_backlog(telemetry: Telemetry) -> None:
    shop = ledger_clients.Shop(options={"telemetry": telemetry})
    queue = QueueInMemory()
    register(queue, shop.client)
    queue.messages = [b"unread"]
    async for _ in queue.listen():
        break


async def _bury(telemetry: Telemetry) -> None:
    """A message that cannot be read becomes a dead letter."""
    await _work(QueueInMemory(b"no message"), ledger_clients.Shop(options={"telemetry": telemetry}))


async def _pause(telemetry: Telemetry) -> None:
    ledger = MemoryLedger()
    await ledger_clients.Shop(ledger=ledger, options={"base_url": "https://other.example.com"}).open_ledger()
    shop = ledger_clients.Shop(ledger=ledger, options={"telemetry": telemetry})
    await _work(QueueInMemory(), shop)


async def _leave_orphan(telemetry: Telemetry) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ledger = FailingLedger(settle=broken)
        shop = ledger_clients.Shop(
            approved(), ledger=ledger, options={"telemetry": telemetry}, orphan_folder=folder
        )
        await shop.result()


WORKERS = {"paused": _pause, "dead letter": _bury, "backlog": _leave_backlog, "orphan": _leave_orphan}


async def _make_calls(metering: MeterProvider) -> None:
    """Make calls that end in each way."""
    telemetry = Telemetry(meter_provider=metering)
    for play in (*(play for play, _ in ENDS.values()), *WORKERS.values()):
        await play(telemetry)
    lost = response(201, b'{"approved": tr')
    for script in ([system_error()] * 3, [timed_out()], [denied()], [lost]):
        await Shop(*script, telemetry=telemetry).approve()
    step, arrived, go = held_response(approved())
    busy = Shop(step, telemetry=telemetry, max_concurrency=1)
    first = asyncio.create_task(busy.approve())
    await arrived.wait()
    await busy.approve(fiscal_code(), timeout=Timeout(total=0.001, attempt=0.001, connect=0.0005))
    go.set()
    await first


def rendered(make_calls: Callable[[MeterProvider], Coroutine[None, None, object]]) -> list[Metric]:
    """Return the metrics of the package after calls, as the real exporter renders them."""
    registry = CollectorRegistry()
    metering = MeterProvider([PrometheusMetricReader(registry=registry)], shutdown_on_exit=False)
    asyncio.run(make_calls(metering))
    families = [family for family in registry.collect() if family.name != "target"]
    metering.shutdown()
    return families


@pytest.fixture(scope="module")
def families() -> list[Metric]:
    return rendered(_make_calls)


def filled_in(expression: str) -> str:
    for variable, value in FILLED_IN.items():
        expression = expression.replace(variable, value)
    return expression


def parsed(expression: str) -> promql.Expr:
    return promql.parse(filled_in(expression))


def nodes(expression: str) -> list[promql.Expr]:
    found: list[promql.Expr] = []
    promql.walk(parsed(expression), found.append)
    return found


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target


QUERIES = [pytest.param(target, id=f"{title} {target['refId']}") for title, target in panels()]
EXPRESSIONS = [target["expr"] for _, target in panels()]
ALERTS = re.findall(
    r"```promql\n(.+?)```", (DOCS / "howto" / "trace.md").read_text(encoding="utf-8"), re.DOTALL
)


def selectors(expression: str) -> list[promql.VectorSelector]:
    return [node for node in nodes(expression) if isinstance(node, promql.VectorSelector)]


def grouped(expression: str) -> set[str]:
    """Return the labels that remain after the aggregations of an expression."""
    modifiers = [node.modifier for node in nodes(expression) if isinstance(node, promql.AggregateExpr)]
    return {label for modifier in modifiers if modifier is not None for label in modifier.labels}


def selected(selector: promql.VectorSelector, families: list[Metric]) -> list[tuple[dict[str, str], float]]:
    """Return the labels and the value of each sample that a selector selects."""
    samples = [each for family in families for each in family.samples if each.name == selector.name]
    found = [({**each.labels, **SCRAPED}, each.value) for each in samples]
    for matcher in selector.matchers.matchers:
        matches = MATCHES[str(matcher.op).removeprefix("MatchOp.")]
        assert all(matcher.name in labels for labels, _ in found), f"no label has the name {matcher.name}"
        found = [sample for sample in found if matches(sample[0][matcher.name], matcher.value)]
    return found


@pytest.mark.parametrize("expression", [*EXPRESSIONS, *ALERTS])
def test_selectors_match_metrics_of_the_exporter(expression: str, families: list[Metric]) -> None:
    found = selectors(expression)
    assert found
    for selector in found:
        named = [labels for labels, _ in selected(selector, families)]
        assert named, f"{selector} selects nothing"
        assert grouped(expression) <= set().union(*named)


# The panels and alerts for failures that a person must look at, by the calls that play them.
SHOWN = {
    "lost": {"Outcome unknown", "alert: unknown"},
    "ledger down": {"Ledger down", "alert: ledger"},
    "ledger mismatch": {"Ledger mismatch", "alert: ledger"},
    "circuit open": {
        *("Outcome unknown", "alert: unknown", "Circuit breaker open", "alert: circuit"),
        "Openings of the circuit breaker",
    },
    "other data": {"Other data"},
    "invalid": {"Invalid requests"},
    "orphan": {"Orphan files", "alert: orphan", "Ledger down", "alert: ledger"},
    "paused": {"Paused workers", "alert: paused"},
    "dead letter": {"Dead letters", "alert: dead letter", "Backlog", "alert: backlog"},
    "backlog": {"Backlog", "alert: backlog"},
}
FAILURES = {
    **{title: target["expr"] for title, target in panels() if title in set().union(*SHOWN.values())},
    "alert: unknown": next(each for each in ALERTS if '"unknown"' in each),
    "alert: ledger": next(each for each in ALERTS if "Ledger" in each),
    "alert: circuit": next(each for each in ALERTS if "circuit" in each),
    "alert: orphan": next(each for each in ALERTS if "orphan" in each),
    "alert: paused": next(each for each in ALERTS if "paused" in each),
    "alert: dead letter": next(each for each in ALERTS if "dead_letters" in each),
    "alert: backlog": next(each for each in ALERTS if "backlog" in each),
}


@pytest.mark.parametrize("name", SHOWN)
def test_failure_moves_its_panels_and_alerts_and_no_others(name: str) -> None:
    play = WORKERS.get(name) or ENDS[name][0]
    families = rendered(lambda metering: play(Telemetry(meter_provider=metering)))
    moved = {
        title
        for title, expression in FAILURES.items()
        for each in selectors(expression)
        if each.offset is None and any(value for _, value in selected(each, families))
    }
    assert moved == SHOWN[name]


def test_counts_of_rare_failures_include_the_first_of_a_series() -> None:
    """`increase` alone misses it: the series of a histogram begins with its first call."""
    rare = [
        each
        for each in (*EXPRESSIONS, *ALERTS)
        if re.search(r"increase\(loanasync_(call|orphan|worker)", each)
    ]
    assert len(rare) > 9
    for expression in rare:
        assert expression.count("increase(") == expression.count(" or max_over_time(")
        assert expression.count("increase(") == expression.count(" offset ")


def test_every_metric_is_on_a_panel(families: list[Metric]) -> None:
    used = {selector.name for title, target in panels() for selector in selectors(target["expr"])}
    unused = [family.name for family in families if not used & {each.name for each in family.samples}]
    assert unused == []
    recorded = {family.name.removesuffix("_seconds") for family in families}
    assert recorded == {name.replace(".", "_") for name in _CLIENT_METRICS}


def test_each_outcome_has_its_colour_and_unknown_alerts(families: list[Metric]) -> None:
    [panel] = [panel for panel in DASHBOARD["panels"] if panel["title"] == "Approvals by outcome"]
    [selector] = selectors(panel["targets"][0]["expr"])
    outcomes = {labels["loanasync_outcome"] for labels, _ in selected(selector, families)}
    colours = {
        each["matcher"]["options"]: each["properties"][0]["value"]["fixedColor"]
        for each in panel["fieldConfig"]["overrides"]
    }
    assert colours.keys() == outcomes
    assert len(set(colours.values())) == len(outcomes)
    [stat] = [panel for panel in DASHBOARD["panels"] if panel["title"] == "Outcome unknown"]
    assert 'loanasync_outcome="unknown"' in stat["targets"][0]["expr"]
    normal, alert = stat["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert (alert["value"], alert["color"]) == (1, colours["unknown"])
    assert normal["color"] != alert["color"]


def test_dashboard_works_with_any_prometheus_data_source() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    sources = [*DASHBOARD["panels"], variables["job"], *(target for _, target in panels())]
    assert {json.dumps(each["datasource"], sort_keys=True) for each in sources} == {
        '{"type": "prometheus", "uid": "${datasource}"}'
    }
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    used = set(re.findall(r"\$(?!__)(\w+)", " ".join(target["expr"] for _, target in panels())))
    assert used <= variables.keys()


async def test_backlog_has_no_value_while_the_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = QueueInMemory(b"message")
    counts, seen = queue.metrics.backlog.counts, []

    async def stop(_: Exception) -> None:
        seen.append(dict(counts))
        raise asyncio.CancelledError

    monkeypatch.setattr("loanasync.worker.delivery._wait_after", stop)
    messages = queue.listen()
    await anext(messages)
    assert counts == {"orders": 1}
    monkeypatch.setattr(queue, "_fetch", mock.AsyncMock(side_effect=ConnectionError))
    with pytest.raises(asyncio.CancelledError):
        await anext(messages)
    assert seen == [{}]
