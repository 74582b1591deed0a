"""Sends a request as it is written and reads the whole answer."""

import socket
import ssl
import time


# The certificate of the client, and ports whose connections begin with the PROXY protocol.
CERTIFICATE, PROXIED = [], set()


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body


def send(port, tls, method, target, headers, body=b"", timeout=2.0):
    """One request on a connection of its own. An answer of status 0 is a connection that ended without one."""
    host = next((value for name, value in headers if name.lower() == "host"), "localhost")
    lines = [f"{method} {target} HTTP/1.1"] + [f"{name}: {value}" for name, value in headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    upgrade = any(name.lower() == "upgrade" for name, _ in headers)
    if not upgrade:
        lines.append("Connection: close")
    data = ("\r\n".join(lines) + "\r\n\r\n").encode("latin1") + body
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
            if port in PROXIED:
                connection.sendall(b"PROXY TCP4 192.0.2.9 127.0.0.1 4000 443\r\n")
            if tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                if CERTIFICATE:
                    context.load_cert_chain(*CERTIFICATE)
                connection = context.wrap_socket(connection, server_hostname=host.split(":")[0] or None)
            connection.settimeout(timeout)
            connection.sendall(data)
            return read(connection, method, upgrade)
    except (OSError, ValueError):
        return Answer(0, [], b"")


def read(connection, method, upgrade):
    data, end = b"", time.monotonic() + 5
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return Answer(0, [], data)
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin1").split("\r\n")
    status = int(lines[0].split(" ")[1])
    headers = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])]
    named = dict(headers)
    if status == 101 and upgrade:
        connection.settimeout(0.3)
    length = int(named.get("content-length", -1))
    try:
        while method != "HEAD" and status not in (204, 304) and not 0 <= length <= len(body) and time.monotonic() < end:
            if named.get("transfer-encoding") == "chunked" and body.endswith(b"0\r\n\r\n"):
                break
            piece = connection.recv(65536)
            if not piece:
                break
            body += piece
    except TimeoutError:
        pass
    if named.get("transfer-encoding") == "chunked":
        body = unchunked(body)
    if status == 101 and body[:1] == b"\x81":
        # The first message of the WebSocket.
        length, start = (int.from_bytes(body[2:4], "big"), 4) if body[1:2] == b"\x7e" else (body[1], 2)
        body = body[start:start + length]
    return Answer(status, headers, body)


def unchunked(data):
    pieces = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        try:
            size = int(size.split(b";")[0], 16)
        except ValueError:
            break
        pieces, data = pieces + data[:size], data[size + 2:]
        if size == 0:
            break
    return pieces
