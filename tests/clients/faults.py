"""Requests that go wrong, many of them: faults.py COUNT PORT HTTP TLS TCP UDP [PROTOCOL...]

COUNT requests (0: one of each kind, by HTTP/1) for each of HTTP/1, HTTP/2, HTTP/3, TLS, WebSocket, TCP and UDP, most of which an upstream here, on PORT,
spoils in one of many ways, or their client does. HTTP to UDP are the gateway's addresses. Prints a line for each
protocol: how many there were and how many did not end as they must, with the first of them.

What stalls is waited for: time-outs must be short on the routes for /stall* and /ws/stall, and long on all others, so
that a busy machine changes nothing.
"""

import asyncio
import collections
import hashlib
import base64
import os
import random
import socket
import ssl
import struct
import sys

import h2.config
import h2.connection
import h2.events
import h2.exceptions

COUNT, PORT = int(sys.argv[1]), int(sys.argv[2])
HTTP, TLS, TCP, UDP = ((host, int(port)) for host, port in (text.split(":") for text in sys.argv[3:7]))
CERTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "certs")
# Side by side. What stalls takes its time, so that many are needed.
TASKS = 100
# One that is not over by then hangs.
PATIENCE = 60


def reset(writer):
    try:
        sock = writer.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        # It is closed already.
        pass
    writer.transport.abort()


# The upstream. What it does to a request is the last part of its path.

BODY = b"x" * 3000
FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n" + BODY
RAW = {
    "garbage": b"\x00\x01\x02\x03garbage\xff\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
    "status": b"HTTP/1.1 abc OK\r\n\r\n",
    "lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 5x\r\n\r\nhello",
    "both": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
    "fold": b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 0\r\n\r\n",
    "space": b"HTTP/1.1 200 OK\r\nA : b\r\nContent-Length: 0\r\n\r\n",
    "switch": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    "interims": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 40,
    "long": b"HTTP/1.1 200 OK\r\nA: " + b"a" * 200_000,
    "many": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 5000,
}
CUT = {
    "cut-head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "cut-body": b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n" + BODY[:1000],
    "cut-chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n" + BODY[:100],
    "cut-chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n" + BODY[:100] + b"\r\n",
    "bad-chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n" + BODY[:100] + b"\r\nzz\r\n",
}
# What the client must see: a status, or that the response is not whole.
BROKEN = "broken"
WANTED = {
    "fine": {200}, "close": {502}, "reset": {502}, "half": {502}, "stall": {504}, "stall-head": {504},
    "stall-body": {BROKEN, 504}, "early": {502}, "surplus": {200}, "refused": {502},
    "cut-head": {502}, "cut-head-reset": {502}, **{kind: {502} for kind in RAW},
    # Where the fault comes with the head, or soon after it in a short response, there is no response yet.
    "bad-chunk": {BROKEN, 502}, "bad-chunk-reset": {BROKEN, 502},
    **{kind + end: {BROKEN} for kind in ("cut-chunk", "cut-chunks") for end in ("", "-reset")},
    "cut-body": {BROKEN, 502}, "cut-body-reset": {BROKEN, 502},
}
KINDS = [kind for kind in WANTED]


async def upstream(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            kind = head.split(b" ", 2)[1].decode().lstrip("/").split("/")[0]
            if kind.startswith("ws"):
                return await echo(head, reader, writer)
            if kind == "early":
                return reset(writer)
            if b"chunked" in head.lower():
                await reader.readuntil(b"0\r\n\r\n")
            elif (at := head.lower().find(b"content-length:")) >= 0:
                await reader.readexactly(int(head[at + 15 : head.index(b"\r\n", at)]))
            if kind in ("fine", "surplus"):
                writer.write(FINE + (b"surplus" if kind == "surplus" else b""))
                await writer.drain()
            elif kind in RAW:
                writer.write(RAW[kind])
                await reader.read()
                return
            elif (cut := kind.removesuffix("-reset")) in CUT:
                writer.write(CUT[cut])
                await writer.drain()
                if cut != kind:
                    await asyncio.sleep(0.002)
                    reset(writer)
                return
            elif kind == "reset":
                return reset(writer)
            elif kind == "half":
                writer.write_eof()
                await reader.read()
                return
            elif kind.startswith("stall"):
                part = {"stall-head": b"HTTP/1.1 200 OK\r\nA: b", "stall-body": FINE[:500]}.get(kind, b"")
                writer.write(part)
                await reader.read()
                return
            else:
                return
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass
    finally:
        writer.close()


async def echo(head, reader, writer):
    """A server of WebSocket that ends in one of several ways after some bytes."""
    key = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key:"))[18:].strip()
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    writer.write(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )
    data = await reader.read(1000)
    if b"reset" in data:
        return reset(writer)
    if b"garbage" in data:
        writer.write(os.urandom(500))
    if b"stall" in data:
        await reader.read()
        return
    writer.write(data)
    await writer.drain()
    if b"close" not in data:
        await reader.read()


async def raw_upstream(reader, writer):
    """The same for streams of bytes."""
    try:
        data = await reader.read(1000)
        if b"reset" in data:
            return reset(writer)
        if b"half" in data:
            writer.write(data)
            writer.write_eof()
            await reader.read()
        elif b"stall" in data:
            await reader.read()
        elif b"fine" in data:
            writer.write(data)
            await writer.drain()
            await reader.read()
    except OSError:
        pass
    finally:
        writer.close()


# The clients. Each gives what it saw.


async def read_answer(reader):
    status = 100
    while status < 200:
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            await reader.readexactly(size + 2)
        await reader.readexactly(2)
    elif (at := lower.find(b"content-length:")) >= 0:
        await reader.readexactly(int(lower[at + 15 : lower.index(b"\r\n", at)]))
    return status, b"connection: close" not in lower


class Http1:
    """Keeps its connection while it can."""

    def __init__(self, secure=False):
        self.secure, self.pair = secure, None

    async def open(self):
        if self.pair is None:
            address = TLS if self.secure else HTTP
            self.pair = await asyncio.open_connection(
                *address, ssl=CONTEXT if self.secure else None, server_hostname="server.test" if self.secure else None
            )
        return self.pair

    def drop(self):
        if self.pair:
            reset(self.pair[1])
            self.pair = None

    async def ask(self, kind):
        reader, writer = await self.open()
        if random.random() < 0.3:
            body = b"y" * random.choice((10, 100_000))
            writer.write(b"POST /%s HTTP/1.1\r\nHost: server.test\r\nContent-Length: %d\r\n\r\n" % (kind.encode(), len(body)))
            writer.write(body)
        else:
            writer.write(b"GET /%s HTTP/1.1\r\nHost: server.test\r\n\r\n" % kind.encode())
        try:
            status, keep = await read_answer(reader)
        except (OSError, asyncio.IncompleteReadError, ValueError, ssl.SSLError):
            self.drop()
            return BROKEN
        if not keep:
            self.drop()
        return status

    async def misbehave(self):
        """Leaves at any point; there is nothing to be seen of it."""
        self.drop()
        reader, writer = await self.open()
        way = random.randrange(6)
        if way == 0:
            writer.write(b"POST /fine HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nabc")
        elif way == 1:
            writer.write(b"GET /fine HT")
        elif way == 2:
            writer.write(b"POST /fine HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab")
        elif way == 3:
            writer.write(b"GET /stall HTTP/1.1\r\nHost: a\r\n\r\n")
        elif way == 4:
            writer.write(b"GET /fine HTTP/1.1\r\nHost: a\r\n\r\n" * 20)
            await reader.read(100)
        else:
            writer.write(os.urandom(300))
        await asyncio.sleep(0.001)
        if way == 5 and not self.secure:
            writer.write_eof()
            await reader.read()
        self.drop()


class Http2:
    """One request at a time on a connection."""

    def __init__(self, secure=False):
        self.conn, self.secure = None, secure

    async def open(self):
        if self.conn is None:
            if self.secure:
                self.pair = await asyncio.open_connection(*TLS, ssl=CONTEXT2, server_hostname="server.test")
            else:
                self.pair = await asyncio.open_connection(*HTTP)
            self.conn = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
            self.conn.initiate_connection()
        return self.pair

    def drop(self):
        if self.conn:
            reset(self.pair[1])
            self.conn = None

    async def ask(self, kind, leave=None):
        reader, writer = await self.open()
        conn = self.conn
        stream = conn.get_next_available_stream_id()
        body = random.random() < 0.3
        head = [(":method", "POST" if body else "GET"), (":scheme", "http"), (":authority", "server.test"), (":path", f"/{kind}")]
        conn.send_headers(stream, head, end_stream=not body)
        if body:
            conn.send_data(stream, b"y" * random.choice((10, 10_000)), end_stream=leave != "body")
        if leave == "body":
            conn.reset_stream(stream, 8)
        writer.write(conn.data_to_send())
        if leave == "away":
            return self.drop()
        if leave == "body":
            return None
        status, over = None, False
        try:
            while not over:
                data = await reader.read(65536)
                if not data:
                    self.drop()
                    return BROKEN
                for event in conn.receive_data(data):
                    if isinstance(event, h2.events.DataReceived):
                        conn.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    if isinstance(event, h2.events.ConnectionTerminated):
                        # As after so many requests; those that have begun are answered.
                        going = event.error_code
                        if going:
                            self.drop()
                            return f"GOAWAY {going}"
                    if getattr(event, "stream_id", None) != stream:
                        continue
                    if isinstance(event, h2.events.ResponseReceived):
                        status = int(dict(event.headers)[":status"])
                        if leave == "answer":
                            conn.reset_stream(stream, 8)
                            writer.write(conn.data_to_send())
                            return None
                    elif isinstance(event, h2.events.StreamReset):
                        status, over = BROKEN, True
                    elif isinstance(event, h2.events.StreamEnded):
                        over = True
                writer.write(conn.data_to_send())
        except (OSError, h2.exceptions.ProtocolError):
            self.drop()
            return BROKEN
        if conn.state_machine.state.name == "CLOSED" or stream > 1500:
            self.drop()
        return status

    async def misbehave(self):
        if random.random() < 0.2:
            self.drop()
            _, writer = await self.open()
            writer.write(self.conn.data_to_send() + os.urandom(200))
            await asyncio.sleep(0.001)
            return self.drop()
        await self.ask(random.choice(("fine", "stall", "cut-body")), random.choice(("body", "away", "answer")))
        # What is left of the answer belongs to nobody.
        self.drop()


async def shake_badly(_):
    """A TLS handshake that does not come to its end."""
    way = random.randrange(7)
    if way < 2:
        context = ssl.create_default_context(cafile=os.path.join(CERTS, "other-ca.crt" if way else "ca.crt"))
        try:
            _, writer = await asyncio.open_connection(*TLS, ssl=context, server_hostname="nobody.test" if not way else "server.test")
            writer.close()
            return "shaken"
        except (ssl.SSLError, OSError):
            return None
    reader, writer = await asyncio.open_connection(*TLS)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    inner = CONTEXT.wrap_bio(incoming, outgoing, server_hostname="server.test")
    try:
        inner.do_handshake()
    except ssl.SSLWantReadError:
        pass
    hello = outgoing.read()
    try:
        if way == 2:
            writer.write(os.urandom(400))
        elif way == 3:
            writer.write(hello[: random.randrange(1, len(hello))])
        elif way == 4:
            writer.write(hello)
            await reader.read(500)
        elif way == 5:
            writer.write(hello + os.urandom(200))
            await reader.read(500)
        else:
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await reader.read()
        await asyncio.sleep(0.001)
    except OSError:
        pass
    reset(writer)
    return None


def masked(data):
    return bytes([0x82, 0x80 | len(data)]) + b"\0\0\0\0" + data


async def tunnel(_):
    way = random.choice(("fine", "reset", "garbage", "stall", "close", "leave", "half"))
    reader, writer = await asyncio.open_connection(*HTTP)
    try:
        writer.write(
            b"GET /ws/" + way.encode() + b" HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 101 " not in head[:20]:
            return head[:40]
        writer.write(masked(way.encode()))
        if way == "half":
            writer.write_eof()
        if way in ("fine", "close", "half"):
            if await reader.readexactly(len(masked(way.encode()))) != masked(way.encode()):
                return "another message"
        if way in ("reset", "close", "half", "stall"):
            # With stall, it is the gateway's time-out that ends it.
            await reader.read()
    except (OSError, asyncio.IncompleteReadError) as error:
        if way not in ("reset", "stall", "garbage"):
            return f"{way}: {error!r}"
    finally:
        reset(writer)
    return None


async def stream(_):
    way = random.choice((b"fine", b"reset", b"half", b"close", b"leave", b"mute"))
    if random.random() < 0.01:
        # It takes as long as a time-out.
        way = b"stall"
    reader, writer = await asyncio.open_connection(*TCP)
    try:
        if way != b"mute":
            writer.write(way)
        if way in (b"fine", b"half"):
            if await reader.readexactly(len(way)) != way:
                return "other bytes"
        if way in (b"half", b"reset", b"close", b"stall"):
            if way == b"half":
                writer.write_eof()
            await reader.read()
    except (OSError, asyncio.IncompleteReadError) as error:
        if way in (b"fine", b"half"):
            return f"{way}: {error!r}"
    finally:
        reset(writer)
    return None


class Server(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, peer):
        if b"fine" in data:
            self.transport.sendto(data, peer)
        elif b"many" in data:
            for _ in range(5):
                self.transport.sendto(data, peer)

    def error_received(self, _):
        pass


class Once(asyncio.DatagramProtocol):
    def __init__(self, came):
        self.came = came

    def datagram_received(self, data, _):
        if not self.came.done():
            self.came.set_result(data)

    def error_received(self, _):
        pass


async def datagrams(_):
    way = random.choice((b"fine", b"none", b"many", b"leave", b""))
    came = asyncio.get_running_loop().create_future()
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: Once(came), remote_addr=UDP)
    try:
        data = way + os.urandom(random.choice((0, 1000)))
        for _ in range(10):
            # Datagrams may be lost, where there are many.
            transport.sendto(data)
            if way not in (b"fine", b"many"):
                return None
            try:
                if await asyncio.wait_for(asyncio.shield(came), 1) != data:
                    return "other bytes"
                return None
            except TimeoutError:
                pass
        return f"{way}: no answer"
    finally:
        transport.abort()


class Plain:
    """A client that begins anew each time."""

    def __init__(self, once):
        self.once = once

    async def run(self):
        return await self.once(None)


class Asking:
    """A client of HTTP: most of its requests go wrong at the upstream, some because of itself."""

    def __init__(self, client):
        self.client = client

    async def run(self):
        if random.random() < 0.15:
            await self.client.misbehave()
            return None
        kind = random.choice(KINDS)
        if kind.startswith("stall"):
            # One in ten of them: each takes as long as a time-out.
            kind = kind if random.random() < 0.1 else "fine"
        saw = await self.client.ask(kind)
        return None if saw in WANTED[kind] else f"{kind}: {saw}"


async def many(name, make):
    left, seen = COUNT, collections.Counter()
    wrong, first = 0, ""

    async def one():
        nonlocal left, wrong, first
        client = make()
        while left > 0:
            left -= 1
            try:
                saw = await asyncio.wait_for(client.run(), PATIENCE)
            except Exception as error:
                saw = f"{type(error).__name__}: {error}"
                if hasattr(client, "client"):
                    client.client.drop()
            if saw is not None:
                wrong += 1
                first = first or saw
                seen[str(saw)[:60]] += 1
        if hasattr(client, "client"):
            client.client.drop()

    await asyncio.gather(*(one() for _ in range(TASKS)))
    most = ", ".join(f"{saw} x {count}" for saw, count in seen.most_common(5))
    print(f"{name}: {COUNT} requests, {wrong} wrong {most}".strip(), flush=True)


def http3(kinds):
    """HTTP/3, on threads: its client is one that waits."""
    import threading

    from http3 import Connection, Gone

    address = f"{TLS[0]}:{TLS[1]}"
    lock, state = threading.Lock(), {"left": COUNT, "wrong": 0, "first": ""}

    def client():
        one, asked = None, 0
        while True:
            with lock:
                if state["left"] <= 0:
                    break
                state["left"] -= 1
            saw, kind = None, random.choice(kinds)
            try:
                if one is None or asked > 500:
                    if one is not None:
                        one.end()
                    one, asked = Connection(address).shake(), 0
                asked += 1
                if random.random() < 0.15:
                    number = one.request("POST", "/fine", ends=False)
                    one.send(number, b"y" * 1000)
                    if random.random() < 0.3:
                        one.socket.close() if random.random() < 0.5 else one.end()
                        one = None
                    else:
                        one.cancel(number)
                    continue
                stream = one.get(f"/{kind}")
                saw = BROKEN if stream.reset is not None or stream.head is None else int(stream.head[":status"])
                if saw not in WANTED[kind]:
                    raise ValueError(f"{kind}: {saw}")
            except (Gone, ValueError, OSError, AssertionError) as error:
                with lock:
                    state["wrong"] += 1
                    state["first"] = state["first"] or f"{kind}: {error!r}"
                one = None
        if one is not None:
            one.end()

    threads = [threading.Thread(target=client) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"HTTP/3: {COUNT} requests, {state['wrong']} wrong {state['first']}".strip(), flush=True)


CONTEXT = ssl.create_default_context(cafile=os.path.join(CERTS, "ca.crt"))
CONTEXT.check_hostname = False
CONTEXT2 = ssl.create_default_context(cafile=os.path.join(CERTS, "ca.crt"))
CONTEXT2.check_hostname = False
CONTEXT2.set_alpn_protocols(["h2"])

ALL = {
    "HTTP/1": lambda: Asking(Http1()),
    "HTTP/1 over TLS": lambda: Asking(Http1(secure=True)),
    "HTTP/2": lambda: Asking(Http2()),
    "HTTP/2 over TLS": lambda: Asking(Http2(secure=True)),
    "TLS": lambda: Plain(shake_badly),
    "WebSocket": lambda: Plain(tunnel),
    "TCP": lambda: Plain(stream),
    "UDP": lambda: Plain(datagrams),
}


async def serve(ready):
    loop = asyncio.get_running_loop()
    await asyncio.start_server(upstream, "127.0.0.1", PORT, backlog=4096, limit=1 << 20)
    await asyncio.start_server(raw_upstream, "127.0.0.1", PORT + 1, backlog=4096)
    await loop.create_datagram_endpoint(Server, local_addr=("127.0.0.1", PORT + 1))
    os.write(ready, b"x")
    await asyncio.Event().wait()


async def each():
    """Not so fast that the error log leaves any out."""
    client = Http1()
    for kind in KINDS:
        saw = await client.ask(kind)
        print(f"{kind}: {'0' if saw in WANTED[kind] else saw} wrong")
        await asyncio.sleep(0.1)
    _, writer = await asyncio.open_connection(*TLS)
    writer.write(b"\x01" * 300)
    await asyncio.sleep(0.5)
    client.drop()


async def run(names):
    if COUNT == 0:
        return await each()
    for name, make in ALL.items():
        if not names or name in names:
            await many(name, make)


def main():
    names = sys.argv[7:]
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        # It ends with its parent.
        os.close(ready)
        import ctypes

        ctypes.CDLL(None).prctl(1, 9)
        asyncio.run(serve(tell))
        os._exit(0)
    os.read(ready, 1)
    try:
        asyncio.run(run(names))
        if COUNT > 0 and (not names or "HTTP/3" in names):
            http3([kind for kind in KINDS if not kind.startswith("stall")])
    finally:
        os.kill(pid, 9)


main()
