"""Resume of `approve-many`: the customers that earlier runs of the same command requested."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Literal, TypeAlias

from attrs import define, field

from loanasync._config import Shop
from loanasync._validation.rules import normalize_fiscal_code
from loanasync.cli.approve_many.results import DECIDED, Format
from loanasync.cli.ledger.open import OpenLedger, UnusableError, short
from loanasync.cli.rows.append import has_content, read_lines
from loanasync.ledger import Entry, Ledger, Settlement, State
from loanasync.ledger.administration import move_service
from loanasync.ledger.guard import LedgerGuard
from loanasync.ledger.keys import Place, places_of
from loanasync.ledger.model import FORMAT
from loanasync.ledger.resolution import find_entry

try:
    import fcntl
except ImportError:  # Windows: a second run is not noticed there, but its ledger repeats no request
    fcntl = None  # type: ignore[assignment]

# The state of a customer before this run. "failed" is not repeated; "busy": another command requests the
# approval at this moment; "new": the approval is to be requested.
PastStatus = Literal["decided", "unknown", "failed", "busy", "new"]
LookUp: TypeAlias = Callable[[Sequence[str]], object]

CREATION = "creation at "  # begins the service in the files of `loanasync create`
OWN_LEDGER = "beside the results"  # stored in OUT.resume, so it must not change
LOOKUP_BATCH = 64  # customers that are looked up in a ledger together
_KILLED = Settlement(state=State.UNKNOWN, note="in progress when an earlier run ended")


class NotResumableError(Exception):
    """Results that cannot be continued. The text says why, and what to do."""


def own_ledger(out: str) -> Path:
    """Return the path of the ledger that is used without ``--ledger``."""
    return Path(f"{out}.ledger")


def _resume_file(out: str) -> Path:
    return Path(f"{out}.resume")


def has_earlier_run(out: str) -> bool:
    """Return True if an earlier run left results or other files."""
    others = (_resume_file(out), _progress_file_of_0_1(out))
    return _has_results(out) or any(each.exists() for each in others)


def _has_results(out: str) -> bool:
    return has_content(out) or own_ledger(out).exists()


def _progress_file_of_0_1(out: str) -> Path:
    return Path(f"{out}.asked")


@define
class ResultsLock:
    """The lock on a results file.

    Args:
        keeps_resume_file: Keep ``OUT.resume`` when the run ends.
        begun: An earlier run, or this one, may have requested customers.
        ledger_id: Id of the ledger that it used, otherwise empty.
        file: The open ``OUT.resume``.
        members: Its content.
    """

    keeps_resume_file: bool
    begun: bool
    ledger_id: str
    _file: TextIOWrapper
    _members: dict[str, Any]

    def begin(self, ledger_id: str = "") -> None:
        """Keep ``OUT.resume``, and record there that the run begins to send.

        Call it after the ledger was created, before the run writes results or sends a request.

        Args:
            ledger_id: Id of the ledger, if there is one.

        Raises:
            OSError: The file cannot be written.
        """
        self.ledger_id = self._members["ledger_id"] = ledger_id
        self._record(begun=True)
        self.keeps_resume_file = True

    def end_unevaluated(self) -> None:
        """Record that no customer was evaluated in any run, so the next one may use another service."""
        with suppress(OSError):  # then the next run refuses another service
            self._record(begun=False)

    def _record(self, *, begun: bool) -> None:
        if self.begun != begun:
            self._members["begun"] = begun
            _write_resume_file(self._file, self._members)
            self.begun = begun


@contextmanager
def locked_results(out: str, service: str, ledger: str) -> Iterator[ResultsLock]:
    """Lock a results file for this run.

    ``OUT.resume`` contains the service and the ledger. It is written before anything is sent,
    and only its owner may read it. It stays locked until the run ends. A run that ends before it
    sends a request removes the file that it wrote.

    Args:
        out: Path of the results.
        service: Address and shop that the results belong to.
        ledger: Name of the ledger that the results belong to. `OWN_LEDGER` for the one beside them, empty
            without a ledger.

    Raises:
        NotResumableError: Another run is writing, the results belong to another service or ledger, or one of
            the files is missing.
        OSError: A file cannot be read or written.
    """
    if _progress_file_of_0_1(out).exists():
        raise NotResumableError(
            f"{_progress_file_of_0_1(out)} is a progress file of version 0.1.0, which this version cannot "
            "read: finish these results with version 0.1.0, or, if they were begun with --ledger, use the "
            "same --ledger with a new results file"
        )
    if _has_results(out) and not _resume_file(out).exists():
        raise _missing_resume_file(out)
    with closing(_open_locked(out)) as file:
        text = file.read()
        is_new = not text.endswith("\n")  # or an earlier run was killed before it wrote the line
        if is_new:
            if _has_results(out):
                raise _missing_resume_file(out)
            earlier: dict[str, Any] = {"format": FORMAT, "service": service, "ledger": ledger, "begun": False}
            _write_resume_file(file, earlier)
        else:
            earlier = _parse_resume_file(text, out)
        _check_earlier_run(earlier, out, service, ledger)
        if earlier["service"] != service:
            earlier["service"] = service
            _write_resume_file(file, earlier)
        lock = ResultsLock(not is_new, earlier["begun"], earlier.get("ledger_id", ""), file, earlier)
        try:
            yield lock
        finally:
            # The file is removed while it is locked. Windows has no such lock, so the file stays there.
            if fcntl is not None and not lock.keeps_resume_file and not _has_results(out):
                _resume_file(out).unlink(missing_ok=True)


def _check_earlier_run(earlier: Mapping[str, Any], out: str, service: str, ledger: str) -> None:
    """Raise an error if this run cannot know the customers that the earlier ones requested."""
    begun = earlier["begun"]
    if earlier["service"].startswith(CREATION) != service.startswith(CREATION):
        raise NotResumableError(
            f"{out} contains the results of another command: name a new results file with -o"
        )
    if earlier["service"] != service and (begun or earlier["ledger"] != ledger):
        raise NotResumableError(
            f"{out} contains results of another service or shop: name a new results file with -o"
            if has_content(out)
            else f"{_resume_file(out)} was written for another service or shop: name a new results file "
            "with -o"
        )
    if earlier["ledger"] != ledger:
        raise NotResumableError(
            f"{out if has_content(out) else _resume_file(out)} was begun with another ledger: use the "
            "same --ledger as in the first run, or none if the first run had none"
        )
    if begun and ledger == OWN_LEDGER and not has_content(str(own_ledger(out))):
        raise NotResumableError(
            f"{own_ledger(out)} is missing or empty. It lists the requested customers of {out}: "
            "restore it, and do not send these rows again without it"
        )


def _open_locked(out: str) -> TextIOWrapper:
    """Open and lock ``OUT.resume``. Create the file if it does not exist."""
    path = _resume_file(out)
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
    while True:
        file = os.fdopen(os.open(path, flags, 0o600), "r+", encoding="utf-8", newline="")
        try:
            _lock(file, out)
            if _is_at(path, file):
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # the run that wrote it has removed it in the meantime


def _is_at(path: Path, file: TextIOWrapper) -> bool:
    """Return False if the path no longer names this file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _lock(file: TextIOWrapper, out: str) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise NotResumableError(
            f"another run is writing to {out}: wait until it ends, then run this command again"
        ) from None


def _write_resume_file(file: TextIOWrapper, members: Mapping[str, Any]) -> None:
    """Replace the content of ``OUT.resume``."""
    file.seek(0)
    file.write(json.dumps(members) + "\n")
    file.truncate()
    file.flush()
    os.fsync(file.fileno())


def _parse_resume_file(text: str, out: str) -> dict[str, Any]:
    try:
        # A run that was killed while it wrote a shorter line left the end of the longer one.
        members: dict[str, Any] = json.loads(text.partition("\n")[0])
        members |= {name: str(members[name]) for name in ("service", "ledger")}
    except (ValueError, TypeError, KeyError):
        raise _missing_resume_file(out) from None
    if members.get("format") != FORMAT:
        raise NotResumableError(
            f"{_resume_file(out)} has the format of another version of loanasync: finish {out} with that "
            "version, and do not send its rows again without it"
        )
    return members


def _missing_resume_file(out: str) -> NotResumableError:
    has_ledger = own_ledger(out).exists()
    existing = own_ledger(out) if has_ledger else out
    message = f"{existing} exists, but {_resume_file(out)} is missing or damaged"
    if has_ledger:
        return NotResumableError(
            f"{message}: restore that file. Do not send these rows again without it, because it names the "
            "ledger of the requested customers"
        )
    return NotResumableError(
        f"{message}, so the requested customers are not known: name a new results file with -o"
    )


def read_results(out: str, form: Format) -> tuple[dict[str, PastStatus], dict[str, str], int]:
    """Return the status of each customer in the results, decisions from the ledger, and the number of lines.

    The last line of a customer counts, but after a decision only another decision. Decisions that the run
    read from the ledger and sent no request for are also returned by customer: the ledger may correct them.

    Raises:
        NotResumableError: A line was not written by this command.
    """
    found: dict[str, PastStatus] = {}
    from_ledger: dict[str, str] = {}
    number = 0
    for number, line in enumerate(read_lines(out) if has_content(out) else (), 1):
        if number == 1 and line == form.header.rstrip("\n"):
            continue
        try:
            record = form.record(line)
            status = _past_status(record)
            is_from_ledger = status == "decided" and str(record.get("attempts")) == "0"
        except (ValueError, KeyError):
            raise NotResumableError(
                f"{out}: line {number}: not a result of this command: name a new results file with -o"
            ) from None
        if "fiscal_code" not in record:
            continue
        code = normalize_fiscal_code(record["fiscal_code"])
        if status == "decided" or found.get(code) != "decided":
            found[code] = status
            from_ledger.pop(code, None)
            if is_from_ledger:
                from_ledger[code] = record["status"]
    return found, from_ledger, number


def _past_status(record: Mapping[str, Any]) -> PastStatus:
    if record["status"] in DECIDED:
        return "decided"
    if record["outcome"] == "unknown":
        return "unknown"
    return "new" if record["outcome"] in ("not_sent", "not_evaluated") else "failed"


@define
class PastRequests:
    """Statuses of the customers, from the ledger and the results. Without either, each customer is new.

    They are used for the plan, and to skip customers who need no request. Only the ledger decides whether a
    request is sent: a call for a customer that the ledger knows sends nothing.

    Args:
        reported: Last status of each customer in the results.
        guard: The ledger and its policy, if there is one.
        shop: The shop.
        is_own: The ledger belongs to these results alone, so an entry in flight was left by a killed run.
        from_ledger: The decisions in the results that came from the ledger, where a person may correct them.
        lock: The lock on the results, if they can be resumed.
    """

    _reported: Mapping[str, PastStatus] = field(factory=dict)
    _guard: LedgerGuard | None = None
    _shop: Shop | None = None
    _is_own: bool = False
    _from_ledger: Mapping[str, str] = field(factory=dict)
    _lock: ResultsLock | None = None
    _states: dict[str, State] = field(init=False, factory=dict)
    _secrets: tuple[bytes, ...] = field(init=False, default=())

    @contextmanager
    def _opened(self) -> Iterator[OpenLedger | None]:
        """Open the ledger in an event loop that ends with the block."""
        if self._guard is None:
            yield None
            return
        ledger = self._guard.ledger
        with asyncio.Runner() as runner:
            try:
                yield OpenLedger(ledger, runner, self._guard.policy)
            finally:
                runner.run(ledger.aclose())

    @contextmanager
    def lookups(self) -> Iterator[LookUp]:
        """Yield a function that looks customers up, in an event loop that ends before anything is sent.

        Raises:
            UnusableError: The ledger cannot be read, or does not fit.
            NotResumableError: The ledger beside the results belongs to other results.
        """
        with self._opened() as use:
            # A ledger beside the results is not created here: perhaps no row can be sent.
            is_new = self._is_own and (self._lock is None or not self._lock.begun)
            if use is None or is_new:
                yield lambda _: None
                return
            self._check_results(use)
            self._use_keys(use)
            yield lambda codes: use.run(self._look_up(use.ledger, codes))

    def open_ledger(self) -> str:
        """Open the ledger, and create the one beside the results if it does not exist; return its id.

        Raises:
            UnusableError: The ledger does not fit, or cannot be created.
        """
        with self._opened() as use:
            if use is None or self._shop is None:
                return ""
            if self._is_own and self._lock is not None and not self._lock.begun:
                # No customer was evaluated: the address of the service may have been wrong.
                with suppress(
                    UnusableError
                ):  # the ledger is missing, or the next line raises the error again
                    use.run(move_service(use.ledger, self._shop.base_url))
            self._use_keys(use)
            return use.run(use.ledger.header()).id

    def _check_results(self, use: OpenLedger) -> None:
        """Raise an error if the ledger belongs to other results."""
        if not self._is_own or self._lock is None:
            return
        header = use.run(use.ledger.header())
        if header.id != self._lock.ledger_id:
            raise NotResumableError(
                f"{header.name} is not the ledger that OUT.resume names, so one of them belongs to other "
                "results: restore the right file"
            )

    def _use_keys(self, use: OpenLedger) -> None:
        assert self._guard is not None  # noqa: S101  (`use` is its ledger)
        self._secrets = use.run(self._guard.keys()).secrets

    def _places(self, fiscal_code: str) -> tuple[Place, ...]:
        assert self._shop is not None  # noqa: S101  (with a ledger there is a shop)
        assert self._guard is not None  # noqa: S101  (only called with a ledger)
        return places_of(self._shop.shop_id, fiscal_code, self._secrets, self._guard.policy)

    async def _look_up(self, ledger: Ledger, codes: Sequence[str]) -> None:
        places = (self._places(code) for code in codes)
        found = await asyncio.gather(*(find_entry(ledger, each, by_order=False) for each in places))
        for code, entry in zip(codes, found, strict=True):
            if not isinstance(entry, Entry):
                continue
            if self._reported.get(code) == "decided" and code not in self._from_ledger:
                continue  # the results contain the service's decision, even if the ledger could not record it
            if self._is_own and entry.state is State.INFLIGHT:
                entry = await ledger.settle(  # noqa: PLW2901  (the settled state of the same entry)
                    entry.key, token=entry.token, payload=entry.payload, settlement=_KILLED
                )
            self._states[code] = entry.state

    def status(self, fiscal_code: str) -> PastStatus:
        """Return the status in the ledger; without an entry there, such as after a purge, in the results."""
        reported = self._reported.get(fiscal_code, "new")
        match self._states.get(fiscal_code):
            case State.APPROVED | State.REFUSED:
                return "decided"
            case State.UNKNOWN | State.LOST | State.HELD:
                return "failed" if reported == "failed" else "unknown"
            case State.INFLIGHT:
                return "busy"
            case State.RELEASED if reported in ("unknown", "decided"):  # a person has released it since then
                return "new"
            case _:
                return reported

    def is_reported(self, fiscal_code: str) -> bool:
        """Return False if the results lack the ledger's outcome, as after a kill or a person's correction."""
        decision = self._from_ledger.get(fiscal_code)
        is_corrected = decision is not None and self._states.get(fiscal_code, decision) != decision
        return not is_corrected and self.status(fiscal_code) == self._reported.get(fiscal_code, "new")

    def has_result(self, fiscal_code: str) -> bool:
        """Return True if the results of earlier runs contain the customer."""
        return fiscal_code in self._reported

    def entry_key(self, fiscal_code: str) -> str | None:
        """Return the start of the customer's key, by which a person finds the entry in the ledger."""
        return None if self._guard is None else short(self._places(fiscal_code)[0].key)
