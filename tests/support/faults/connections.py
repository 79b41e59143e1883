"""Faults of connections: while they are made, while they are used, and while they are idle."""

from attrs import evolve

from support.faults.row import (
    CONNECTION_LOST,
    NOT_SENT,
    READ_TIMEOUT,
    SUCCESS,
    UNREADABLE,
    Row,
    http,
)
from support.raw_server import Certificate, Drip, Play, RawServer

__all__ = ["CERTIFICATES", "CONNECTING", "HEADS", "KEEP_ALIVE", "OTHER_CUSTOMER", "SENDING"]

READ, READ_HALF, FIN, RST = Play.READ, Play.READ_HALF, Play.FIN, Play.RST
SILENCE, AFTER_THE_CALL = Play.SILENCE, Play.AFTER_THE_CALL
OTHER_CUSTOMER = b"TSTXYZ00A00A000B"

CONNECTING = [
    Row(
        name="refused",
        fault="connection refused",
        prepare=RawServer.refuse,
        expected=NOT_SENT,
        requests_read=0,
        message="no connection; check base_url and the network",
    ),
    Row(
        name="full-backlog",
        fault="the server's queue of new connections is full, for `Timeout.connect`",
        prepare=RawServer.overfill,
        expected=NOT_SENT,
        requests_read=0,
        times_out=True,
    ),
    Row(
        name="never-accepted",
        fault="accepted by the operating system, but never by the service, for `Timeout.attempt`",
        prepare=RawServer.listen,
        server=lambda good: ((READ, good.whole),),  # it still reads the abandoned request later
        expected=READ_TIMEOUT,
        expected_over_https=NOT_SENT,
        requests_read=0,
        times_out=True,
    ),
    Row(
        name="closed-at-once",
        fault="connection accepted and closed at once",
        server=lambda _: ((FIN,),),
        speaks_tls=False,
        expected=evolve(CONNECTION_LOST, alternative=NOT_SENT),
        expected_over_https=NOT_SENT,
        requests_read=0,
    ),
    Row(
        name="reset-at-once",
        fault="connection accepted and reset at once",
        server=lambda _: ((RST,),),
        speaks_tls=False,
        expected=evolve(CONNECTION_LOST, alternative=NOT_SENT),
        expected_over_https=NOT_SENT,
        requests_read=0,
    ),
]


def bad_certificate(name: str, fault: str, certificate: Certificate, message: str) -> Row:
    return Row(
        name=name,
        fault=fault,
        certificate=certificate,
        message=message,
        expected=NOT_SENT,
        requests_read=0,
        schemes=("https",),
    )


CERTIFICATES = [
    bad_certificate("wrong-host", "certificate for another host", Certificate.OTHER_HOST, "for another host"),
    bad_certificate("expired", "expired certificate", Certificate.EXPIRED, "has expired"),
    bad_certificate("not-yet", "certificate not yet valid", Certificate.NOT_YET, "is not valid yet"),
    bad_certificate("self-signed", "self-signed certificate", Certificate.SELF_SIGNED, "is self-signed"),
    bad_certificate(
        "unknown-authority",
        "certificate of an unknown authority",
        Certificate.UNKNOWN,
        "is from an unknown authority",
    ),
    Row(
        name="no-tls",
        fault="the port does not speak TLS",
        server=lambda _: ((http("400 Bad Request"), FIN),),
        speaks_tls=False,
        expected=NOT_SENT,
        requests_read=0,
        schemes=("https",),
        message="TLS handshake failed",
    ),
]
SENDING = [
    Row(
        name="half-request-closed",
        fault="connection closed after half of the request was read",
        server=lambda _: ((READ_HALF, FIN),),
        expected=CONNECTION_LOST,
        requests_read=0,
    ),
    Row(
        name="half-request-reset",
        fault="connection reset after half of the request was read",
        server=lambda _: ((READ_HALF, RST),),
        expected=CONNECTION_LOST,
        requests_read=0,
    ),
    Row(
        name="request-closed",
        fault="connection closed after the request was read",
        server=lambda _: ((READ, FIN),),
        expected=CONNECTION_LOST,
    ),
    Row(
        name="request-reset",
        fault="connection reset after the request was read",
        server=lambda _: ((READ, RST),),
        expected=CONNECTION_LOST,
    ),
    Row(
        name="request-silence",
        fault="no response, for `Timeout.attempt`",
        server=lambda _: ((READ, SILENCE),),
        expected=READ_TIMEOUT,
        times_out=True,
    ),
]
KEEP_ALIVE = [
    Row(
        name="idle-closed",
        fault="the idle connection was closed before the call",
        earlier_exchange=lambda good: (READ, good.whole, AFTER_THE_CALL, FIN),
        server=lambda good: ((READ, good.whole),),
        expected=SUCCESS,
    ),
    Row(
        name="idle-408",
        fault="the idle connection was closed before the call, with a 408",
        earlier_exchange=lambda good: (READ, good.whole, AFTER_THE_CALL, http("408 Request Timeout"), FIN),
        server=lambda good: ((READ, good.whole),),
        expected=SUCCESS,
    ),
    Row(
        name="kept-closed",
        fault="the reused connection is closed while the request arrives",
        earlier_exchange=lambda good: (READ, good.whole),
        server=lambda _: ((READ_HALF, FIN),),
        expected=CONNECTION_LOST,
        requests_read=0,
    ),
    Row(
        name="kept-reset",
        fault="the reused connection is reset while the request arrives",
        earlier_exchange=lambda good: (READ, good.whole),
        server=lambda _: ((READ_HALF, RST),),
        expected=CONNECTION_LOST,
        requests_read=0,
    ),
    Row(
        name="unsolicited",
        fault="the idle connection has an unsolicited response",
        earlier_exchange=lambda good: (READ, good.whole, AFTER_THE_CALL, good.whole),
        server=lambda good: ((READ, good.whole),),
        expected=SUCCESS,
    ),
    Row(
        name="other-customer",
        fault="the response is about another customer",
        server=lambda good: (
            (READ, good.with_body(good.body.replace(good.fiscal_code.encode(), OTHER_CUSTOMER))),
        ),
        expected=evolve(UNREADABLE, outcome="unknown"),
        operations=("approve",),
    ),
]
HEADS = [
    Row(
        name="half-head-closed",
        fault="connection closed after half of the headers",
        server=lambda good: ((READ, good.half_head, FIN),),
        expected=CONNECTION_LOST,
    ),
    Row(
        name="half-head-reset",
        fault="connection reset after half of the headers",
        server=lambda good: ((READ, good.half_head, RST),),
        expected=CONNECTION_LOST,
    ),
    Row(
        name="half-head-silence",
        fault="no more data after half of the headers",
        server=lambda good: ((READ, good.half_head, SILENCE),),
        expected=READ_TIMEOUT,
        times_out=True,
    ),
    Row(
        name="head-drip",
        fault="the headers arrive byte by byte and never end",
        server=lambda _: ((READ, b"HTTP/1.1 201 Created\r\nX-Slow: ", Drip(b"y")),),
        expected=READ_TIMEOUT,
        times_out=True,
    ),
    Row(
        name="endless-102",
        fault="102 again and again, and no response",
        server=lambda _: ((READ, Drip(b"HTTP/1.1 102 Processing\r\n\r\n")),),
        expected=READ_TIMEOUT,
        times_out=True,
    ),
    Row(
        name="huge-head",
        fault="headers of 100 kB",
        server=lambda good: ((READ, good.with_body(good.body, "X-Large: " + "y" * 100_000)),),
        expected=CONNECTION_LOST,
    ),
    Row(
        name="two-lengths",
        fault="two different Content-Length headers",
        server=lambda good: (
            (READ, good.with_body(good.body, f"Content-Length: {len(good.body)}", "Content-Length: 5")),
        ),
        expected=CONNECTION_LOST,
    ),
    Row(
        name="not-http",
        fault="the data received are not HTTP",
        server=lambda _: ((READ, b"SSH-2.0-OpenSSH_9.6\r\n"),),
        expected=CONNECTION_LOST,
    ),
]
