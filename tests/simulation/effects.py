"""Log handlers, spans and ciphers of the shop, which record what they are given, and sometimes raise."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace

from loanasync._telemetry.log import LOGGER
from simulation.world import World

_FAILS = {False: 12, True: 1}


def _may_fail(effect: str) -> None:
    """Raise an error, if the seed says so."""
    world = World.current
    if world is None or world.process is None or world.is_over or not world.plan.setup.effects_fail:
        return
    if world.choose(False, _FAILS, "effect", effect, world.now, world.process.random("effect")):  # noqa: FBT003
        world.note(world.process, f"{effect} raises")
        raise world.chance.pick((RuntimeError, KeyError), "error", world.now)(f"{effect} failed")


class LogHandler(logging.Handler):
    """A handler of the shop, which does not catch its own errors."""

    def emit(self, record: logging.LogRecord) -> None:
        world = World.current
        if world is not None and not world.is_over:
            extra = {name: value for name, value in vars(record).items() if name != "pathname"}
            world.record.show(record.getMessage(), f"{extra!r}")
            _may_fail("a log handler")


@contextmanager
def log_handler() -> Iterator[None]:
    """Add the handler to the logger of the package."""
    handler, level = LogHandler(), LOGGER.level
    LOGGER.addHandler(handler)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)


class _Span(trace.NonRecordingSpan):
    """A span that records."""

    def is_recording(self) -> bool:
        return True

    def set_attributes(self, attributes: Any) -> None:
        _show(attributes)
        _may_fail("a span")

    def set_attribute(self, key: str, value: Any) -> None:
        self.set_attributes({key: value})

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        del timestamp
        self.set_attributes({name: attributes})

    def set_status(self, status: Any, description: str | None = None) -> None:
        self.set_attributes({"status": getattr(status, "description", status), "text": description})

    def update_name(self, name: str) -> None:
        self.set_attributes({"name": name})

    def end(self, end_time: int | None = None) -> None:
        del end_time
        _may_fail("a span processor")


class Tracers(trace.TracerProvider):
    """A tracer provider whose spans record, and sometimes raise."""

    def get_tracer(self, *_: Any, **__: Any) -> trace.Tracer:
        return _Tracer()


class _Tracer(trace.NoOpTracer):
    def start_span(self, name: str, *_: Any, attributes: Any = None, **__: Any) -> trace.Span:
        _show({name: attributes})
        _may_fail("a sampler")
        world = World.current
        number = int(world.process.random("effect") * 2**60) if world and world.process else 0
        return _Span(
            trace.SpanContext(number + 1, number + 1, is_remote=False, trace_flags=trace.TraceFlags(1))
        )


def _show(value: object) -> None:
    world = World.current
    if world is not None and not world.is_over:
        world.record.show(f"{value!r}")


class ReversingCipher:
    """A cipher that turns bodies around. It is no secret, but its output is not JSON."""

    def encrypt(self, data: bytes, /) -> bytes:
        _may_fail("a cipher")
        return b"\xff" + data[::-1]

    def decrypt(self, token: bytes, /) -> bytes:
        _may_fail("a cipher")
        return token[:0:-1]
