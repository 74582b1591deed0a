"""An upstream that answers with JSON of the request it got, on many ports: HTTP/1.1, and HTTP/2 without TLS."""

import asyncio
import base64
import collections
import hashlib
import json
import re
import ssl

import h2.config
import h2.connection
import h2.events
import h2.settings

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


ATTEMPTS = collections.Counter()
# Headers of all answers.
ANSWERED = []
# Connections that wait for a request.
IDLE = set()


def answer(port, method, target, headers, body):
    number = dict(map(tuple, headers)).get("x-compare-id")
    ATTEMPTS[number] += number is not None
    seen = {"port": port, "method": method, "target": target, "headers": sorted(headers, key=lambda pair: pair[0]),
            "body": body.decode("latin1"), "attempt": ATTEMPTS[number]}
    return json.dumps(seen).encode()


def count(number):
    """The attempts of a request, for the comparison itself. The number `close` ends the connections that are kept open:
    gateways send a request again that meets the end of one."""
    if number == "close":
        for writer in list(IDLE):
            writer.close()
        IDLE.clear()
    return json.dumps({"attempts": ATTEMPTS[number]}).encode()


# Pages in the place of errors have no errors of their own.
PAGES = re.compile(r"/(index|[45]\d[\dx]|error\w*)\.html$")


def wanted(headers, target):
    """The status that a request asks for; `none` is the end of the connection."""
    status = headers.get("x-compare-status", "")
    if PAGES.search(target.partition("?")[0]):
        return "200"
    return status if status == "none" or len(status) == 3 and status.isdigit() else "200"


def message(text):
    """A message of text of 126 to 65,535 bytes, as WebSocket frames it."""
    return b"\x81\x7e" + len(text).to_bytes(2, "big") + text


async def http1(reader, writer, port, first):
    head = first + await reader.readuntil(b"\r\n\r\n") if b"\r\n\r\n" not in first else first
    while True:
        head, _, rest = head.partition(b"\r\n\r\n")
        lines = head.decode("latin1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        headers = [[name.lower(), value.strip()] for name, _, value in (line.partition(":") for line in lines[1:])]
        named = dict(map(tuple, headers))
        body = rest
        if "chunked" in named.get("transfer-encoding", ""):
            while not body.endswith(b"0\r\n\r\n"):
                piece = await reader.read(65536)
                if not piece:
                    return
                body += piece
            pieces, left = b"", body
            while left:
                size, _, left = left.partition(b"\r\n")
                size = int(size.split(b";")[0], 16)
                pieces, left = pieces + left[:size], left[size + 2:]
                if size == 0:
                    break
            body = pieces
        else:
            length = int(named.get("content-length", 0))
            while len(body) < length:
                piece = await reader.read(65536)
                if not piece:
                    return
                body += piece
        if "websocket" in named.get("upgrade", "").lower():
            seen, key = answer(port, method, target, headers, body), named.get("sec-websocket-key")
            accept = b""
            if key:
                accept = b"Sec-WebSocket-Accept: " + base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()) + b"\r\n"
                seen = message(seen)
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nX-Upstream: yes\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" + accept + b"\r\n" + seen)
            await writer.drain()
            if key:
                # The gateway may still be answering the client.
                await asyncio.wait_for(reader.read(65536), 1)
            return
        number, status = named.get("x-compare-count"), wanted(named, target)
        content = count(number) if number else answer(port, method, target, headers, body)
        if status == "none":
            return
        ends = named.get("connection", "").lower() == "close"
        writer.write(
            f"HTTP/1.1 {status} As Wanted\r\n".encode() + b"Content-Type: application/json\r\nX-Upstream: yes\r\nServer: upstream\r\nContent-Length: "
            + str(len(content)).encode() + (b"\r\nConnection: close" if ends else b"")
            + "".join(f"\r\n{name.replace('_', '-')}: of {name}" for name in ANSWERED).encode()
            + b"\r\n\r\n" + (b"" if method == "HEAD" else content)
        )
        await writer.drain()
        if ends:
            return
        IDLE.add(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        IDLE.discard(writer)


def seen(port, headers, body):
    pseudo = {name: value for name, value in headers if name.startswith(":")}
    plain = [[name, value] for name, value in headers if not name.startswith(":")] + [["host", pseudo.get(":authority", "")]]
    return answer(port, pseudo[":method"], pseudo[":path"], plain, body)


async def http2(reader, writer, port, first):
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="latin1"))
    connection.initiate_connection()
    # WebSockets are opened by CONNECT (RFC 8441).
    connection.update_settings({h2.settings.SettingCodes.ENABLE_CONNECT_PROTOCOL: 1})
    streams, data = {}, first
    while True:
        for event in connection.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                if dict(event.headers).get(":protocol") == "websocket":
                    connection.send_headers(event.stream_id, [(":status", "200"), ("x-upstream", "yes")])
                    connection.send_data(event.stream_id, message(seen(port, event.headers, b"")))
                else:
                    streams[event.stream_id] = (event.headers, b"")
            elif isinstance(event, h2.events.DataReceived) and event.stream_id in streams:
                headers, body = streams[event.stream_id]
                streams[event.stream_id] = (headers, body + event.data)
                connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                if event.stream_id not in streams:
                    continue
                headers, body = streams.pop(event.stream_id)
                content, status = seen(port, headers, body), wanted(dict(headers), dict(headers)[":path"])
                if status == "none":
                    connection.reset_stream(event.stream_id)
                    continue
                reply = [(":status", status), ("content-type", "application/json"), ("x-upstream", "yes")]
                is_head = (":method", "HEAD") in headers
                connection.send_headers(event.stream_id, reply, end_stream=is_head)
                if not is_head:
                    connection.send_data(event.stream_id, content, end_stream=True)
        writer.write(connection.data_to_send())
        await writer.drain()
        IDLE.add(writer)
        data = await reader.read(65536)
        IDLE.discard(writer)
        if not data:
            return


async def serve(reader, writer):
    port = writer.get_extra_info("sockname")[1]
    try:
        first = await reader.read(65536)
        if first.startswith(PREFACE[: len(first)]) and first:
            await http2(reader, writer, port, first)
        elif first:
            await http1(reader, writer, port, first)
    except (asyncio.IncompleteReadError, TimeoutError, ConnectionError, ValueError, h2.exceptions.H2Error):
        pass
    finally:
        IDLE.discard(writer)
        writer.close()


def run(ports, tls_ports, certs, ready, answered=()):
    """Serves on these ports, some of them with TLS, until the process is ended."""
    ANSWERED.extend(answered)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certs / "server-ec.crt", certs / "server-ec.key")
    context.set_alpn_protocols(["h2", "http/1.1"])

    async def main():
        for port in ports:
            tls = context if port in tls_ports else None
            await asyncio.start_server(serve, "127.0.0.1", port, limit=1 << 20, ssl=tls)
        ready.set()
        await asyncio.Event().wait()

    asyncio.run(main())
