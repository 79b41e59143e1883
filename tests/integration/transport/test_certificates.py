"""Certificates are always verified; users choose which certificates are trusted."""

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from loanasync import Approved, ConfigurationError, ConnectError, LoanClient, TransportError
from loanasync._transport.tls import certificate_problem
from support.builders import FISCAL_CODE, approval_request
from support.direct_path import each_path
from support.faults.row import http
from support.raw_server import Certificate, Play, RawServer, authority, certificate, running

ADDRESS = "https://loans.example.com"
RESPONSE = (Play.READ, http("201 Created", b'{"approved": true}'))


def make(base_url: str = ADDRESS, **options: Any) -> LoanClient:
    return LoanClient(base_url, shop_id="s", auth_token="t", **options)


@pytest.fixture
def ca_file(tmp_path: Path) -> Path:
    file = tmp_path / "ca.pem"
    authority().cert_pem.write_to_path(str(file))
    return file


def checking() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority().configure_trust(context)
    return context


def blind() -> ssl.SSLContext:
    context = checking()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def nameless() -> ssl.SSLContext:
    context = checking()
    context.check_hostname = False
    return context


@pytest.mark.parametrize("kind", [str, Path])
async def test_a_ca_file_is_trusted_by_its_path(ca_file: Path, kind: type) -> None:
    async with (
        running(RawServer(RESPONSE, tls=certificate(Certificate.GOOD), scheme="https")) as server,
        make(server.base_url, ssl=kind(ca_file)) as client,
    ):
        assert isinstance(await client.approve(FISCAL_CODE, approval_request()), Approved)


async def test_default_trust_rejects_an_unknown_authority() -> None:
    server = RawServer(RESPONSE, tls=certificate(Certificate.GOOD), scheme="https")
    async with running(server), make(server.base_url) as client:
        with pytest.raises(ConnectError, match="is from an unknown authority"):
            await client.approve(FISCAL_CODE, approval_request())
    assert server.requests == []


async def test_context_may_contain_a_client_certificate() -> None:
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert("127.0.0.1").configure_cert(server_context)
    authority().configure_trust(server_context)
    server_context.verify_mode = ssl.CERT_REQUIRED
    client_context = checking()
    authority().issue_cert("shop@example.com").configure_cert(client_context)
    async with (
        running(RawServer(RESPONSE, tls=server_context, scheme="https")) as server,
        make(server.base_url, ssl=client_context) as client,
    ):
        assert isinstance(await client.approve(FISCAL_CODE, approval_request()), Approved)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    ("version", "outcomes"),
    [(ssl.TLSVersion.TLSv1_2, {"not_sent"}), (ssl.TLSVersion.TLSv1_3, {"not_sent", "unknown"})],
)
async def test_missing_client_certificate_has_the_outcome_of_the_tls_version(
    version: ssl.TLSVersion,
    outcomes: set[str],
    direct: bool,  # noqa: FBT001  (a parameter of the test)
) -> None:
    """With TLS 1.3, the server rejects it after the handshake, when the request may be written."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.maximum_version = version
    authority().issue_cert("127.0.0.1").configure_cert(server_context)
    authority().configure_trust(server_context)
    server_context.verify_mode = ssl.CERT_REQUIRED
    async with (
        running(RawServer(RESPONSE, tls=server_context, scheme="https")) as server,
        make(server.base_url, ssl=checking(), direct_connections=direct) as client,
    ):
        with pytest.raises(TransportError) as caught:
            await client.approve(FISCAL_CODE, approval_request())
    assert caught.value.outcome in outcomes
    assert server.requests == []


@pytest.mark.parametrize("context", [blind(), nameless()], ids=["no chains", "no host names"])
def test_context_that_does_not_verify_is_refused(context: ssl.SSLContext) -> None:
    with pytest.raises(ConfigurationError, match="ssl: must verify certificates and host names"):
        make(ssl=context)


@pytest.mark.parametrize("setting", [False, True, 0, "", b"ca.pem", ssl.CERT_NONE], ids=repr)
def test_ssl_setting_of_another_type_is_refused(setting: object) -> None:
    with pytest.raises(ConfigurationError, match=r"ssl: must be an ssl\.SSLContext or the path"):
        make(ssl=setting)


@pytest.mark.parametrize("name", ["missing.pem", "empty.pem", "text.pem", ".", "nul\0.pem"])
def test_ca_file_without_certificates_is_refused_by_the_constructor(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.pem").touch()
    (tmp_path / "text.pem").write_text("no certificate")
    with pytest.raises(ConfigurationError, match="ssl: must be a readable file with certificates"):
        make(ssl=f"{tmp_path}/{name}")


async def test_session_and_ssl_together_are_refused() -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(ConfigurationError, match="ssl: cannot be used with session="):
            make(session=session, ssl=checking())


# With other values than a context and True, aiohttp does not verify. A subclass may set one, and a later
# aiohttp may rename the attribute.
@pytest.mark.parametrize(
    "trust", [False, blind(), nameless(), None, 0, "default", "missing"], ids=lambda each: str(each)[:20]
)
async def test_users_session_that_may_not_verify_is_refused(
    trust: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    connector = aiohttp.TCPConnector()
    if trust == "missing":
        monkeypatch.delattr(connector, "_ssl")
    else:
        monkeypatch.setattr(connector, "_ssl", trust)
    async with aiohttp.ClientSession(connector=connector) as session:
        with pytest.raises(ConfigurationError, match="session: must verify certificates and host names"):
            make(session=session)


async def test_session_over_a_unix_socket_is_accepted(tmp_path: Path) -> None:
    connector = aiohttp.UnixConnector(str(tmp_path / "service"))
    async with aiohttp.ClientSession(connector=connector) as session:
        make(session=session)


@each_path
async def test_users_session_may_use_a_fingerprint(*, is_direct: bool) -> None:
    connector = aiohttp.TCPConnector(ssl=aiohttp.Fingerprint(bytes(32)))
    async with (
        running(RawServer(tls=certificate(Certificate.GOOD), scheme="https")) as server,
        aiohttp.ClientSession(connector=connector) as session,
    ):
        client = make(server.base_url, session=session, direct_connections=is_direct)
        with pytest.raises(ConnectError) as caught:
            await client.approve(FISCAL_CODE, approval_request())
    assert (caught.value.cause_type, caught.value.outcome) == ("ServerFingerprintMismatch", "not_sent")


def test_certificate_problem_without_a_text_is_not_accepted() -> None:
    assert certificate_problem(ssl.SSLCertVerificationError(1, "x")) == "not accepted"


def lax_certificates(*, has_key_id: bool) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return contexts of a server and a client whose certificates break a rule that Python 3.13 checks."""
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, each)]) for each in ("root", "leaf")]
    now = datetime.now(UTC)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    made = []
    key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    for subject, public, extensions in (
        (names[0], authority_key, [x509.BasicConstraints(ca=True, path_length=None)]),
        (names[1], key, [address, key_id] if has_key_id else [address]),
    ):
        builder = x509.CertificateBuilder(names[0], subject, public.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        made.append(builder.sign(authority_key, SHA256()))
    client = ssl.create_default_context(cadata=made[0].public_bytes(Encoding.PEM).decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # the default of Python 3.13
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with NamedTemporaryFile() as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        file.write(made[1].public_bytes(Encoding.PEM))
        file.flush()
        server.load_cert_chain(file.name)
    return server, client


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    ("has_key_id", "reason"),
    [(True, "Basic Constraints of CA cert not marked critical"), (False, "Missing Authority Key Identifier")],
)
async def test_certificate_that_breaks_a_strict_rule_has_its_reason(
    has_key_id: bool,  # noqa: FBT001  (a parameter of the test)
    reason: str,
    direct: bool,  # noqa: FBT001  (a parameter of the test)
) -> None:
    server_context, client_context = lax_certificates(has_key_id=has_key_id)
    async with (
        running(RawServer(RESPONSE, tls=server_context, scheme="https")) as server,
        make(server.base_url, ssl=client_context, direct_connections=direct) as client,
    ):
        with pytest.raises(ConnectError) as caught:
            await client.approve(FISCAL_CODE, approval_request())
    assert str(caught.value) == (
        "approve: the server's certificate, or that of its authority, breaks a rule; ask the service for a "
        f"correct one (ClientConnectorCertificateError: {reason}): "
        "request not sent; the call may be repeated"
    )
    assert server.requests == []
