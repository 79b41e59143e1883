"""Captures all output of a call, such as errors, logs and spans, and searches it for planted values."""

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
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rich.pretty import pretty_repr

from loanasync import Telemetry
from loanasync._models.decisions import printable
from support.privacy.plants import found_in


@define
class Captured:
    """The captured output of calls."""

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
        """Arguments of a client whose spans and metrics are captured."""
        if not self._providers:
            nothing = Resource.get_empty()  # by default, the SDK searches the system for its description
            tracing = TracerProvider(resource=nothing, shutdown_on_exit=False)
            tracing.add_span_processor(SimpleSpanProcessor(self.spans))
            metering = MeterProvider([self.metrics], nothing, shutdown_on_exit=False)
            self._providers["telemetry"] = Telemetry(tracer_provider=tracing, meter_provider=metering)
        return self._providers

    def add(self, result: object) -> None:
        """Add the result of a call: a value or an error."""
        if isinstance(result, BaseException):
            self.errors.append(result)
        else:
            self.values.append(result)

    def foreign_frames(self) -> list[str]:
        """Return the files of aiohttp in tracebacks. Its frames contain the whole request."""
        frames = [frame for error in self.chained() for frame, _ in traceback.walk_tb(error.__traceback__)]
        return [frame.f_code.co_filename for frame in frames if "aiohttp" in frame.f_globals["__name__"]]

    def chained(self) -> Iterator[BaseException]:
        """Yield all errors, their causes and contexts, and the members of exception groups."""
        todo, done = [*self.errors, *self.logged], set[int]()
        while todo:
            error = todo.pop()
            if id(error) in done:
                continue
            done.add(id(error))
            yield error
            group = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
            todo += [each for each in (error.__cause__, error.__context__, *group) if each is not None]


def text_of(value: object) -> str:
    """Return the text of a value in a debugger, an error report, a notebook, and drawn by rich."""
    in_notebooks = getattr(type(value), "_repr_html_", None)
    try:
        drawn = pretty_repr(value, max_width=10_000)
        return f"{value!r} {value!s} {in_notebooks(value) if in_notebooks else ''} {drawn}"
    except Exception as error:  # noqa: BLE001  (the exception is output, too)
        return f"{error!r}"


def frames_of(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of the package in a traceback, including methods that attrs generated."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = str(frame.f_globals.get("__name__"))
        if name.partition(".")[0] == "loanasync" or "loanasync" in frame.f_code.co_filename.partition(" ")[2]:
            yield frame, line


def _texts(captured: Captured) -> Iterator[str]:
    for error in captured.chained():
        yield f"{text_of(error)} {error.args!r}"
        yield from traceback.format_exception_only(error)


def _attributes(captured: Captured) -> Iterator[str]:
    for error in captured.chained():
        yield repr(vars(error))  # notes are among them


def _without_texts_of_the_service(error: BaseException) -> BaseException:
    """Return an error as it is printed. Its pickle also contains the response and unlisted messages."""
    changes: dict[str, Any] = {"response": None} if hasattr(error, "response") else {}
    if hasattr(error, "problems"):
        changes["problems"] = tuple(map(printable, error.problems))
    return evolve(error, **changes) if changes else error  # type: ignore[misc]


def _pickles(captured: Captured) -> Iterator[str]:
    for error in captured.errors:
        for each in (copy.copy(error), copy.deepcopy(error)):
            yield f"{text_of(each)} {vars(each)!r}"
        bare = _without_texts_of_the_service(error)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            yield pickle.dumps(bare, protocol).decode("latin-1")
        yield from (repr(argument) for _, argument, _ in pickletools.genops(pickle.dumps(bare)))


def _tracebacks(captured: Captured) -> Iterator[str]:
    for error in captured.errors:
        yield "".join(traceback.format_exception(error))
    for error in captured.chained():
        own_frames = traceback.StackSummary.extract(frames_of(error), capture_locals=True)
        yield "".join(own_frames.format())


def _locals(captured: Captured) -> Iterator[str]:
    for error in captured.chained():
        for frame, _ in frames_of(error):
            for name, value in frame.f_locals.items():
                yield f"{name}={text_of(value)}"


def _values(captured: Captured) -> Iterator[str]:
    for value in captured.values:
        yield f"{text_of(value)} {[value]} {value}"


def _spans(captured: Captured) -> Iterator[str]:
    for span in captured.spans.get_finished_spans():
        yield span.to_json(indent=None)
        yield f"{span.name} {dict(span.attributes or {})} {span.status.description} {span.context}"
        yield from (f"{event.name} {dict(event.attributes or {})}" for event in span.events)
        yield from (f"{dict(link.attributes or {})}" for link in span.links)


def _metrics(captured: Captured) -> Iterator[str]:
    data = captured.metrics.get_metrics_data() if captured.metrics._collect is not None else None
    if data is not None:
        yield f"{data.to_json(indent=None)} {data!r}"


def _warned(captured: Captured) -> Iterator[str]:
    for warning in captured.warned:
        yield f"{warning} {warning.message!r} {warning.source!r}"
        yield warnings.formatwarning(
            warning.message, warning.category, warning.filename, warning.lineno, warning.line
        )


@frozen
class OutputKind:
    """One kind of output, and its texts."""

    name: str
    instead: str
    texts: Callable[[Captured], Iterator[str]]


OUTPUT_KINDS = (
    OutputKind(
        "text, `repr` and `args` of an error, its causes and contexts",
        "field names; listed messages of the service, `***` for its other texts",
        _texts,
    ),
    OutputKind("attributes and notes of an error", "the same", _attributes),
    OutputKind(
        "pickles and copies of an error",
        "the same; a pickle contains `response` and all messages of the service",
        _pickles,
    ),
    OutputKind("printed traceback with the local variables of loanasync's frames", "`***`", _tracebacks),
    OutputKind("these local variables themselves", "`***`", _locals),
    OutputKind(
        "printed model, decision or client; records of the testing tools",
        "`***`; fields of the order are shown",
        _values,
    ),
    OutputKind(
        "records of all loggers at DEBUG, also of asyncio and aiohttp",
        "no personal values",
        lambda captured: iter(captured.records),
    ),
    OutputKind("spans: names, attributes, events, links, status", "`REDACTED` in `url.full`", _spans),
    OutputKind("metrics and their attributes", "operation, outcome, status", _metrics),
    OutputKind("warnings, such as that of an unclosed client", "file and line of your code", _warned),
    OutputKind(
        "journal of the sandbox: entries, JSON lines, failed assertions",
        "`***`, and a pseudonym that changes with each run",
        lambda captured: iter(captured.journal),
    ),
    OutputKind(
        'pages of the sandbox, before "Show personal data" is clicked',
        "`***`; the customer's page shows the order token",
        lambda captured: iter(captured.pages),
    ),
    OutputKind(
        "output of `loanasync demo`",
        "`***`; the made-up `redirect_url` is shown",
        lambda captured: iter(captured.output),
    ),
)


def leaks(captured: Captured, kinds: tuple[OutputKind, ...] = OUTPUT_KINDS) -> list[str]:
    """Return the fields that each kind of output shows, with the end of the first text that shows one."""
    found = []
    for kind in kinds:
        texts = list(dict.fromkeys(kind.texts(captured)))  # copies of an error have the same texts
        if fields := found_in("\n".join(texts)):
            first = next((text for text in texts if found_in(text)), "")
            found.append(f"{kind.name}: {sorted(fields)}: {first[-300:]}")
    return found


class _Keeper(logging.Handler):
    """Keeps the texts of log records. The records would keep their arguments alive."""

    def __init__(self, captured: Captured) -> None:
        super().__init__(logging.DEBUG)
        self._seen = captured

    def emit(self, record: logging.LogRecord) -> None:
        self._seen.records.append(f"{self.format(record)} {vars(record)!r}")
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self._seen.logged.append(error)


@contextmanager
def capturing() -> Iterator[Captured]:
    """Capture all log records and warnings."""
    captured = Captured()
    keeper, root = _Keeper(captured), logging.getLogger()
    loggers = [root, *(logging.getLogger(name) for name in ("asyncio", "aiohttp", "loanasync"))]
    levels = [logger.level for logger in loggers]
    root.addHandler(keeper)
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield captured
            captured.warned += caught
    finally:
        root.removeHandler(keeper)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def searched() -> Iterator[Captured]:
    """Capture all output, and assert at the end that it shows no planted value."""
    with capturing() as captured:
        yield captured
    assert leaks(captured) == []
