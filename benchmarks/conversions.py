"""Measure models: build, check and write an order, and read a decision, beside pydantic and msgspec.

All take turns in one process, also the single steps of loanasync. loanasync checks every rule of the
specification and reads both spellings; the others check the rules that their fields can express.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from attrs import asdict
from clients_stacks import models
from order import CODE, FIELDS, ORDER
from rounds import interleaved, spread
from service import DECISION

from loanasync import ApprovalRequest, Approved, Dialect, Limits, LoanClient
from loanasync._protocol import codec
from loanasync._protocol.endpoints import APPROVE, Call
from loanasync._protocol.json import decode, encode
from loanasync._protocol.messages import Response
from loanasync._results import Meta
from loanasync._validation import rules

BODY = json.dumps(DECISION, ensure_ascii=False, separators=(",", ":")).encode()
WRITE, READ = "order to bytes", "bytes to decision"
Steps = dict[str, Callable[[], object]]


def loanasync_steps() -> Steps:
    """Return both conversions as the client runs them, and their steps."""
    client = LoanClient("https://loans.example.com", shop_id="shop", auth_token="secret")  # noqa: S106  (made up)
    options = client._options  # noqa: SLF001  (arguments of the measured functions)
    dialect, limits, meta = Dialect.street_number(), Limits(), Meta(status=201, attempts=1, elapsed=0.1)
    write_members, _ = codec._writers(dialect)  # noqa: SLF001  (one of the steps)
    response = Response(status=201, headers={}, body=BODY)

    def written() -> Call:
        call = APPROVE.prepare(options, CODE, ApprovalRequest(**FIELDS))
        assert isinstance(call, Call)
        return call

    call, request = written(), ApprovalRequest(**FIELDS)
    assert json.loads(call.body) == ORDER
    unstructured, members = write_members(request), decode(BODY)
    decision = call.read(response, meta)
    assert isinstance(decision, Approved)
    assert decision.redirect_url == DECISION["redirectUrl"]
    return {
        f"{WRITE}, loanasync": written,
        f"{READ}, loanasync": lambda: call.read(response, meta),
        "build": lambda: ApprovalRequest(**FIELDS),
        "check": lambda: tuple(
            rules.check_approval(request, additional_data_needed=False, dialect=dialect, limits=limits)
        ),
        "unstructure": lambda: write_members(request),
        "dumps": lambda: encode(unstructured),
        "loads": lambda: decode(BODY),
        "structure": lambda: codec.read_decision(Approved, members, meta),
    }


def pydantic() -> Steps:
    """Return the conversions of pydantic."""
    order, decision = models()

    def written() -> bytes:
        body: str = order(**FIELDS).model_dump_json(by_alias=True, exclude_none=True)
        return body.encode()

    assert json.loads(written()) == ORDER
    assert decision.model_validate_json(BODY).redirect_url == DECISION["redirectUrl"]
    return {
        f"{WRITE}, pydantic": written,
        f"{READ}, pydantic": lambda: decision.model_validate_json(BODY),
    }


def msgspec() -> Steps:
    """Return the conversions of msgspec, with the same rules."""
    import msgspec as library

    meta = library.Meta
    text = Annotated[str, meta(min_length=1)]
    digits = Annotated[str, meta(pattern="^[0-9]+$")]

    class Shared(library.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):  # type: ignore[call-arg]
        email: Annotated[str, meta(pattern="^[^@ ]+@[^@ ]+$")]
        lastname: text
        firstname: text
        mobile_phone: digits
        city: text
        address: Annotated[str, meta(pattern="^[^,]+$")]
        province: Annotated[str, meta(pattern="^[A-Z]{2}$")]
        postal_code: Annotated[str, meta(pattern="^[0-9]{5}$")]
        street_number: text
        citizenship: text
        instalments: Annotated[int, meta(ge=3, le=60)]
        zero_interest_rate: bool | None = None
        order_token: str | None = None

    class Order(Shared, frozen=True, kw_only=True, rename="camel", omit_defaults=True):  # type: ignore[call-arg]
        amount: Annotated[int, meta(ge=5_000, le=1_500_000)]
        loan_finality: text

    class Decision(Shared, frozen=True, kw_only=True, rename="camel"):  # type: ignore[call-arg]
        approved: bool
        redirect_url: str | None = None
        fiscal_code: str | None = None
        amount: int | None = None
        net_amount: int | None = None
        payment_day_of_month: int | None = None

    encode, decode = library.json.Encoder().encode, library.json.Decoder(Decision).decode

    def written() -> object:
        return encode(library.convert(ORDER, Order))  # only `convert` checks the rules

    assert json.loads(encode(library.convert(ORDER, Order))) == ORDER
    assert decode(BODY).redirect_url == DECISION["redirectUrl"]
    return {f"{WRITE}, msgspec": written, f"{READ}, msgspec": lambda: decode(BODY)}


def measured(step: Callable[[], object], times: int) -> float:
    """Return the mean CPU time of a step, in microseconds."""
    started = time.process_time()
    for _ in range(times):
        step()
    return (time.process_time() - started) / times * 1e6


def run(rounds: int, times: int) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return a line for each conversion and step, and the skipped libraries with the reason."""
    steps, skipped = loanasync_steps(), {}
    for library in (pydantic, msgspec):
        try:
            steps |= library()
        except ImportError as error:
            skipped[library.__name__] = str(error)
    figures = interleaved(
        {name: lambda step=step: measured(step, times) for name, step in steps.items()},  # type: ignore[misc]
        rounds,
    )
    lines = []
    for name in sorted(steps, key=lambda name: (not name.startswith(WRITE), not name.startswith(READ))):
        conversion, of_library, _ = name.partition(", ")
        per = figures[f"{conversion}, loanasync"] if of_library else None
        lines.append(
            {
                "name": name,
                "cost": asdict(spread(figures[name])),
                "ratio": asdict(spread(figures[name], per)) if per else None,
            }
        )
    return lines, skipped


def table(lines: list[dict[str, Any]]) -> str:
    """Format the results."""
    shown = [f"{'µs of CPU':30}{'median':>8}   {'(middle half)':18}{'loanasync = 1':>14}"]
    for line in lines:
        cost = line["cost"]
        half = f"({cost['low']:.2f} to {cost['high']:.2f})"
        ratio = "" if line["ratio"] is None else f"{line['ratio']['median']:14.2f}"
        shown.append(f"{line['name']:30}{cost['median']:8.2f}   {half:18}{ratio}")
    return "\n".join(shown)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="rounds of each step")
    parser.add_argument("--times", type=int, default=2000, help="repetitions in a round")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    lines, skipped = run(options.rounds, options.times)
    for name, reason in skipped.items():
        print(f"skipped: {name}: {reason}")
    print(table(lines))
    if options.json:
        options.json.write_text(json.dumps(lines, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
