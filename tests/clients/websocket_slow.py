"""A client of WebSocket over HTTP/2 that takes nothing for a while: websocket_slow.py ADDRESS:PORT PORT

A server of WebSocket is to listen on the second port. The route /ws leads there, and the gateway would wait no longer
than a second for the client of a response.
"""

import asyncio
import os
import sys
import time

import websockets

from websocket import ask, masked, message


async def echo(connection):
    try:
        async for text in connection:
            await connection.send(text)
    except websockets.ConnectionClosed:
        pass


def slow():
    connection, number, stream = ask("/ws")
    connection.held.add(number)
    payload = os.urandom(300_000)
    connection.send(number, masked(2, payload))
    connection.until(lambda: len(stream.data) >= 65_535)
    time.sleep(3)
    connection.held.clear()
    connection.inner.acknowledge_received_data(len(stream.data), number)
    connection.flush()
    connection.until(lambda: stream.over or len(stream.data) >= len(payload))
    assert not stream.over and message(connection, stream) == (2, payload), stream.reset
    print("all came")


async def main():
    async with websockets.serve(echo, "127.0.0.1", int(sys.argv[2]), max_size=1 << 25):
        await asyncio.to_thread(slow)
        # It ends with the process.
        os._exit(sys.stdout.flush() or 0)


asyncio.run(main())
