"""The faults of connections: before they stand, while they are used, and while they are kept."""

from attrs import evolve

from support.faults.row import (
    AGAIN,
    GOES_WELL,
    LOST,
    MEND,
    NOT_SENT,
    NOTHING,
    PERSON,
    SETTLE,
    SILENT,
    UNREADABLE,
    Row,
    http,
)
from support.raw_server import Certificate, Drip, Play, RawServer

__all__ = ["CONNECTING", "HEADS", "KEEPING", "OTHER_CUSTOMER", "SENDING", "TRUSTING"]

READ, READ_HALF, FIN, RST = Play.READ, Play.READ_HALF, Play.FIN, Play.RST
SILENCE, AFTER_THE_CALL = Play.SILENCE, Play.AFTER_THE_CALL
OTHER_CUSTOMER = b"TSTXYZ00A00A000B"

CONNECTING = [
    Row(
        name="refused",
        fault="nobody listens",
        begin=RawServer.refuse,
        comes=NOT_SENT,
        seen=0,
        advice=AGAIN,
        says="no connection; check base_url and the network",
    ),
    Row(
        name="full-backlog",
        fault="no room among the waiting connections, for `Timeout.connect`",
        begin=RawServer.overfill,
        comes=NOT_SENT,
        seen=0,
        silent=True,
        advice=AGAIN,
    ),
    Row(
        name="never-accepted",
        fault="the system takes the connection, the service never does, for `Timeout.attempt`",
        begin=RawServer.listen,
        server=lambda a: ((READ, a.whole),),  # when it wakes up, it reads what was given up
        comes=SILENT,
        over_https=NOT_SENT,
        seen=0,
        silent=True,
        advice=SETTLE,
    ),
    Row(
        name="closed-at-once",
        fault="accepted and closed at once",
        server=lambda _: ((FIN,),),
        speaks_tls=False,
        comes=evolve(LOST, or_else=NOT_SENT),
        over_https=NOT_SENT,
        seen=0,
        advice=SETTLE,
    ),
    Row(
        name="reset-at-once",
        fault="accepted and reset at once",
        server=lambda _: ((RST,),),
        speaks_tls=False,
        comes=evolve(LOST, or_else=NOT_SENT),
        over_https=NOT_SENT,
        seen=0,
        advice=SETTLE,
    ),
]


def certificate(name: str, fault: str, shows: Certificate, says: str) -> Row:
    return Row(
        name=name,
        fault=fault,
        shows=shows,
        says=says,
        comes=NOT_SENT,
        seen=0,
        schemes=("https",),
        advice=MEND,
    )


TRUSTING = [
    certificate("wrong-host", "certificate of another host", Certificate.OTHER_HOST, "for another host"),
    certificate("expired", "certificate that has expired", Certificate.EXPIRED, "has expired"),
    certificate("not-yet", "certificate that is not valid yet", Certificate.NOT_YET, "is not valid yet"),
    certificate("self-signed", "certificate signed by itself", Certificate.SELF_SIGNED, "signed by itself"),
    certificate(
        "unknown-authority",
        "certificate of an unknown authority",
        Certificate.UNKNOWN,
        "of an authority unknown here",
    ),
    Row(
        name="no-tls",
        fault="the port does not speak TLS",
        server=lambda _: ((http("400 Bad Request"), FIN),),
        speaks_tls=False,
        comes=NOT_SENT,
        seen=0,
        schemes=("https",),
        advice=MEND,
        says="no TLS with this server",
    ),
]
SENDING = [
    Row(
        name="half-request-closed",
        fault="closed when half of the request was read",
        server=lambda _: ((READ_HALF, FIN),),
        comes=LOST,
        seen=0,
        advice=SETTLE,
    ),
    Row(
        name="half-request-reset",
        fault="reset when half of the request was read",
        server=lambda _: ((READ_HALF, RST),),
        comes=LOST,
        seen=0,
        advice=SETTLE,
    ),
    Row(
        name="request-closed",
        fault="closed when the request was read",
        server=lambda _: ((READ, FIN),),
        comes=LOST,
        advice=SETTLE,
    ),
    Row(
        name="request-reset",
        fault="reset when the request was read",
        server=lambda _: ((READ, RST),),
        comes=LOST,
        advice=SETTLE,
    ),
    Row(
        name="request-silence",
        fault="no answer, for `Timeout.attempt`",
        server=lambda _: ((READ, SILENCE),),
        comes=SILENT,
        silent=True,
        advice=SETTLE,
    ),
]
KEEPING = [
    Row(
        name="idle-closed",
        fault="the kept connection was closed before the call",
        before=lambda a: (READ, a.whole, AFTER_THE_CALL, FIN),
        server=lambda a: ((READ, a.whole),),
        comes=GOES_WELL,
        advice=NOTHING,
    ),
    Row(
        name="idle-408",
        fault="the same, with a 408 as a farewell",
        before=lambda a: (READ, a.whole, AFTER_THE_CALL, http("408 Request Timeout"), FIN),
        server=lambda a: ((READ, a.whole),),
        comes=GOES_WELL,
        advice=NOTHING,
    ),
    Row(
        name="kept-closed",
        fault="the kept connection is closed just as the request arrives",
        before=lambda a: (READ, a.whole),
        server=lambda _: ((READ_HALF, FIN),),
        comes=LOST,
        seen=0,
        advice=SETTLE,
    ),
    Row(
        name="kept-reset",
        fault="the kept connection is reset just as the request arrives",
        before=lambda a: (READ, a.whole),
        server=lambda _: ((READ_HALF, RST),),
        comes=LOST,
        seen=0,
        advice=SETTLE,
    ),
    Row(
        name="unasked",
        fault="an answer lies on the kept connection before anything was asked",
        before=lambda a: (READ, a.whole, AFTER_THE_CALL, a.whole),
        server=lambda a: ((READ, a.whole),),
        comes=GOES_WELL,
        advice=NOTHING,
    ),
    Row(
        name="other-customer",
        fault="the answer is about another customer",
        server=lambda a: ((READ, a.with_body(a.body.replace(a.about.encode(), OTHER_CUSTOMER))),),
        comes=evolve(UNREADABLE, outcome="unknown"),
        operations=("approve",),
        advice=PERSON,
    ),
]
HEADS = [
    Row(
        name="half-head-closed",
        fault="closed after half of the head",
        server=lambda a: ((READ, a.half_head, FIN),),
        comes=LOST,
        advice=SETTLE,
    ),
    Row(
        name="half-head-reset",
        fault="reset after half of the head",
        server=lambda a: ((READ, a.half_head, RST),),
        comes=LOST,
        advice=SETTLE,
    ),
    Row(
        name="half-head-silence",
        fault="silence after half of the head",
        server=lambda a: ((READ, a.half_head, SILENCE),),
        comes=SILENT,
        silent=True,
        advice=SETTLE,
    ),
    Row(
        name="head-drip",
        fault="the head comes byte by byte and never ends",
        server=lambda _: ((READ, b"HTTP/1.1 201 Created\r\nX-Slow: ", Drip(b"y")),),
        comes=SILENT,
        silent=True,
        advice=SETTLE,
    ),
    Row(
        name="patience",
        fault="102 again and again, and no answer",
        server=lambda _: ((READ, Drip(b"HTTP/1.1 102 Processing\r\n\r\n")),),
        comes=SILENT,
        silent=True,
        advice=SETTLE,
    ),
    Row(
        name="huge-head",
        fault="a head of 100 kB",
        server=lambda a: ((READ, a.with_body(a.body, "X-Large: " + "y" * 100_000)),),
        comes=LOST,
        advice=SETTLE,
    ),
    Row(
        name="two-lengths",
        fault="two different lengths",
        server=lambda a: (
            (READ, a.with_body(a.body, f"Content-Length: {len(a.body)}", "Content-Length: 5")),
        ),
        comes=LOST,
        advice=SETTLE,
    ),
    Row(
        name="no-http",
        fault="what comes is no HTTP",
        server=lambda _: ((READ, b"SSH-2.0-OpenSSH_9.6\r\n"),),
        comes=LOST,
        advice=SETTLE,
    ),
]
