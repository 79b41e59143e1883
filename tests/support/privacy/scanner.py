"""Everything that can be seen of what happened, and the search of it for what was planted."""

import copy
import logging
import pickle
import pickletools
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from attrs import Factory, define, evolve, frozen
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from support.privacy.plants import found_in

__all__ = ["PLACES", "Place", "Seen", "leaks", "shown", "watching"]


@define
class Seen:
    """What somebody could look at after a call."""

    errors: list[BaseException] = Factory(list)
    values: list[object] = Factory(list)  # printed, or shown by a debugger
    records: list[str] = Factory(list)
    logged: list[BaseException] = Factory(list)
    warned: list[warnings.WarningMessage] = Factory(list)
    spans: InMemorySpanExporter = Factory(InMemorySpanExporter)
    metrics: InMemoryMetricReader = Factory(InMemoryMetricReader)
    journal: list[str] = Factory(list)
    pages: list[str] = Factory(list)
    output: list[str] = Factory(list)
    _providers: dict[str, Any] = Factory(dict)

    @property
    def providers(self) -> dict[str, Any]:
        """The client's arguments that let its spans and metrics be seen."""
        if not self._providers:
            tracing = TracerProvider(shutdown_on_exit=False)
            tracing.add_span_processor(SimpleSpanProcessor(self.spans))
            metering = MeterProvider([self.metrics], shutdown_on_exit=False)
            self._providers |= {"tracer_provider": tracing, "meter_provider": metering}
        return self._providers

    def add(self, result: object) -> None:
        """An error or a value, whatever a call came to."""
        if isinstance(result, BaseException):
            self.errors.append(result)
        else:
            self.values.append(result)

    def foreign_frames(self) -> list[str]:
        """Where aiohttp stands in a traceback: its frames hold the whole request."""
        frames = [frame for error in self.chained() for frame, _ in traceback.walk_tb(error.__traceback__)]
        return [frame.f_code.co_filename for frame in frames if "aiohttp" in frame.f_globals["__name__"]]

    def chained(self) -> Iterator[BaseException]:
        """All errors, with what they were caused by, what they came during, and what they are groups of."""
        todo, done = [*self.errors, *self.logged], set[int]()
        while todo:
            error = todo.pop()
            if id(error) in done:
                continue
            done.add(id(error))
            yield error
            group = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
            todo += [each for each in (error.__cause__, error.__context__, *group) if each is not None]


def shown(value: object) -> str:
    """What a debugger, an error report or a notebook shows of a value."""
    in_notebooks = getattr(type(value), "_repr_html_", None)
    try:
        return f"{value!r} {value!s} {in_notebooks(value) if in_notebooks else ''}"
    except Exception as error:  # noqa: BLE001  (whatever it is: a value that cannot be shown shows its error)
        return f"{error!r}"


def frames_of(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """The frames of the package in a traceback, those that attrs wrote for it too."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = str(frame.f_globals.get("__name__"))
        if name.partition(".")[0] == "loanasync" or "loanasync" in frame.f_code.co_filename.partition(" ")[2]:
            yield frame, line


def _texts(seen: Seen) -> Iterator[str]:
    for error in seen.chained():
        yield f"{shown(error)} {error.args!r}"
        yield from traceback.format_exception_only(error)


def _attributes(seen: Seen) -> Iterator[str]:
    for error in seen.chained():
        yield repr(vars(error))  # notes are among them


def _pickles(seen: Seen) -> Iterator[str]:
    for error in seen.errors:
        for each in (copy.copy(error), copy.deepcopy(error)):
            yield f"{shown(each)} {vars(each)!r}"
        # A response that an error carries may be the only copy: it is pickled whole.
        bare = evolve(error, response=None) if hasattr(error, "response") else error  # type: ignore[misc]
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            yield pickle.dumps(bare, protocol).decode("latin-1")
        yield from (repr(argument) for _, argument, _ in pickletools.genops(pickle.dumps(bare)))


def _tracebacks(seen: Seen) -> Iterator[str]:
    for error in seen.errors:
        yield "".join(traceback.format_exception(error))
    for error in seen.chained():
        ours = traceback.StackSummary.extract(frames_of(error), capture_locals=True)
        yield "".join(ours.format())


def _locals(seen: Seen) -> Iterator[str]:
    for error in seen.chained():
        for frame, _ in frames_of(error):
            for name, value in frame.f_locals.items():
                yield f"{name}={shown(value)}"


def _values(seen: Seen) -> Iterator[str]:
    for value in seen.values:
        yield f"{shown(value)} {[value]} {value}"


def _spans(seen: Seen) -> Iterator[str]:
    for span in seen.spans.get_finished_spans():
        yield span.to_json()
        yield f"{span.name} {dict(span.attributes or {})} {span.status.description} {span.context}"
        yield from (f"{event.name} {dict(event.attributes or {})}" for event in span.events)
        yield from (f"{dict(link.attributes or {})}" for link in span.links)


def _metrics(seen: Seen) -> Iterator[str]:
    data = seen.metrics.get_metrics_data() if seen.metrics._collect is not None else None
    if data is not None:
        yield f"{data.to_json()} {data!r}"


def _warned(seen: Seen) -> Iterator[str]:
    for warning in seen.warned:
        yield f"{warning} {warning.message!r} {warning.source!r}"
        yield warnings.formatwarning(
            warning.message, warning.category, warning.filename, warning.lineno, warning.line
        )


@frozen
class Place:
    """Somewhere a person's data could be seen."""

    name: str
    instead: str
    texts: Callable[[Seen], Iterator[str]]


PLACES = (
    Place(
        "the text, `repr` and `args` of an error, of its causes and contexts",
        "fields by name, the service's sentences with `***` for the person",
        _texts,
    ),
    Place("the attributes and notes of an error", "the same", _attributes),
    Place("pickles and copies of an error", "the same; a pickle has the error's `response` whole", _pickles),
    Place("a traceback, printed with the local variables of our frames", "`***`", _tracebacks),
    Place("the local variables themselves", "`***`", _locals),
    Place(
        "a printed model, decision or client, and what the testing tools recorded",
        "`***`; the order's fields are plain",
        _values,
    ),
    Place(
        "the records of all loggers at DEBUG, asyncio's and aiohttp's too",
        "nothing of ours",
        lambda seen: iter(seen.records),
    ),
    Place("spans: names, attributes, events, links, status", "`REDACTED` in `url.full`", _spans),
    Place("metrics and their attributes", "operation, outcome, status", _metrics),
    Place("warnings, such as the one of a forgotten client", "file and line of your code", _warned),
    Place(
        "the sandbox's journal: entries, JSON lines, failed assertions",
        "`***`, and a pseudonym for each run",
        lambda seen: iter(seen.journal),
    ),
    Place(
        "the sandbox's pages, before somebody asks to see the person",
        "`***`; the customer's own page names the order by its token",
        lambda seen: iter(seen.pages),
    ),
    Place(
        "what `loanasync demo` prints",
        "`***`; the made-up `redirect_url` is plain",
        lambda seen: iter(seen.output),
    ),
)


def leaks(seen: Seen, places: tuple[Place, ...] = PLACES) -> list[str]:
    """Which fields show where, and the end of the first text that shows one."""
    found = []
    for place in places:
        texts = list(place.texts(seen))
        if fields := found_in("\n".join(texts)):
            first = next((text for text in texts if found_in(text)), "")
            found.append(f"{place.name}: {sorted(fields)}: {first[-300:]}")
    return found


class _Keeper(logging.Handler):
    """Keeps texts and no records, whose arguments would keep alive what a test wants to see forgotten."""

    def __init__(self, seen: Seen) -> None:
        super().__init__(logging.DEBUG)
        self._seen = seen

    def emit(self, record: logging.LogRecord) -> None:
        self._seen.records.append(f"{self.format(record)} {vars(record)!r}")
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self._seen.logged.append(error)


@contextmanager
def watching() -> Iterator[Seen]:
    """Listen to every logger and every warning."""
    seen = Seen()
    keeper, root = _Keeper(seen), logging.getLogger()
    loggers = [root, *(logging.getLogger(name) for name in ("asyncio", "aiohttp", "loanasync"))]
    levels = [logger.level for logger in loggers]
    root.addHandler(keeper)
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield seen
            seen.warned += caught
    finally:
        root.removeHandler(keeper)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
