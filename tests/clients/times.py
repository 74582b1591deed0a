"""When a gateway closes HTTP/2 connections itself: times.py idle|age|requests ADDRESS:PORT

Each time by GOAWAY without an error, and without losing a request.
"""

import sys
import time

from http2 import Connection

WHAT, ADDRESS = sys.argv[1:]


def ask(connection):
    stream = connection.answer(connection.request("GET", "/"))
    assert stream.ended and stream.head[":status"] == "200", stream.head


def finish(connection):
    while not connection.closed:
        connection.read()
    assert connection.goaways and all(code == 0 for _, code in connection.goaways), connection.goaways


one = Connection(ADDRESS)
ask(one)
asked = 1
if WHAT == "idle":
    one.until(lambda: one.goaways)
else:
    while not one.goaways:
        ask(one)
        asked += 1
        if WHAT == "age":
            time.sleep(0.05)
finish(one)
if WHAT == "requests":
    assert asked == 5, asked
print("ok")
