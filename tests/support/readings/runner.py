"""All flows of a service, with and without a ledger."""

from collections.abc import Iterable, Mapping

from attrs import define, field

from loanasync.sandbox import Readings
from support.readings.flows import FLOWS, NEEDS_LEDGER, Flow
from support.readings.numbers import Numbers, count
from support.readings.services import name_of
from support.readings.shop import Shop

__all__ = ["Report", "run"]


@define
class Report:
    """Size of a run, and the three numbers."""

    services: int = 0
    flows: int = 0
    requests: int = 0
    numbers: Numbers = field(factory=Numbers)

    def add(self, other: "Report") -> None:
        self.services += other.services
        self.flows += other.flows
        self.requests += other.requests
        self.numbers.add(other.numbers)


async def run(services: Iterable[Readings], flows: Mapping[str, Flow] = FLOWS) -> Report:
    """Run flows against services, each with and without a ledger."""
    report = Report()
    for readings in services:
        report.services += 1
        for name, flow in flows.items():
            for with_ledger in (True,) if name.startswith(NEEDS_LEDGER) else (False, True):
                report.flows += 1
                shop = Shop(readings, with_ledger=with_ledger)
                await flow(shop)
                numbers = await count(shop)
                report.requests += sum(len(log.exchanges) for log in shop.calls)
                if any(numbers.figures):
                    ledger = "with" if with_ledger else "without"
                    report.numbers.add(numbers, f"{name}, {ledger} a ledger | {name_of(readings)}")
                await shop.kill()
    return report
