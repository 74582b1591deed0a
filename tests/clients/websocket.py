"""WebSocket through a gateway: websocket.py ADDRESS:PORT PORT ADMIN KEY PID

The second port is where the gateway's upstream is to listen. Over HTTP/1.1 by the `websockets` package on both sides,
over HTTP/2 (RFC 8441) by the `h2` package, with frames made here.
"""

import asyncio
import http.client
import os
import random
import signal
import struct
import sys

import h2.settings
import websockets

from http2 import Connection

HOST, PORT = sys.argv[1].rsplit(":", 1)


async def echo(connection):
    async for message in connection:
        if message == "close":
            await connection.close(4001, "as asked")
        else:
            await connection.send(message)


async def over_http1():
    rng = random.Random(7)
    async with websockets.connect(f"ws://{HOST}:{PORT}/ws", max_size=1 << 25, subprotocols=["chat"]) as ws:
        for number in range(400):
            size = rng.choice([0, 1, 125, 126, 127, 65535, 65536, rng.randrange(200_000)])
            message = rng.randbytes(size) if number % 2 else "x" * size
            await ws.send(message)
            assert await ws.recv() == message
        await ws.send([b"in ", b"three ", b"parts"])
        assert await ws.recv() == b"in three parts"
        big = rng.randbytes(16 << 20)
        await ws.send(big)
        assert await ws.recv() == big
        await (await ws.ping(b"here?"))
        await ws.send("close")
        try:
            await ws.recv()
            raise AssertionError("it was to be closed")
        except websockets.ConnectionClosed as closed:
            assert (closed.rcvd.code, closed.rcvd.reason) == (4001, "as asked")
    print("HTTP/1.1: ok")


def masked(opcode, payload):
    key = os.urandom(4)
    length = len(payload)
    head = bytes([0x80 | opcode])
    if length < 126:
        head += bytes([0x80 | length])
    elif length < 65536:
        head += bytes([0x80 | 126]) + struct.pack(">H", length)
    else:
        head += bytes([0x80 | 127]) + struct.pack(">Q", length)
    return head + key + bytes(byte ^ key[at % 4] for at, byte in enumerate(payload))


def message(connection, stream):
    """The next whole frame of the server: its opcode and payload."""
    connection.until(lambda: len(stream.data) >= 2)
    length, at = stream.data[1] & 127, 2
    if length >= 126:
        size = 2 if length == 126 else 8
        connection.until(lambda: len(stream.data) >= 2 + size)
        length, at = int.from_bytes(stream.data[2 : 2 + size], "big"), 2 + size
    connection.until(lambda: len(stream.data) >= at + length)
    opcode, payload = stream.data[0] & 15, stream.data[at : at + length]
    stream.data = stream.data[at + length :]
    return opcode, payload


def ask(path):
    connection = Connection(f"{HOST}:{PORT}")
    key = h2.settings.SettingCodes.ENABLE_CONNECT_PROTOCOL
    connection.until(lambda: connection.inner.remote_settings.get(key) == 1)
    fields = [("sec-websocket-version", "13"), ("sec-websocket-protocol", "chat")]
    number = connection.request("CONNECT", path, fields, ends=False, extra=[(":protocol", "websocket")])
    stream = connection.streams[number]
    connection.until(lambda: stream.head or stream.over)
    return connection, number, stream


def over_http2():
    connection, number, stream = ask("/ws")
    assert stream.head[":status"] == "200", stream.head
    assert stream.head["sec-websocket-protocol"] == "chat", stream.head
    assert "sec-websocket-accept" not in stream.head and "upgrade" not in stream.head, stream.head
    rng = random.Random(8)
    for size in [0, 1, 125, 126, 65535, 65536, 300_000]:
        payload = rng.randbytes(size)
        connection.send(number, masked(2, payload))
        assert message(connection, stream) == (2, payload), size
    connection.send(number, masked(1, b"close"))
    closing = message(connection, stream)
    assert closing == (8, struct.pack(">H", 4001) + b"as asked"), closing
    connection.send(number, masked(8, closing[1]))
    connection.until(lambda: stream.over)
    # A tunnel goes on when its route does, and while the gateway waits for it to end.
    connection, number, stream = ask("/ws")
    admin = http.client.HTTPConnection(sys.argv[3])
    admin.request("DELETE", "/apisix/admin/routes/1", headers={"X-API-KEY": sys.argv[4]})
    assert admin.getresponse().status == 200
    gone = False
    while not gone:
        _, _, refused = ask("/ws")
        gone = refused.head is not None and refused.head[":status"] == "404"
    connection.send(number, masked(2, b"still here"))
    assert message(connection, stream) == (2, b"still here")
    # A path that no route lets through as a tunnel.
    _, _, refused = ask("/plain")
    assert refused.head is None or refused.head[":status"] != "200", refused.head
    os.kill(int(sys.argv[5]), signal.SIGQUIT)
    connection.until(lambda: connection.goaways)
    connection.send(number, masked(2, b"still here"))
    assert message(connection, stream) == (2, b"still here")
    connection.send(number, masked(1, b"close"))
    closing = message(connection, stream)
    assert closing[0] == 8, closing
    connection.send(number, masked(8, closing[1]), ends=True)
    while not connection.closed:
        connection.read()
    assert stream.over
    print("HTTP/2: ok")


async def main():
    async with websockets.serve(
        echo, "127.0.0.1", int(sys.argv[2]), max_size=1 << 25, subprotocols=["chat"], compression="deflate"
    ):
        await over_http1()
        await asyncio.to_thread(over_http2)


if __name__ == "__main__":
    asyncio.run(main())
