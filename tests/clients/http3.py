"""A client's HTTP/3 connection, step by step, over the `aioquic` package and one UDP socket."""

import os
import socket
import ssl
import time

from aioquic.buffer import encode_uint_var
from aioquic.h3 import connection as h3
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

CERTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "certs")

# What the package would refuse to send is for the gateway to find.
h3.validate_headers = lambda *_, **__: None


class Stream:
    def __init__(self):
        self.head, self.data, self.trailers = None, b"", None
        self.interim, self.ended, self.reset = [], False, None

    @property
    def over(self):
        return self.ended or self.reset is not None


class Gone(Exception):
    pass


class Connection:
    """`name` is the server that is asked for, `proof` a client's certificate, `settings` are of QuicConfiguration."""

    def __init__(self, address, name="server.test", proof=None, ticket=None, tickets=None, protocol="h3", **settings):
        host, port = address.rsplit(":", 1)
        self.authority = name or address
        config = QuicConfiguration(is_client=True, alpn_protocols=[protocol], server_name=name, **settings)
        config.load_verify_locations(os.path.join(CERTS, "ca.crt"))
        if name is None:
            config.verify_mode = ssl.CERT_NONE
        if proof:
            config.load_cert_chain(os.path.join(CERTS, proof + ".crt"), os.path.join(CERTS, proof + ".key"))
        config.session_ticket = ticket
        self.peer = (host, int(port))
        self.quic = QuicConnection(configuration=config, session_ticket_handler=tickets)
        self.streams, self.goaways, self.closed, self.retried, self.acked = {}, [], None, False, {}
        self.http, self.silent, self.paused = None, False, set()
        self.move()
        self.quic.connect(self.peer, now=time.monotonic())
        self.flush()

    def move(self):
        """Goes on from another address."""
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self.socket.bind(("127.0.0.1", 0))

    def shake(self, seconds=20):
        """Does the handshake and opens what HTTP/3 needs."""
        self.done = False
        self.until(lambda: self.done, seconds)
        self.http = h3.H3Connection(self.quic)
        self.flush()
        # Before that, a client must not move (RFC 9000 section 9): one that does may wait for it for ever.
        self.until(lambda: self.quic._handshake_confirmed, seconds)
        return self

    def flush(self):
        for datagram, _ in self.quic.datagrams_to_send(now=time.monotonic()):
            if not self.silent:
                self.socket.sendto(datagram, self.peer)

    def read(self, seconds=1.0):
        """Waits for one datagram or a timer, and takes in what came."""
        timer = self.quic.get_timer()
        now = time.monotonic()
        self.socket.settimeout(max(0.001, min(seconds, (timer - now) if timer else seconds)))
        try:
            data = self.socket.recv(65536)
            # A long header of the kind Retry.
            self.retried |= data[0] & 0xf0 == 0xf0 and data[1:5] == b"\0\0\0\1"
            self.quic.receive_datagram(data, self.peer, now=time.monotonic())
        except (TimeoutError, ConnectionRefusedError):
            pass
        timer = self.quic.get_timer()
        if timer and timer <= time.monotonic():
            self.quic.handle_timer(now=time.monotonic())
        while (event := self.quic.next_event()) is not None:
            self.take(event)
        self.flush()

    def take(self, event):
        if isinstance(event, events.HandshakeCompleted):
            self.done, self.resumed = True, event.session_resumed
        elif isinstance(event, events.ConnectionTerminated):
            self.closed = (event.error_code, event.reason_phrase)
        elif isinstance(event, events.StreamReset):
            if event.stream_id in self.streams:
                self.streams[event.stream_id].reset = event.error_code
        if self.http is None:
            return
        if isinstance(event, events.StreamDataReceived) and event.stream_id % 4 == 3:
            self.note_goaway(event)
        for came in self.http.handle_event(event):
            stream = self.streams.get(came.stream_id)
            if stream is None:
                continue
            if isinstance(came, HeadersReceived):
                fields = {name.decode(): value.decode() for name, value in came.headers}
                if fields.get(":status", "200").startswith("1"):
                    stream.interim.append(fields)
                elif ":status" in fields:
                    stream.head = fields
                else:
                    stream.trailers = fields
            elif isinstance(came, DataReceived):
                stream.data += came.data
            stream.ended |= came.stream_ended

    def note_goaway(self, event):
        # GOAWAY comes in a piece of its own: kind 7, its length, and a stream's id.
        if event.data[:1] == b"\x07":
            data = event.data
            while data[:1] == b"\x07":
                number = data[2:2 + data[1]]
                self.goaways.append(int.from_bytes(number, "big") & ((1 << (8 * len(number) - 2)) - 1))
                data = data[2 + data[1]:]

    def until(self, done, seconds=20):
        end = time.monotonic() + seconds
        while not done():
            if self.closed is not None:
                if done():
                    return
                raise Gone(self.closed)
            assert time.monotonic() < end, "nothing came in time"
            self.read(0.2)

    def request(self, method, path, fields=(), ends=True, extra=(), authority=None, head=None):
        number = self.quic.get_next_available_stream_id()
        if head is None:
            authority = self.authority if authority is None else authority
            head = [(":method", method), *extra, (":scheme", "https"), (":path", path), (":authority", authority), *fields]
        self.http.send_headers(number, [(name.encode(), value.encode()) for name, value in head], end_stream=ends)
        self.streams[number] = Stream()
        self.flush()
        return number

    def send(self, number, data, ends=False):
        self.http.send_data(number, data, end_stream=ends)
        self.flush()

    def trailers(self, number, fields):
        self.http.send_headers(number, [(name.encode(), value.encode()) for name, value in fields], end_stream=True)
        self.flush()

    def raw(self, data, ends=False, number=None):
        """Bytes on a stream, as they are."""
        if number is None:
            number = self.quic.get_next_available_stream_id()
            self.streams[number] = Stream()
        self.quic.send_stream_data(number, data, end_stream=ends)
        self.flush()
        return number

    def one_way(self, data):
        number = self.quic.get_next_available_stream_id(is_unidirectional=True)
        self.quic.send_stream_data(number, data)
        self.flush()
        return number

    def answer(self, number, seconds=20):
        stream = self.streams[number]
        self.until(lambda: stream.over, seconds)
        return stream

    def get(self, path, *rest, **named):
        return self.answer(self.request("GET", path, *rest, **named))

    def cancel(self, number):
        self.quic.reset_stream(number, 0x10c)
        self.quic.stop_stream(number, 0x10c)
        self.flush()

    def end(self):
        self.quic.close()
        self.flush()
        self.socket.close()


def frame(kind, payload=b"", length=None):
    return encode_uint_var(kind) + encode_uint_var(len(payload) if length is None else length) + payload
