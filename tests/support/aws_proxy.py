"""The quirks of aws_quirks.py before moto, for processes of others: the daemon, Terraform. A layer of ours, not AWS.

Its latency is moto's own and a little more; its answers are made here or there, and none is a recording.
"""

import http.client
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from typing_extensions import override

from tests.support.aws_quirks import Quirks

_SERVICE = re.compile(r"Credential=[^/]+/\d{8}/[^/]+/([^/]+)/aws4_request")
#: Beside x-amz… headers: what a protocol reads of an answer.
_KEPT = {"content-type"}
_NAMES = {"elasticloadbalancing": "elbv2"}


@contextmanager
def aws_proxy(url: str, quirks: Quirks) -> Iterator[str]:
    """Answer on a free port of loopback until the block ends; gives the URL."""
    there = urlsplit(url).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            said = {"content-type": "text/xml"}

            def forward(sent: bytes) -> tuple[int, bytes]:
                connection = http.client.HTTPConnection(there, timeout=60)
                try:
                    headers = {key: value for key, value in self.headers.items() if key.lower() != "content-length"}
                    connection.request(self.command, self.path, sent, headers)
                    answer = connection.getresponse()
                    said.update(
                        {
                            key: value
                            for key, value in answer.headers.items()
                            if key.lower() in _KEPT or key.lower().startswith("x-amz")
                        }
                    )
                    return answer.status, answer.read()
                finally:
                    connection.close()

            found = _SERVICE.search(self.headers.get("authorization", ""))
            service = _NAMES.get(found[1], found[1]) if found else ""
            answer = quirks.answer(service, body, dict(self.headers.items()), forward)
            self.send_response(answer.status)
            for key, value in {key.lower(): value for key, value in said.items()}.items():
                self.send_header(key, value)
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _any  # noqa: N815 - the server's own names

        @override
        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
