"""Faults of connections: while they are made, while they are used, and while they are idle."""

from attrs import evolve

from support.faults.row import (
    CONNECTION_LOST,
    HALF_HEAD,
    NOT_SENT,
    READ_TIMEOUT,
    SUCCESS,
    UNREADABLE,
    WHOLE,
    Row,
    http,
)
from support.raw_server import Certificate, Drip, Play, RawServer

READ, READ_HALF, FIN, RST = Play.READ, Play.READ_HALF, Play.FIN, Play.RST
SILENCE, AFTER_THE_CALL = Play.SILENCE, Play.AFTER_THE_CALL
OTHER_CUSTOMER = b"TSTXYZ00A00A000B"

CONNECTING = [
    Row("refused", "connection refused", NOT_SENT, prepare=RawServer.refuse,
        message="no connection; check base_url and the network"),
    Row("full-backlog", "the server's queue of new connections is full, for `Timeout.connect`", NOT_SENT,
        prepare=RawServer.overfill),
    # The server reads the abandoned request later.
    Row("never-accepted", "accepted by the operating system, but never by the service, for `Timeout.attempt`",
        READ_TIMEOUT, (READ, WHOLE), prepare=RawServer.listen, expected_over_https=NOT_SENT, requests_read=0),
    Row("closed-at-once", "connection accepted and closed at once",
        evolve(CONNECTION_LOST, alternative=NOT_SENT), (FIN,), speaks_tls=False,
        expected_over_https=NOT_SENT),
    Row("reset-at-once", "connection accepted and reset at once",
        evolve(CONNECTION_LOST, alternative=NOT_SENT), (RST,), speaks_tls=False,
        expected_over_https=NOT_SENT),
]  # fmt: skip


def bad_certificate(name: str, fault: str, certificate: Certificate, message: str) -> Row:
    return Row(name, fault, NOT_SENT, certificate=certificate, message=message, schemes=("https",))


CERTIFICATES = [
    bad_certificate("wrong-host", "certificate for another host", Certificate.OTHER_HOST, "for another host"),
    bad_certificate("expired", "expired certificate", Certificate.EXPIRED, "has expired"),
    bad_certificate("not-yet", "certificate not yet valid", Certificate.NOT_YET, "is not valid yet"),
    bad_certificate("self-signed", "self-signed certificate", Certificate.SELF_SIGNED, "is self-signed"),
    bad_certificate("unknown-authority", "certificate of an unknown authority", Certificate.UNKNOWN,
        "is from an unknown authority"),
    Row("no-tls", "the port does not speak TLS", NOT_SENT, (http("400 Bad Request"), FIN), speaks_tls=False,
        schemes=("https",), message="TLS handshake failed"),
]  # fmt: skip
SENDING = [
    Row("half-request-closed", "connection closed after half of the request was read", CONNECTION_LOST,
        (READ_HALF, FIN)),
    Row("half-request-reset", "connection reset after half of the request was read", CONNECTION_LOST,
        (READ_HALF, RST)),
    Row("request-closed", "connection closed after the request was read", CONNECTION_LOST, (READ, FIN)),
    Row("request-reset", "connection reset after the request was read", CONNECTION_LOST, (READ, RST)),
    Row("request-silence", "no response, for `Timeout.attempt`", READ_TIMEOUT, (READ, SILENCE)),
]  # fmt: skip
KEEP_ALIVE = [
    Row("idle-closed", "the idle connection was closed before the call", SUCCESS, (READ, WHOLE),
        earlier_steps=(READ, WHOLE, AFTER_THE_CALL, FIN)),
    Row("idle-408", "the idle connection was closed before the call, with a 408", SUCCESS, (READ, WHOLE),
        earlier_steps=(READ, WHOLE, AFTER_THE_CALL, http("408 Request Timeout"), FIN)),
    Row("kept-closed", "the reused connection is closed while the request arrives", CONNECTION_LOST,
        (READ_HALF, FIN), earlier_steps=(READ, WHOLE)),
    Row("kept-reset", "the reused connection is reset while the request arrives", CONNECTION_LOST,
        (READ_HALF, RST), earlier_steps=(READ, WHOLE)),
    Row("unsolicited", "the idle connection has an unsolicited response", SUCCESS, (READ, WHOLE),
        earlier_steps=(READ, WHOLE, AFTER_THE_CALL, WHOLE)),
    Row("other-customer", "the response is about another customer", evolve(UNREADABLE, outcome="unknown"),
        (READ, lambda good: good.with_body(good.body.replace(good.fiscal_code.encode(), OTHER_CUSTOMER))),
        operations=("approve",)),
]  # fmt: skip
HEADS = [
    Row("half-head-closed", "connection closed after half of the headers", CONNECTION_LOST,
        (READ, HALF_HEAD, FIN)),
    Row("half-head-reset", "connection reset after half of the headers", CONNECTION_LOST,
        (READ, HALF_HEAD, RST)),
    Row("half-head-silence", "no more data after half of the headers", READ_TIMEOUT,
        (READ, HALF_HEAD, SILENCE)),
    Row("head-drip", "the headers arrive byte by byte and never end", READ_TIMEOUT,
        (READ, b"HTTP/1.1 201 Created\r\nX-Slow: ", Drip(b"y"))),
    Row("endless-102", "102 again and again, and no response", READ_TIMEOUT,
        (READ, Drip(b"HTTP/1.1 102 Processing\r\n\r\n"))),
    Row("huge-head", "headers of 100 kB", CONNECTION_LOST,
        (READ, lambda good: good.with_body(good.body, "X-Large: " + "y" * 100_000))),
    Row("two-lengths", "two different Content-Length headers", CONNECTION_LOST,
        (READ, lambda good: good.with_body(
            good.body, f"Content-Length: {len(good.body)}", "Content-Length: 5"))),
    Row("not-http", "the data received are not HTTP", CONNECTION_LOST, (READ, b"SSH-2.0-OpenSSH_9.6\r\n")),
]  # fmt: skip
