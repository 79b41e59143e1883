"""Measure models: build, check and write an order, and read a decision, beside pydantic and msgspec.

All take turns in one process, also the single steps of loanasync. The pydantic models have the same rules
and spellings as loanasync, keep unknown members and refuse repeated ones. Only loanasync checks the fiscal
code of an order, and reads decisions with wrong types. msgspec checks the rules that its fields can express.
"""

import json
import time
from collections.abc import Callable, Mapping
from datetime import date
from functools import partial
from typing import Annotated, Any, Literal

from attrs import asdict
from order import CODE, FULL, SHORT, Order
from rounds import interleaved, parser_of, save, spread
from service import DECISION

from loanasync import ApprovalRequest, Approved, Citizenship, Dialect, Limits, LoanClient
from loanasync._models.decisions import Meta
from loanasync._protocol import codec, rules
from loanasync._protocol.endpoints import APPROVE, Call
from loanasync._protocol.json import decode, encode_checked
from loanasync._protocol.messages import Response

BODY = json.dumps(DECISION, ensure_ascii=False, separators=(",", ":")).encode()
WRITE, WRITE_SHORT, READ = "order to bytes", "order of 15 fields to bytes", "bytes to decision"
Steps = dict[str, Callable[[], object]]

# The full order for pydantic, with the types of the models.
TYPED_FULL = FULL.fields | {"payment_day_of_month": 15, "residence_start_date": date(2019, 5, 1)}


def loanasync_steps() -> Steps:
    """Return both conversions as the client runs them, and their steps."""
    client = LoanClient("https://loans.example.com", shop_id="shop", auth_token="secret")  # noqa: S106  (made up)
    options = client._options  # noqa: SLF001  (arguments of the measured functions)
    dialect, limits, meta = Dialect.street_number(), Limits(), Meta(status=201, attempts=1, elapsed=0.1)
    write_members = codec._writers(dialect)[ApprovalRequest]  # noqa: SLF001  (one of the steps)
    response = Response(status=201, headers={}, body=BODY)

    def written(order: Order) -> Call:
        call = APPROVE.prepare(options, CODE, order.request(), additional_data_needed=order is FULL)
        assert isinstance(call, Call)
        return call

    call, request = written(FULL), FULL.request()
    assert json.loads(call.body) == FULL.members
    assert json.loads(written(SHORT).body) == SHORT.members
    unstructured, members = write_members(request), decode(BODY)
    decision = call.read(response, meta)
    assert isinstance(decision, Approved)
    assert decision.redirect_url == DECISION["redirectUrl"]
    return {
        f"{WRITE}, loanasync": partial(written, FULL),
        f"{WRITE_SHORT}, loanasync": partial(written, SHORT),
        f"{READ}, loanasync": lambda: call.read(response, meta),
        "build": FULL.request,
        "check": lambda: tuple(
            rules.check_approval(request, additional_data_needed=True, dialect=dialect, limits=limits)
        ),
        "unstructure": lambda: write_members(request),
        "dumps": lambda: encode_checked(unstructured),
        "loads": lambda: decode(BODY),
        "structure": lambda: codec.read_decision(Approved, members, meta),
    }


def pydantic() -> Steps:
    """Return the conversions of pydantic, with the rules of loanasync."""
    from pydantic import (
        AfterValidator,
        AliasChoices,
        BaseModel,
        ConfigDict,
        Field,
        PlainSerializer,
        StringConstraints,
        model_validator,
    )
    from pydantic.alias_generators import to_camel

    text = Annotated[str, StringConstraints(pattern=r"\S")]
    with_at = Annotated[str, StringConstraints(pattern=r"^[^@\s]+@[^@\s]+$")]
    no_prefix = r"^[\s(]*([^\s(+0]|0([^0]|$)|\($)"  # neither "+" nor "00"
    without_prefix = Annotated[str, StringConstraints(pattern=no_prefix)]
    without_comma = Annotated[str, StringConstraints(pattern=r"^[^,]*[^,\s][^,]*$")]
    two_letters = Annotated[str, StringConstraints(pattern="^[A-Z]{2}$")]
    five_digits = Annotated[str, StringConstraints(pattern="^[0-9]{5}$")]
    day_of_month = Annotated[int, Field(ge=1, le=31), PlainSerializer(str, return_type=str)]
    month = Annotated[date, PlainSerializer(lambda day: f"{day.month:02}/{day.year:04}", return_type=str)]

    class PydanticOrder(BaseModel):
        model_config = ConfigDict(
            alias_generator=to_camel, populate_by_name=True, frozen=True, strict=True, extra="forbid"
        )

        additional_data_needed: Annotated[bool, Field(exclude=True)] = False
        amount: Annotated[int, Field(ge=5_000, le=1_500_000)]
        instalments: Annotated[int, Field(ge=3, le=60)]
        loan_finality: text = "ecommerce_shop"
        email: with_at
        last_name: Annotated[text, Field(alias="lastname")]
        first_name: Annotated[text, Field(alias="firstname")]
        mobile_phone: without_prefix
        country_calling_code: str | None = None
        city: text
        address: without_comma
        province: two_letters
        postal_code: five_digits
        street_number: text
        citizenship: Literal["italian", "Italian", "eu", "outside_eu"]
        iban: str | None = None
        zero_interest_rate: bool | None = None
        order_token: str | None = None
        payment_day_of_month: day_of_month | None = None
        residence: (
            Literal["rent", "home_ownership", "home_ownership_mortgage", "home_business", "with_relatives"]
            | None
        ) = None
        residence_start_date: month | None = None
        educational_qualification: (
            Literal["middle_school", "diploma", "graduation", "master", "doctorate"] | None
        ) = None
        children: Literal["0", "1", "2", "3", "4", "5+"] | None = None
        salary_type: Literal["net-monthly", "gross-yearly"] | None = None
        salary: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None

        @model_validator(mode="after")  # type: ignore[untyped-decorator]  # mypy skips pydantic
        def has_additional_data(self) -> "PydanticOrder":
            conditional = (self.residence, self.residence_start_date, self.educational_qualification)
            if self.additional_data_needed and None in (
                *conditional,
                self.children,
                self.salary_type,
                self.salary,
            ):
                raise ValueError("the additional data are required")
            return self

    def url(value: str) -> str | None:
        return value if value.strip() else None

    def both(name: str, other: str) -> Any:  # noqa: ANN401  (the default of a field)
        return Field(default=None, validation_alias=AliasChoices(name, other))

    class Decision(BaseModel):
        model_config = ConfigDict(
            alias_generator=to_camel, populate_by_name=True, frozen=True, strict=True, extra="allow"
        )

        approved: bool
        redirect_url: Annotated[str, AfterValidator(url)] | None = None
        email: str | None = None
        last_name: Annotated[str | None, Field(alias="lastname")] = None
        first_name: Annotated[str | None, Field(alias="firstname")] = None
        fiscal_code: str | None = None
        mobile_phone: str | None = None
        city: str | None = None
        address: str | None = None
        province: str | None = None
        postal_code: str | None = None
        street_number: str | None = both("streetNumber", "civicNumber")
        citizenship: Annotated[Citizenship | str, Field(union_mode="left_to_right")] | None = None
        iban: str | None = None
        amount: int | None = None
        net_amount: int | None = None
        instalments: int | None = both("instalments", "installments")
        zero_interest_rate: bool | None = None
        order_token: str | None = None
        payment_day_of_month: Annotated[int, Field(strict=False)] | None = None

    unique = (b'"approved":', b'"redirectUrl":', b'"fiscalCode":')

    def written(fields: Mapping[str, Any]) -> bytes:
        body: str = PydanticOrder(**fields).model_dump_json(by_alias=True, exclude_none=True)
        return body.encode()

    def read() -> Decision:
        decision: Decision = Decision.model_validate_json(BODY)
        if decision.fiscal_code not in (CODE, None) or max(map(BODY.count, unique)) > 1:
            raise ValueError("another customer, or a repeated member")
        return decision

    full = {**TYPED_FULL, "additional_data_needed": True}
    assert json.loads(written(full)) == FULL.members
    assert json.loads(written(SHORT.fields)) == SHORT.members
    assert read().redirect_url == DECISION["redirectUrl"]
    return {
        f"{WRITE}, pydantic": partial(written, full),
        f"{WRITE_SHORT}, pydantic": partial(written, SHORT.fields),
        f"{READ}, pydantic": read,
    }


def msgspec() -> Steps:
    """Return the conversions of msgspec, with the rules that its fields can express."""
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

    class ShortOrder(Shared, frozen=True, kw_only=True, rename="camel", omit_defaults=True):  # type: ignore[call-arg]
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

    def written() -> bytes:
        body: bytes = encode(library.convert(SHORT.members, ShortOrder))  # only `convert` checks the rules
        return body

    assert json.loads(written()) == SHORT.members
    assert decode(BODY).redirect_url == DECISION["redirectUrl"]
    return {f"{WRITE_SHORT}, msgspec": written, f"{READ}, msgspec": lambda: decode(BODY)}


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
    order = (WRITE, WRITE_SHORT, READ)
    for name in sorted(steps, key=lambda name: [not name.startswith(each) for each in order]):
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
    shown = [f"{'µs of CPU':40}{'median':>8}   {'(middle half)':18}{'loanasync = 1':>14}"]
    for line in lines:
        cost = line["cost"]
        half = f"({cost['low']:.2f} to {cost['high']:.2f})"
        ratio = "" if line["ratio"] is None else f"{line['ratio']['median']:14.2f}"
        shown.append(f"{line['name']:40}{cost['median']:8.2f}   {half:18}{ratio}")
    return "\n".join(shown)


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__, 50)
    parser.add_argument("--times", type=int, default=2000, help="repetitions in a round")
    options = parser.parse_args()
    lines, skipped = run(options.rounds, options.times)
    for name, reason in skipped.items():
        print(f"skipped: {name}: {reason}")
    print(table(lines))
    save(options.json, lines)


if __name__ == "__main__":
    main()
