"""Bodies in very many small DATA frames, both ways: small_frames.py ADDRESS:PORT PORT

It is the upstream on PORT as well. `/down` is answered with small frames in one burst, `/up` gives no
more room for bodies until it is let go, and says then how long its own was.
"""

import socket
import sys
import threading

import h2.config
import h2.connection
import h2.events
from http2 import Connection

PROXY, PORT = sys.argv[1], int(sys.argv[2])
# So many fill most of a stream's window.
COUNT, MESSAGE = 3000, b"twenty bytes of text"
FIELDS = [("content-type", "application/grpc")]
let_go = threading.Event()
connections = []


def serve(client):
    inner = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
    inner.initiate_connection()
    client.sendall(inner.data_to_send())
    lock, paths, lengths, held = threading.Lock(), {}, {}, []

    def acknowledge():
        let_go.wait(30)
        with lock:
            for stream, size in held:
                inner.acknowledge_received_data(size, stream)
            held.clear()
            client.sendall(inner.data_to_send())

    while came := client.recv(65536):
        with lock:
            for event in inner.receive_data(came):
                if isinstance(event, h2.events.RequestReceived):
                    paths[event.stream_id] = dict(event.headers)[":path"]
                    lengths[event.stream_id] = 0
                elif isinstance(event, h2.events.DataReceived):
                    if not held and not let_go.is_set():
                        threading.Thread(target=acknowledge, daemon=True).start()
                    lengths[event.stream_id] += len(event.data)
                    if let_go.is_set():
                        inner.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    else:
                        held.append((event.stream_id, event.flow_controlled_length))
                elif isinstance(event, h2.events.StreamEnded):
                    inner.send_headers(event.stream_id, [(":status", "200"), *FIELDS])
                    if paths[event.stream_id] == "/down":
                        for _ in range(COUNT):
                            inner.send_data(event.stream_id, MESSAGE)
                        inner.end_stream(event.stream_id)
                    else:
                        inner.send_data(event.stream_id, b"%d" % lengths[event.stream_id], end_stream=True)
            client.sendall(inner.data_to_send())


def listen():
    listener = socket.create_server(("127.0.0.1", PORT))
    while True:
        connections.append(listener.accept()[0])
        threading.Thread(target=serve, args=(connections[-1],), daemon=True).start()


threading.Thread(target=listen, daemon=True).start()
quick = Connection(PROXY)
for _ in range(10):
    assert quick.answer(quick.request("POST", "/down", FIELDS)).data == COUNT * MESSAGE
print("a burst of answers: ok")

# A client that has no room for more than the first answer: the second waits, and the connection serves others.
slow = Connection(PROXY)
first = slow.request("POST", "/down", FIELDS)
slow.held.add(first)
assert slow.answer(first).data == COUNT * MESSAGE
second = slow.request("POST", "/down", FIELDS)
slow.until(lambda: slow.streams[second].data)
for _ in range(10):
    assert quick.answer(quick.request("POST", "/down", FIELDS)).data == COUNT * MESSAGE
assert not slow.streams[second].over
slow.inner.increment_flow_control_window(1 << 20)
slow.flush()
assert slow.answer(second).data == COUNT * MESSAGE
assert len(connections) == 1
print("a slow client: ok")

# The other way round: the upstream has no room for more than the first body, and then for both.
numbers = [quick.request("POST", "/up", FIELDS, ends=False) for _ in range(2)]
for number in numbers:
    quick.until(lambda: quick.inner.outbound_flow_control_window > COUNT * len(MESSAGE))
    for _ in range(COUNT):
        quick.inner.send_data(number, MESSAGE)
    quick.flush()
assert quick.answer(quick.request("POST", "/down", FIELDS)).data == COUNT * MESSAGE
let_go.set()
for number in numbers:
    quick.inner.end_stream(number)
    quick.flush()
    assert quick.answer(number).data == b"%d" % (COUNT * len(MESSAGE)), quick.streams[number].data
print("a slow upstream: ok")
