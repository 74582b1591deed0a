"""Clients that do not take what comes, beside others: window_holders.py ADDRESS:PORT PORT CLIENTS

An HTTP/2 upstream listens on PORT: /large is 1 MiB, /small 2 KiB, and streams are served in the order in which they
came. CLIENTS clients ask for /large with a receive window of zero, which they open by a byte each second. Beside them
/small must be answered at once, and in the end their streams are reset.
"""

import socket
import sys
import threading
import time

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from http2 import Connection

PROXY, PORT, CLIENTS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
GRPC = [("content-type", "application/grpc")]
# Far longer than an answer takes on a busy machine.
PATIENCE = 4


class Served:
    """A connection of the gateway's, which gets as much as its windows allow."""

    def __init__(self, peer):
        self.peer, self.left = peer, {}
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        self.inner = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.inner.initiate_connection()
        self.flush()
        while came := self.peer.recv(65536):
            for event in self.inner.receive_data(came):
                if isinstance(event, h2.events.RequestReceived):
                    path = dict(event.headers)[b":path"]
                    self.inner.send_headers(event.stream_id, [(":status", "200"), *GRPC])
                    self.left[event.stream_id] = 1 << 20 if path == b"/large" else 2 << 10
                elif isinstance(event, h2.events.StreamReset):
                    self.left.pop(event.stream_id, None)
            for stream in list(self.left):
                self.send(stream)
            self.flush()

    def send(self, stream):
        while room := min(self.inner.local_flow_control_window(stream), 16384, self.left[stream]):
            self.left[stream] -= room
            self.inner.send_data(stream, b"x" * room, end_stream=not self.left[stream])
            if not self.left[stream]:
                del self.left[stream]
                return

    def flush(self):
        self.peer.sendall(self.inner.data_to_send())


def listen():
    listener = socket.create_server(("127.0.0.1", PORT), backlog=256)
    while True:
        Served(listener.accept()[0])


class Holder:
    def __init__(self):
        self.over = False
        self.connection = Connection(PROXY)
        self.connection.inner.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
        self.connection.flush()
        self.connection.until(lambda: self.connection.inner.local_settings.initial_window_size == 0)
        self.number = self.connection.request("GET", "/large", GRPC)
        self.connection.until(lambda: self.stream.head)
        threading.Thread(target=self.trickle, daemon=True).start()

    @property
    def stream(self):
        return self.connection.streams[self.number]

    def trickle(self):
        connection = self.connection
        while not (self.stream.over or connection.closed):
            try:
                connection.inner.increment_flow_control_window(1, self.number)
                connection.flush()
                taken = len(self.stream.data)
                connection.until(lambda: len(self.stream.data) > taken or self.stream.over)
            except (OSError, AssertionError, h2.exceptions.H2Error):
                break
            time.sleep(1)
        self.over = True


def small():
    began = time.monotonic()
    connection = Connection(PROXY)
    connection.socket.settimeout(PATIENCE)
    try:
        stream = connection.answer(connection.request("GET", "/small", GRPC))
        answered = len(stream.data) == 2 << 10
    except OSError:
        answered = False
    connection.socket.close()
    return answered and time.monotonic() - began < PATIENCE


threading.Thread(target=listen, daemon=True).start()
time.sleep(0.2)
holders = [Holder() for _ in range(CLIENTS)]
# Some responses may still be under way.
time.sleep(0.5)
late = sum(not small() for _ in range(12))
print("answered at once:", "ok" if late == 0 else f"NOT: {late} of 12 hang")
end = time.monotonic() + 60
while not all(one.over for one in holders[:10]) and time.monotonic() < end:
    small()
    time.sleep(0.1)
print("the oldest are reset:", "ok" if all(one.over for one in holders[:10]) else "NOT")
late = sum(not small() for _ in range(12))
print("and still answered:", "ok" if late == 0 else f"NOT: {late} of 12 hang")
