"""What an HTTP/3 connection lives through: http3_life.py ADDRESS:PORT PID

Routes: /echo, /echo2 (an HTTP/2 server), /hold (never answers), /big (4 MB), /events (three chunks, each after a
pause), /interim, /slow.
"""

import os
import signal
import sys

from http3 import Connection, Gone

ADDRESS, PID = sys.argv[1], int(sys.argv[2])


def messages():
    one = Connection(ADDRESS).shake()
    plain = one.get("/echo", [("te", "trailers"), ("cookie", "a=1"), ("cookie", "b=2")])
    assert plain.head[":status"] == "200" and b"a=1; b=2" in plain.data, plain.head
    port = ADDRESS.rsplit(":", 1)[1]
    assert plain.head["alt-svc"] == f'h3=":{port}"; ma=86400' and "date" in plain.head, plain.head
    assert one.http.received_settings[8] == 1 and 6 in one.http.received_settings
    for path in ("/echo", "/echo2"):
        number = one.request("POST", path, [("content-length", "100000")], ends=False)
        one.send(number, b"x" * 60_000)
        one.send(number, b"x" * 40_000, ends=True)
        echoed = one.answer(number)
        assert echoed.head[":status"] == "200" and b"x" * 1000 in echoed.data, (path, echoed.head, echoed.data[:200])
        # Of no length that was said before, and with trailers.
        number = one.request("POST", path, ends=False)
        one.send(number, b"y" * 30_000)
        one.trailers(number, [("x-checksum", "8")])
        assert b"y" * 30_000 in one.answer(number).data, path
    number = one.request("POST", "/echo", [("expect", "100-continue")], ends=False)
    one.until(lambda: one.streams[number].interim)
    assert one.streams[number].interim[0][":status"] == "100"
    one.send(number, b"now", ends=True)
    assert one.answer(number).head[":status"] == "200"
    headed = one.answer(one.request("HEAD", "/big"))
    assert headed.head["content-length"] == "4000000" and not headed.data
    hinted = one.get("/interim")
    assert [head[":status"] for head in hinted.interim] == ["103"] and hinted.head[":status"] == "200"
    assert hinted.data == b"ab" and hinted.trailers == {"x-checksum": "7"}, hinted.trailers
    assert one.get("/none").head[":status"] == "404"
    assert one.get("/" + "a" * 40_000).head[":status"] in ("414", "431")
    assert not one.goaways and one.closed is None
    one.end()
    print("messages: ok")


def many():
    one = Connection(ADDRESS).shake()
    numbers = [one.request("GET", f"/echo?{at}") for at in range(300)]
    for at, number in enumerate(numbers):
        answer = one.answer(number)
        assert answer.head[":status"] == "200" and f"/echo?{at}\"".encode() in answer.data, answer.data
    one.end()
    print("many: ok")


def large():
    one = Connection(ADDRESS).shake()
    down = one.request("GET", "/big")
    up = one.request("POST", "/echo", ends=False)
    for _ in range(40):
        one.send(up, b"z" * 50_000)
        one.read(0.01)
    one.send(up, b"", ends=True)
    assert len(one.answer(down, 60).data) == 4_000_000
    echoed = one.answer(up, 60)
    assert echoed.head[":status"] == "200" and echoed.data.count(b"z") >= 2_000_000, (echoed.head, len(echoed.data))
    one.end()
    print("large: ok")


def events_come_singly():
    one = Connection(ADDRESS).shake()
    number = one.request("GET", "/events")
    stream, seen = one.streams[number], []
    while not stream.over:
        one.read(0.2)
        if stream.data and (not seen or seen[-1] != len(stream.data)):
            seen.append(len(stream.data))
    # A client that was held up itself may find two at once.
    assert stream.data == b"data: 1\n\ndata: 2\n\ndata: 3\n\n" and len(seen) > 1, seen
    one.end()
    print("events: ok")


def resets():
    one = Connection(ADDRESS).shake()
    # Nobody answers these. The gateway lets its request to the upstream go.
    held = one.request("GET", "/hold")
    half = one.request("POST", "/echo", ends=False)
    one.send(half, b"x" * 10_000)
    unread = one.request("GET", "/big")
    one.until(lambda: one.streams[unread].data)
    for number in (held, half, unread):
        one.cancel(number)
    assert one.get("/echo").head[":status"] == "200"
    one.end()
    # A whole connection that goes without a word.
    gone = Connection(ADDRESS).shake()
    gone.request("GET", "/hold")
    gone.end()
    print("resets: ok")


def moves():
    one = Connection(ADDRESS).shake()
    ports = set()
    for at in range(12):
        # With two workers, the kernel gives about half of these to the one that does not know the connection.
        one.move()
        ports.add(one.socket.getsockname()[1])
        assert one.get(f"/echo?{at}").head[":status"] == "200", at
    assert len(ports) > 6
    one.end()
    print("moves: ok")


def end():
    one, idle = Connection(ADDRESS).shake(), Connection(ADDRESS).shake()
    assert idle.get("/echo").head[":status"] == "200"
    slow = one.request("GET", "/slow")
    one.until(lambda: one.streams[slow].interim)
    os.kill(PID, signal.SIGQUIT)
    one.until(lambda: one.goaways)
    # Told to go, but not yet from where: what comes now is served.
    assert one.goaways[0] == (1 << 62) - 4, one.goaways
    last = one.request("GET", "/echo")
    assert one.answer(last).head[":status"] == "200"
    one.until(lambda: len(one.goaways) == 2)
    assert one.goaways[1] == last + 4, one.goaways
    answer = one.answer(slow)
    assert answer.head[":status"] == "200" and answer.data == b"late"
    late = one.request("GET", "/echo")
    try:
        assert one.answer(late).reset == 0x10b
    except Gone:
        pass
    for connection in (one, idle):
        try:
            connection.until(lambda: False)
        except Gone as gone:
            assert gone.args[0][0] == 0x100, gone
    assert len(idle.goaways) == 2, idle.goaways
    print("end: ok")


messages()
many()
large()
events_come_singly()
resets()
moves()
end()
