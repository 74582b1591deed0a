"""What an HTTP/2 connection lives through: life.py ADDRESS:PORT PID

Routes: /echo, /hold (never answers), /big (1 MB), /events (three chunks, each after a pause), /interim, /slow.
"""

import os
import signal
import sys

from http2 import Connection

ADDRESS, PID = sys.argv[1], int(sys.argv[2])


def messages():
    one = Connection(ADDRESS)
    number = one.request("POST", "/echo", [("te", "trailers"), ("cookie", "a=1"), ("cookie", "b=2")], ends=False)
    one.send(number, b"x" * 100_000, ends=True)
    echoed = one.answer(number)
    assert echoed.head[":status"] == "200" and b"a=1; b=2" in echoed.data and b"x" * 1000 in echoed.data, echoed.head
    # The end of a body that is shorter or longer than it was said to be.
    for length, body in [("5", b"1234"), ("3", b"1234")]:
        number = one.request("POST", "/echo", [("content-length", length)], ends=False)
        one.send(number, body, ends=True)
        broken = one.answer(number)
        assert broken.reset == 1 or broken.head[":status"] == "400", (broken.reset, broken.head)
    # What disagrees with itself is no request.
    number = one.request("GET", "/echo", [("host", "other.example")])
    assert one.answer(number).reset == 1
    number = one.request("GET", "/echo", [("host", ADDRESS)])
    assert one.answer(number).head[":status"] == "200"
    number = one.request("POST", "/echo", [("expect", "100-continue")], ends=False)
    one.until(lambda: one.streams[number].interim)
    assert one.streams[number].interim[0][":status"] == "100"
    one.send(number, b"now", ends=True)
    assert one.answer(number).head[":status"] == "200"
    number = one.request("HEAD", "/big")
    assert one.answer(number).head["content-length"] == "1000000" and not one.answer(number).data
    number = one.request("GET", "/interim")
    hinted = one.answer(number)
    assert [head[":status"] for head in hinted.interim] == ["103"] and hinted.head[":status"] == "200"
    assert hinted.trailers == {"x-checksum": "7"}, hinted.trailers
    assert one.answer(one.request("GET", "/" + "a" * 70_000)).head[":status"] in ("414", "431")
    assert not one.goaways
    print("messages: ok")


def fairness():
    one = Connection(ADDRESS)
    # A body that nobody reads.
    stuck = one.request("POST", "/hold", ends=False)
    one.inner.send_data(stuck, b"x" * 16_384)
    while one.inner.local_flow_control_window(stuck) >= 16_384:
        one.inner.send_data(stuck, b"x" * 16_384)
        one.flush()
    # An answer that the client does not take.
    one.inner.increment_flow_control_window(1 << 20)
    unread = one.request("GET", "/big")
    one.held.add(unread)
    one.until(lambda: len(one.streams[unread].data) >= 60_000)
    for _ in range(20):
        assert one.answer(one.request("GET", "/echo")).head[":status"] == "200"
    assert len(one.streams[unread].data) <= 65_535
    one.inner.increment_flow_control_window(1 << 20, unread)
    one.held.clear()
    one.flush()
    assert len(one.answer(unread).data) == 1_000_000
    one.inner.reset_stream(stuck)
    one.flush()
    print("fairness: ok")


def events():
    one = Connection(ADDRESS)
    number = one.request("GET", "/events", [("accept", "text/event-stream")])
    stream = one.streams[number]
    seen = []
    while not stream.over:
        one.until(lambda: stream.over or stream.data != b"".join(seen))
        if len(stream.data) > sum(map(len, seen)):
            seen.append(stream.data[sum(map(len, seen)) :])
    # A client that was held up itself may find two at once.
    assert stream.data == b"data: 1\n\ndata: 2\n\ndata: 3\n\n" and len(seen) > 1, seen
    print("events: ok")


def end():
    idle, busy = Connection(ADDRESS), Connection(ADDRESS)
    assert idle.answer(idle.request("GET", "/echo")).ended
    number = busy.request("GET", "/slow")
    busy.until(lambda: busy.streams[number].interim)
    os.kill(PID, signal.SIGQUIT)
    idle.until(lambda: idle.goaways)
    answered = busy.answer(number)
    assert answered.head[":status"] == "200" and answered.data == b"late", answered.head
    while not busy.closed:
        busy.read()
    # First that it ends, then where.
    assert [last for last, _ in busy.goaways] == [(1 << 31) - 1, number], busy.goaways
    assert {code for _, code in busy.goaways + idle.goaways} == {0}
    print("end: ok")


messages()
fairness()
events()
end()
