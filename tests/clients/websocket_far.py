"""WebSocket to servers that speak HTTP/2, over HTTP/3, and at the end: websocket_far.py ADDRESS:PORT PORT PORT ADDRESS:PORT PID

A server of WebSocket is to listen on the second port, a server of HTTP/2 that takes no tunnels on the third; the last
address is the gateway's for TLS and HTTP/3. Routes: /ws, /far (the same, by HTTP/2), /never (the third port).
"""

import asyncio
import os
import signal
import socket
import struct
import sys
import threading

import h2.config
import h2.connection
import h2.events
import websockets

import http3
from http2 import Connection
from websocket import ask, masked, message

HOST, PORT = sys.argv[1].rsplit(":", 1)
TLS, PID = sys.argv[4], int(sys.argv[5])
GOING = struct.pack(">H", 1001)

ended = []


async def echo(connection):
    try:
        async for text in connection:
            await connection.send(text)
    except websockets.ConnectionClosed:
        pass
    ended.append(connection.close_code)


def takes_none():
    listener = socket.create_server(("127.0.0.1", int(sys.argv[3])))
    while True:
        threading.Thread(target=serve_none, args=listener.accept()[:1], daemon=True).start()


def serve_none(client):
    inner = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    inner.initiate_connection()
    client.sendall(inner.data_to_send())
    while came := client.recv(65536):
        for event in inner.receive_data(came):
            assert not isinstance(event, h2.events.RequestReceived), event
        client.sendall(inner.data_to_send())


def ask3(path):
    one = http3.Connection(TLS).shake()
    fields = [("sec-websocket-version", "13")]
    number = one.request("CONNECT", path, fields, ends=False, extra=[(":protocol", "websocket")])
    stream = one.streams[number]
    one.until(lambda: stream.head or stream.over)
    return one, number, stream


def streams():
    for path in ("/ws", "/far"):
        for how in (ask, ask3):
            connection, number, stream = how(path)
            assert stream.head[":status"] == "200", (path, how, stream.head)
            assert "sec-websocket-accept" not in stream.head and "upgrade" not in stream.head, stream.head
            for size in (0, 1, 125, 126, 65_536, 300_000):
                payload = os.urandom(size)
                connection.send(number, masked(2, payload))
                assert message(connection, stream) == (2, payload), (path, how, size)
            connection.send(number, masked(8, struct.pack(">H", 4000)))
            assert message(connection, stream)[0] == 8
    for how in (ask, ask3):
        _, _, refused = how("/never")
        assert refused.head[":status"] == "502", refused.head
    print("streams: ok")


async def connections():
    for path in ("/ws", "/far"):
        async with websockets.connect(f"ws://{HOST}:{PORT}{path}", max_size=1 << 25) as ws:
            for size in (0, 1, 126, 65_536, 1 << 20):
                await ws.send(b"y" * size)
                assert await ws.recv() == b"y" * size
    try:
        await websockets.connect(f"ws://{HOST}:{PORT}/never")
        raise AssertionError("it was to be refused")
    except websockets.InvalidStatus as refused:
        assert refused.response.status_code == 502
    print("connections: ok")


async def end():
    """Everybody is told that the gateway goes, the servers too; and a frame that is under way is not cut."""
    one = await websockets.connect(f"ws://{HOST}:{PORT}/ws")
    two = await websockets.connect(f"ws://{HOST}:{PORT}/far")
    three, four = await asyncio.to_thread(ask, "/ws"), await asyncio.to_thread(ask3, "/ws")
    for ws in (one, two):
        await ws.send("x")
        assert await ws.recv() == "x"
    await asyncio.sleep(0.1)
    ended.clear()
    half = masked(2, b"z" * 1000)
    await asyncio.to_thread(three[0].send, three[1], half[:300])
    os.kill(PID, signal.SIGQUIT)
    for ws in (one, two):
        try:
            await ws.recv()
            raise AssertionError("it was to be closed")
        except websockets.ConnectionClosed as closed:
            assert closed.rcvd.code == 1001, closed

    def rest():
        connection, number, stream = three
        assert message(connection, stream) == (8, GOING)
        connection.send(number, half[300:])
        connection.send(number, masked(8, GOING), ends=True)
        connection.until(lambda: stream.over)
        connection, number, stream = four
        assert message(connection, stream) == (8, GOING)
        connection.send(number, masked(8, GOING), ends=True)
        connection.until(lambda: stream.over)

    await asyncio.to_thread(rest)
    for _ in range(200):
        if ended.count(1001) == 4:
            break
        await asyncio.sleep(0.05)
    assert ended.count(1001) == 4, ended
    print("end: ok")


async def main():
    threading.Thread(target=takes_none, daemon=True).start()
    async with websockets.serve(echo, "127.0.0.1", int(sys.argv[2]), max_size=1 << 25):
        await connections()
        await asyncio.to_thread(streams)
        await end()


asyncio.run(main())
