"""``loanasync ledger resolve --from``: resolve entries with a file of outcomes from the service."""

import asyncio
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any, cast

from attrs import define, evolve, field

from loanasync._models.cells import CellError, normalized, to_cents
from loanasync._models.masking import mask
from loanasync._protocol.json import encode
from loanasync._protocol.rules import check_fiscal_code, normalize_fiscal_code, normalize_order_id
from loanasync.bulk import InputError
from loanasync.bulk.records import Records, input_error, is_like_value
from loanasync.cli.console import batches, counted, listed, listed_lines, print_message
from loanasync.cli.exit_codes import Exit
from loanasync.cli.ledger.display import decrypted, response_members
from loanasync.cli.ledger.open import OpenLedger, shop_from_environment, short
from loanasync.ledger import Entry, Settlement, State
from loanasync.ledger.keys import Approval, Place, find_entry, places_of
from loanasync.ledger.resolution import (
    STATES,
    Statement,
    problem_of_note,
    result_without_writing,
    settle_as_stated,
)

TO_RESOLVE = (State.UNKNOWN, State.LOST)  # without HELD: a person has already looked at these entries
_AT_ONCE = 256  # operations of the ledger that are in progress; an SQLite ledger commits them together
_SHOWN = 10  # line numbers, messages and keys of each kind that are printed
_COLUMNS = "fiscal_code, outcome, order_id, order_token, amount, redirect_url and note"
# Fields by the normalized names of their columns.
_FIELDS: Mapping[str, str] = {
    **dict.fromkeys(("fiscalcode", "codicefiscale", "cf"), "fiscal_code"),
    **dict.fromkeys(("outcome", "esito"), "outcome"),
    **dict.fromkeys(("orderid", "ordine", "numeroordine"), "order_id"),
    "ordertoken": "order_token",
    **dict.fromkeys(("amount", "importo"), "amount"),
    "redirecturl": "redirect_url",
    **dict.fromkeys(("note", "nota"), "note"),
}
_OUTCOMES: Mapping[str, State] = {
    **{outcome.replace("_", ""): state for outcome, state in STATES.items()},
    **dict.fromkeys(("approvato", "approvata"), State.APPROVED),
    **dict.fromkeys(("rifiutato", "rifiutata"), State.REFUSED),
    **dict.fromkeys(("nonvalutato", "nonvalutata"), State.RELEASED),
    **dict.fromkeys(("held", "sospeso", "sospesa"), State.HELD),
}
_BETWEEN_WORDS = re.compile("(?<=[a-z])[ _-](?=[a-z])")  # another character, such as "?", may mean a doubt
_DONE = ("settled", "created", "unchanged", "repeats", "decided")
# By result: the end of a sentence that begins with the number of rows, and advice.
_TEXTS: Mapping[str, tuple[str, str]] = {
    "settled": ("settled", ""),
    "created": (
        "without an entry, so a new one blocks the customer",
        "if you expected entries, check LOANASYNC_SHOP_ID and the order_id of the rows",
    ),
    "unchanged": ("already had this outcome", ""),
    "repeats": ("repeated, with the same outcome", ""),
    "decided": ("to be held already decided, so no request is sent", ""),
    "contradicts": (
        "contradicting the ledger",
        "nothing was changed; look at each entry with loanasync ledger show --customer",
    ),
    "other amount": ("with another amount than the ledger", "the outcome was compared, not the amount"),
    "disagrees": ("contradicting each other", "none of them was used; correct the file"),
    "stated earlier": (
        "may be older than the last request of the customer",
        "if the last request was not evaluated, release it with loanasync ledger resolve --customer",
    ),
    "inflight": ("with a request in progress", "run the command again later"),
    "missing": ("without entry", "check the fiscal code and the order_id of the row"),
    "ambiguous": ("with an order token of several orders", "resolve each entry by its key"),
    "invalid": ("invalid", "correct these rows, and run the command again"),
}
_NO_ENTRY_AT_ALL = "the ledger has no entry of any customer in the file: check --ledger and LOANASYNC_SHOP_ID"


@define
class _Row:
    """The outcome that one row of the file states about a customer's approval, and the entry for it.

    Args:
        line: Number of the line.
        fiscal_code: The customer.
        order_id: The order; empty without one.
        order_token: The token of the order, which finds the entry if there is no `order_id`.
        amount: The amount in euro cents, if the row has one.
        statement: The outcome.
        key: Key of the entry; empty if it was not found.
        result: The result, if nothing is written.
        entry: The entry, if it is written.
        place: The place of an entry to create.
    """

    line: int
    fiscal_code: str = field(repr=mask)
    order_id: str
    order_token: str = field(repr=mask)
    amount: int | None
    statement: Statement
    key: str = ""
    result: str | None = None
    entry: Entry | None = None
    place: Place | None = None


@define
class _Results:
    """The line numbers of each result, and what the file and the ledger lack of each other."""

    lines: dict[str, list[int]] = field(factory=lambda: defaultdict(list))
    problems: dict[str, list[int]] = field(factory=lambda: defaultdict(list))  # lines by message
    not_in_file: dict[str, list[str]] = field(factory=lambda: defaultdict(list))  # keys by state
    left: int = 0  # entries that are unknown or lost

    @property
    def matched_nothing(self) -> bool:
        return all(result in ("missing", "ambiguous", "invalid") for result in self.lines)

    @property
    def exit_code(self) -> Exit:
        if self.matched_nothing:
            return Exit.NOTHING_SENT
        if self.left:
            return Exit.UNKNOWN
        return Exit.DECIDED if set(self.lines) <= {*_DONE} else Exit.FAILED


def resolve_from(use: OpenLedger, file: str, note: str, *, dry_run: bool) -> Exit:
    """Resolve the entries of a file's customers, print the results, and return the exit code.

    Args:
        use: The ledger.
        file: Path of the file; ``-`` is standard input.
        note: Note for rows without one, in front of the line.
        dry_run: Write nothing.
    """
    shop = shop_from_environment(os.environ)
    secrets, results = use.secrets(shop), _Results()
    try:
        rows = [*_read(Records(file), note, results)]
    except InputError as error:
        print_message(str(error))
        return Exit.NOTHING_SENT

    use.run(_Run(use, shop.shop_id, secrets, results, dry_run).run(rows))
    _print(results, dry_run=dry_run)
    return results.exit_code


@define
class _Run:
    """Matches the rows with the entries of the ledger, settles them, and adds all to the results."""

    use: OpenLedger
    shop_id: str
    secrets: Sequence[bytes] = field(repr=mask)
    results: _Results
    dry_run: bool
    folders: Sequence[Path] = ()  # of orphan files

    async def run(self, rows: Sequence[_Row]) -> None:
        if not self.dry_run:
            self.folders = await asyncio.to_thread(lambda: self.use.policy.orphan_folders)
        for batch in batches(rows, _AT_ONCE):
            await asyncio.gather(*map(self._find, batch))
        rows_by_key: dict[str, list[_Row]] = defaultdict(list)
        for row in rows:
            if row.key:
                rows_by_key[row.key].append(row)
        to_settle = [*self._without_contradictions(rows_by_key)]
        for batch in batches(to_settle, _AT_ONCE):
            await asyncio.gather(*map(self._settle, batch))
        to_write = {row.key for row in to_settle if row.result is None} if self.dry_run else set()
        async for entry in self.use.ledger.scan():
            self.results.left += entry.is_unresolved and entry.key not in to_write
            is_open = entry.is_unresolved or entry.state not in (*TO_RESOLVE, State.RELEASED)
            if entry.key not in rows_by_key and is_open:
                self.results.not_in_file[entry.state.value].append(entry.key)

    async def _find(self, row: _Row) -> None:
        """Add the entry to a row, or its place if it is to be created."""
        by_token = bool(row.order_token and not row.order_id)
        approval = Approval(self.shop_id, row.fiscal_code, row.order_id, row.order_token or None)
        places = places_of(approval, self.secrets)
        entry = await find_entry(self.use.ledger, places, by_token=by_token)
        if entry == "missing" and row.statement.state is State.HELD and not by_token:
            row.key, row.place = places[0].key, places[0]
            return
        if not isinstance(entry, Entry):
            self.results.lines[entry].append(row.line)
            return
        members = response_members(decrypted(entry, self.use.policy.encrypt), reveal=True) or {}
        if row.amount is not None and members.get("amount", row.amount) != row.amount:
            self.results.lines["other amount"].append(row.line)
        row.key, row.result = entry.key, result_without_writing(entry, row.statement)
        if row.result in (None, "inflight"):  # 100,000 decided entries are large, and need no writing
            row.entry = entry

    def _without_contradictions(self, rows_by_key: Mapping[str, Sequence[_Row]]) -> Iterator[_Row]:
        """Yield one row of each entry, in the order of the lines."""
        for first, *others in rows_by_key.values():
            if any(row.statement.state is not first.statement.state for row in others):
                self.results.lines["disagrees"] += [row.line for row in (first, *others)]
                continue
            if others:
                self.results.lines["repeats"] += [row.line for row in others]
            yield first

    async def _settle(self, row: _Row) -> None:
        result, entry, statement = row.result, row.entry, row.statement
        if row.place is not None and not self.dry_run:
            entry = await self.use.ledger.settle(
                row.key,
                token=token_hex(16),
                payload="",
                settlement=Settlement(state=statement.state, note=statement.note, source=statement.source),
                subject=row.place.subject,
            )
            entry = None if entry.state is statement.state else entry  # a client claimed it in the meantime
        if entry is not None and not self.dry_run:
            cipher = self.use.policy.encrypt
            if statement.body is not None and cipher is not None:
                statement = evolve(statement, body=cipher.encrypt(statement.body))
            result, _ = await settle_as_stated(self.use.ledger, entry, statement, orphan_folders=self.folders)
        if result == "contradicts" and statement.state is State.HELD:
            result = "decided"
        self.results.lines[result or ("settled" if row.place is None else "created")].append(row.line)


def _read(records: Records, note: str, results: _Results) -> Iterator[_Row]:
    """Yield the valid rows, and add the problems of the others to the results.

    Raises:
        InputError: The header is wrong.
    """
    if records.columns is not None:
        found = {column: _FIELDS.get(normalized(column)) for column in records.columns}
        records.check_header(found, f"rename the columns: {_COLUMNS}")
        missing = {"fiscal_code", "outcome"} - {*found.values()}
        wrong = [
            column for column, name in found.items() if name is None or [*found.values()].count(name) > 1
        ]
        if missing or wrong or len(found) < len(records.columns):
            named = ", ".join(map(repr, wrong)) or "a repeated name"
            reason = f"there is no column {' and '.join(sorted(missing))}" if missing else f"remove {named}"
            raise input_error(records.name, f"the columns are {_COLUMNS}: {reason}", 1)
    name = Path(records.name).name
    origin = name if problem_of_note(name) is None else "the file"
    for line, members, problem in records:
        row = [problem] if problem else _row_of(line, members, f"line {line} of {origin}", note)
        if isinstance(row, _Row):
            yield row
        else:
            for message in row:
                results.problems[message].append(line)
            results.lines["invalid"].append(line)


def _row_of(line: int, members: Mapping[str, object], origin: str, note: str) -> _Row | list[str]:
    """Return a row, or the messages of its problems."""
    values, messages = _values_of(members)
    if (wrong := problem_of_note(values["note"])) is not None:
        messages.append(f"note: {wrong}")
    code = values.get("fiscal_code", "")
    messages += [
        f"fiscal_code: {'is missing' if code == '' else problem.message}"
        for problem in check_fiscal_code(code)
    ]
    outcome = values.get("outcome")
    text = outcome.strip().casefold() if isinstance(outcome, str) else ""
    state = _OUTCOMES.get(_BETWEEN_WORDS.sub("", text))
    if state is None:
        messages.append("outcome: must be approved, refused, not_evaluated or held")
    try:
        amount = to_cents(values["amount"], euro=False) if "amount" in values else None
    except CellError:
        amount = ""
    if not (amount is None or type(amount) is int):
        messages.append("amount: must be whole euro cents, or an amount such as € 450,00")
    if values["redirect_url"] and state not in (State.APPROVED, None):
        messages.append("redirect_url: only an approved row has one")
    if messages or state is None:
        return messages
    own_note = values["note"].strip() or " ".join(filter(None, (note, origin)))
    redirect = {"approved": True, "redirectUrl": values["redirect_url"]} if values["redirect_url"] else None
    statement = Statement(state, "file", own_note, None if redirect is None else encode(redirect))
    order = (normalize_order_id(values["order_id"]), values["order_token"])
    return _Row(line, normalize_fiscal_code(code), *order, cast("int | None", amount), statement)


def _values_of(members: Mapping[str, object]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a row by field, and the messages of members that cannot be read."""
    values: dict[str, Any] = {"order_id": "", "order_token": "", "redirect_url": "", "note": ""}
    messages: list[str] = []
    for member, value in members.items():
        name = _FIELDS.get(normalized(member))
        if name is None:
            is_hidden = is_like_value(member) or not any(normalized(each) in _FIELDS for each in members)
            shown = "a member, not printed because its name may be a value," if is_hidden else member
            messages.append(f"{shown} is unknown; the members are {_COLUMNS}")
        elif values.get(name):
            messages.append(f"{name}: appears twice, under two names")
        elif value is not None and value != "":
            values[name] = value
            if name in ("order_id", "order_token", "redirect_url", "note") and not isinstance(value, str):
                messages.append(f"{name}: must be text")
                values[name] = ""
    return values, messages


def _print(results: _Results, *, dry_run: bool) -> None:
    """Print the number of rows of each result, with the lines of those that need a person."""
    for result, (text, advice) in _TEXTS.items():
        if lines := results.lines.get(result):
            label = "to settle" if dry_run and result == "settled" else text
            where = f": {_first_lines(lines)}; {advice}" if advice else ""
            print_message(f"{counted(len(lines), 'row')} {label}{where}")
    for message, lines in sorted(results.problems.items(), key=lambda each: -len(each[1]))[:_SHOWN]:
        print_message(f"  {counted(len(lines), 'row')}: {message}: {_first_lines(lines)}")
    if not results.lines:
        print_message("the file has a header, but no rows")
    elif results.matched_nothing and "missing" in results.lines:
        print_message(_NO_ENTRY_AT_ALL)
        return
    for state, keys in sorted(results.not_in_file.items()):
        shown = listed(map(short, keys[:_SHOWN]), len(keys))
        print_message(f"in the ledger and not in the file: {len(keys):,} {state}: {shown}")
    listed_before = sum(len(results.not_in_file.get(state.value, ())) for state in TO_RESOLVE)
    if left := results.left - listed_before:
        print_message(
            f"still unknown or lost, of the rows of the file: {counted(left, 'entry', 'entries')}; "
            "list them with loanasync ledger sweep"
        )


def _first_lines(lines: Sequence[int]) -> str:
    return listed_lines(sorted(lines)[:_SHOWN], len(lines))
