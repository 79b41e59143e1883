"""Queries of the dashboard and of alerts match the Prometheus exporter, and use every metric."""

import asyncio
import contextlib
import json
import operator
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, Metric

from loanasync import LoanError, Telemetry, Timeout
from loanasync.testing import (
    ScriptedResponse,
    SentRequest,
    approval_request,
    approved,
    computed,
    connection_lost,
    denied,
    fiscal_code,
    not_connected,
    refused,
    response,
    scripted_client,
    system_error,
    timed_out,
)
from loanasync.testing.telemetry import _CLIENT_METRICS

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


async def _make_calls(metering: MeterProvider) -> None:
    """Make calls with every outcome, one that waits for a slot, and one that times out waiting."""
    lost = response(201, b'{"approved": tr')
    for script in (
        *([approved()], [refused()], [system_error(), approved()], [system_error()] * 3),
        *([connection_lost()], [not_connected()], [timed_out()], [denied()], [lost]),
    ):
        client = scripted_client(*script, telemetry=Telemetry(meter_provider=metering))
        with contextlib.suppress(LoanError):
            await client.approve(fiscal_code(), approval_request())
    arrived, responding = asyncio.Event(), asyncio.Event()

    async def wait(_: SentRequest) -> ScriptedResponse:
        arrived.set()
        await responding.wait()
        return approved()

    busy = scripted_client(
        computed(wait), approved(), telemetry=Telemetry(meter_provider=metering), max_concurrency=1
    )
    first = asyncio.create_task(busy.approve(fiscal_code(), approval_request()))
    await arrived.wait()
    second = asyncio.create_task(busy.approve(fiscal_code(), approval_request()))
    short = Timeout(total=0.001, attempt=0.001, connect=0.0005)
    with contextlib.suppress(LoanError):
        await busy.approve(fiscal_code(), approval_request(), timeout=short)
    responding.set()
    await asyncio.gather(first, second)


@pytest.fixture(scope="module")
def families() -> list[Metric]:
    """Metrics of the package, as the real exporter renders them."""
    registry = CollectorRegistry()
    metering = MeterProvider([PrometheusMetricReader(registry=registry)], shutdown_on_exit=False)
    asyncio.run(_make_calls(metering))
    rendered = [family for family in registry.collect() if family.name != "target"]
    metering.shutdown()
    return rendered


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


@pytest.mark.parametrize("expression", [*EXPRESSIONS, *ALERTS])
def test_selectors_match_metrics_of_the_exporter(expression: str, families: list[Metric]) -> None:
    samples = [(each.name, {**each.labels, **SCRAPED}) for family in families for each in family.samples]
    found = selectors(expression)
    assert found
    for selector in found:
        named = [labels for name, labels in samples if name == selector.name]
        assert named, f"no metric has the name {selector.name}"
        for matcher in selector.matchers.matchers:
            matches = MATCHES[str(matcher.op).removeprefix("MatchOp.")]
            assert all(matcher.name in labels for labels in named), f"no label has the name {matcher.name}"
            named = [labels for labels in named if matches(labels[matcher.name], matcher.value)]
        assert named, f"{selector.name} has no such values: {selector.matchers}"
        assert grouped(expression) <= set().union(*named)


def test_every_metric_is_on_a_panel(families: list[Metric]) -> None:
    used = {selector.name for title, target in panels() for selector in selectors(target["expr"])}
    unused = [family.name for family in families if not used & {each.name for each in family.samples}]
    assert unused == []
    recorded = {family.name.removesuffix("_seconds") for family in families}
    assert recorded == {name.replace(".", "_") for name in _CLIENT_METRICS}


def test_each_outcome_has_its_colour_and_unknown_alerts(families: list[Metric]) -> None:
    [decisions] = [family for family in families if family.name == "loanasync_decisions"]
    outcomes = {sample.labels["loanasync_outcome"] for sample in decisions.samples}
    [panel] = [panel for panel in DASHBOARD["panels"] if panel["title"] == "Approvals by outcome"]
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
