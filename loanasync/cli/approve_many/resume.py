"""Resume of `approve-many`: the customers that earlier runs of the same command requested."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal, TypeAlias

from attrs import define, field

from loanasync._validation.rules import normalize_fiscal_code
from loanasync.cli.approve_many.results import Format
from loanasync.cli.ledger.open import Opened, short
from loanasync.cli.rows.append import has_content, lines
from loanasync.ledger import DecisionLedger, Settlement, State
from loanasync.ledger.model import SERVICE

try:
    import fcntl
except ImportError:  # Windows: a second run is not noticed there, and its ledger sends nothing twice
    fcntl = None  # type: ignore[assignment]

# What is known of a customer: decided; of unknown outcome; failed for good; being requested by another
# command; or to be requested.
Past = Literal["decided", "unknown", "failed", "busy", "new"]
LookUp: TypeAlias = Callable[[Sequence[str]], object]

OWN = "beside the results"
AT_ONCE = 64  # rows that are looked up in a ledger together
_SECRET = 32  # bytes
_KILLED = Settlement(state=State.UNKNOWN, note="in progress when an earlier run ended")


class NotResumableError(Exception):
    """Results that cannot be continued; the text says why, and what to do."""


def own_ledger(out: str) -> Path:
    """Return the path of the ledger that is used without ``--ledger``."""
    return Path(f"{out}.ledger")


def _resume_file(out: str) -> Path:
    return Path(f"{out}.resume")


def has_begun(out: str) -> bool:
    """Return True if there are results, or another file of an earlier run."""
    others = (_resume_file(out), own_ledger(out), _notes_of_0_1(out))
    return has_content(out) or any(each.exists() for each in others)


def _notes_of_0_1(out: str) -> Path:
    return Path(f"{out}.asked")


@contextmanager
def resumed(out: str, service: str, ledger: str) -> Iterator[str]:
    """Lock a file of results for this run, and yield the secret of the ledger beside it.

    ``OUT.resume`` has the service, the ledger and the secret. It is written once, before anything is sent,
    and only its owner may read it. It is locked until the run ends.

    Args:
        out: Path of the results.
        service: Address and shop that the results belong to.
        ledger: Name of the ledger that they belong to; `OWN` for the one beside them, empty without one.

    Raises:
        NotResumableError: Another run is writing, the results belong to another service or ledger, or one
            of the files is missing.
        OSError: A file cannot be read or written.
    """
    if _notes_of_0_1(out).exists():
        raise NotResumableError(
            f"{_notes_of_0_1(out)} is the progress file of version 0.1.0, which this version does not read: "
            "finish these results with that version; or, if they were begun with --ledger, give the same "
            "--ledger and name a new file for the results"
        )
    if has_begun(out) and not _resume_file(out).exists():
        raise _missing_resume_file(out)
    with closing(_opened(_resume_file(out))) as file:
        _lock(file, out)
        text = file.read()
        if not text.endswith("\n"):  # it is new, or an earlier run was killed before it was written
            if has_content(out) or own_ledger(out).exists():
                raise _missing_resume_file(out)
            text = json.dumps({"service": service, "ledger": ledger, "secret": token_hex(_SECRET)}) + "\n"
            file.seek(0)
            file.truncate()
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        begun = _read(text, out)
        if begun["service"] != service:
            raise NotResumableError(
                f"{out} has results of another service or shop: name a new file for the results"
            )
        if begun["ledger"] != ledger:
            raise NotResumableError(
                f"{out} was begun with another --ledger, or one of the two without: "
                "give the one that it was begun with"
            )
        if ledger == OWN and has_content(out) and not has_content(str(own_ledger(out))):
            raise NotResumableError(
                f"{own_ledger(out)} is missing or empty. It has the customers of {out} that were requested: "
                "restore it, and do not send these rows again without it"
            )
        yield begun["secret"]


def _opened(path: Path) -> TextIOWrapper:
    flags = os.O_RDWR | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        handle = os.open(path, flags)
    return os.fdopen(handle, "r+", encoding="utf-8", newline="")


def _lock(file: TextIOWrapper, out: str) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise NotResumableError(f"another run writes to {out} now") from None


def _read(text: str, out: str) -> Mapping[str, str]:
    try:
        begun = json.loads(text)
        return {name: str(begun[name]) for name in ("service", "ledger", "secret")}
    except (ValueError, TypeError, KeyError):
        raise _missing_resume_file(out) from None


def _missing_resume_file(out: str) -> NotResumableError:
    has_ledger = own_ledger(out).exists()
    there = own_ledger(out) if has_ledger else out
    told = f"{there} is there without {_resume_file(out)}, or with a damaged one"
    if has_ledger:
        return NotResumableError(
            f"{told}: restore that file. It has the secret by which customers are found in the ledger: "
            "without it, the requested customers are unknown, so do not send these rows again"
        )
    return NotResumableError(
        f"{told}, and the requested customers are not known: name a new file for the results"
    )


def reported(out: str, form: Format) -> dict[str, Past]:
    """Return what the results say of each customer; their last line counts.

    Raises:
        NotResumableError: A line was not written by this command.
    """
    found: dict[str, Past] = {}
    if not has_content(out):
        return found
    for number, line in enumerate(lines(out), 1):
        if number == 1 and line == form.head.rstrip("\n"):
            continue
        try:
            record = form.record(line)
            past = _past(record)
        except (ValueError, KeyError):
            raise NotResumableError(
                f"{out}, line {number}, is no result of this command: name a new file for the results"
            ) from None
        if "fiscal_code" in record:
            found[normalize_fiscal_code(record["fiscal_code"])] = past
    return found


def _past(record: Mapping[str, Any]) -> Past:
    if record["status"] in ("approved", "refused"):
        return "decided"
    if record["outcome"] == "unknown":
        return "unknown"
    return "new" if record["outcome"] in ("not_sent", "not_evaluated") else "failed"


@define
class PastRequests:
    """States of the customers by a ledger and by the results. Without either, each customer is new.

    It is for the plan, and for skipping customers who need no request. The ledger alone decides whether a
    request is sent: a call for a customer that it knows sends nothing.

    Args:
        reported: Last status of each customer in the results.
        ledger: The ledger, if there is one.
        key_of: A customer's key in it.
        is_own: The ledger belongs to these results alone, so that an entry in flight is of a killed run.
    """

    _reported: Mapping[str, Past] = field(factory=dict)
    _ledger: DecisionLedger | None = None
    _key_of: Callable[[str], str] = str
    _is_own: bool = False
    _states: dict[str, State] = field(init=False, factory=dict)
    _looked_up: int = field(init=False, default=0)
    _found: int = field(init=False, default=0)

    @contextmanager
    def looking_up(self) -> Iterator[LookUp]:
        """Yield a function that looks customers up, in an event loop that ends before anything is sent.

        Raises:
            UnusableError: The ledger cannot be read.
            NotResumableError: The ledger beside the results, or its secret, belongs to other results.
        """
        if (ledger := self._ledger) is None:
            yield lambda _: None
            return
        with asyncio.Runner() as runner:
            use = Opened(ledger, runner)
            try:
                # This creates it, also where no row can be sent.
                is_empty = use.run(_is_empty(ledger))
                yield lambda codes: None if is_empty else use.run(self._look_up(ledger, codes))
                reported = iter(self._reported)  # the rows may be others than before
                while self._is_own and self._looked_up and not self._found:
                    if not (codes := tuple(islice(reported, AT_ONCE))):
                        raise NotResumableError(_OTHERS)
                    use.run(self._look_up(ledger, codes))
            finally:
                runner.run(ledger.aclose())

    async def _look_up(self, ledger: DecisionLedger, codes: Sequence[str]) -> None:
        entries = await asyncio.gather(*(ledger.get(self._key_of(code)) for code in codes))
        self._looked_up += len(codes)
        self._found += sum(entry is not None for entry in entries)
        for code, entry in zip(codes, entries, strict=True):
            if entry is None or (self._reported.get(code) == "decided" and entry.source in ("", SERVICE)):
                continue  # the results may have a decision that the ledger could not take
            if self._is_own and entry.state is State.INFLIGHT:
                entry = await ledger.settle(  # noqa: PLW2901  (the same entry, as it stands now)
                    entry.key, token=entry.token, payload=entry.payload, settlement=_KILLED
                )
            self._states[code] = entry.state

    def past(self, fiscal_code: str) -> Past:
        """Return what the ledger knows, or the results where it has no entry, as after a purge."""
        known = self._reported.get(fiscal_code, "new")
        match self._states.get(fiscal_code):
            case State.APPROVED | State.REFUSED:
                return "decided"
            case State.UNKNOWN | State.LOST | State.HELD:
                return "failed" if known == "failed" else "unknown"
            case State.INFLIGHT:
                return "busy"
            case State.RELEASED if known == "unknown":  # a person has released it since
                return "new"
            case _:
                return known

    def is_reported(self, fiscal_code: str) -> bool:
        """Return False if the results lack what the ledger knows, as when a run was killed."""
        return self.past(fiscal_code) == self._reported.get(fiscal_code, "new")

    def entry(self, fiscal_code: str) -> str | None:
        """Return the start of the customer's key, by which a person finds the entry."""
        return None if self._ledger is None else short(self._key_of(fiscal_code))


_OTHERS = (
    "the ledger beside the results has entries, and none of a customer of these rows or results: one of the "
    "files OUT.ledger and OUT.resume belongs to other results. Restore it; or, if the rows are not those of "
    "before, name a new file for the results"
)


async def _is_empty(ledger: DecisionLedger) -> bool:
    async for _ in ledger.scan():
        return False
    return True
