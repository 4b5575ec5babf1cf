"""What the fake services share: a server on a free port of loopback that answers in threads."""

import socket
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Loopback:
    """The server; a context manager.

    Attributes:
        url: where it listens.
        lock: held by answers that count something.
        closing: set when the server is about to end, for answers that hang until then.
        errors: what the fake itself got wrong, which fails the test.
    """

    def __init__(self, handler):
        """A server that is not started yet."""
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.errors = []
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.fake = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}
        )

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        assert not self.errors, f"the fake server broke: {self.errors}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    fake: Loopback

    def handle_error(self, request, client_address):
        del request
        # Clients hang up, after a timeout of theirs or killed; anything else is the fake's own.
        error = sys.exception()
        if not isinstance(error, ConnectionError):
            self.fake.errors.append(error or AssertionError(client_address))


class Handler(BaseHTTPRequestHandler):
    """Answers one client; `self.server.fake` is the fake it answers for."""

    protocol_version = "HTTP/1.1"
    # Else the body waits for the acknowledgement of the head, for 40 ms.
    disable_nagle_algorithm = True
    server: Any

    def log_message(self, *_):
        """Say nothing."""

    def reset(self):
        """Break the connection off."""
        # Closing with this option and nothing sent is a reset on the wire.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.rfile.close()
        self.connection.close()
