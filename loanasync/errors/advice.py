"""What to do about a server that cannot be trusted, by the name of what was wrong with it."""

NO_TLS = {
    "ClientConnectorSSLError": "no TLS with this server; check base_url and its port",
    "ClientConnectorCertificateError: wrong host": "the certificate is for another host; check base_url",
    "ClientConnectorCertificateError: expired": (
        "the server's certificate has expired; ask the service, and check this machine's clock"
    ),
    "ClientConnectorCertificateError: not yet valid": (
        "the server's certificate is not valid yet; check this machine's clock"
    ),
    "ClientConnectorCertificateError: self-signed": (
        "the server's certificate is signed by itself; check base_url, or give its CA file as ssl"
    ),
    "ClientConnectorCertificateError: unknown authority": (
        "the server's certificate is of an authority unknown here; check base_url, or give its CA file as ssl"
    ),
    "ClientConnectorCertificateError: not accepted": (
        "the server's certificate is not accepted; check base_url"
    ),
}
