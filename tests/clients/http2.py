"""A client's HTTP/2 connection, step by step, over the `h2` package."""

import socket
import struct

import h2.config
import h2.connection
import h2.events
import h2.settings


class Stream:
    def __init__(self):
        self.head, self.data, self.trailers = None, b"", None
        self.pieces, self.interim, self.ended, self.reset = 0, [], False, None

    @property
    def over(self):
        return self.ended or self.reset is not None


class Connection:
    def __init__(self, address, window=None, over=None):
        """`over` is a connection that there is already, over TLS maybe."""
        host, port = address.rsplit(":", 1)
        self.address = address
        self.socket = over or socket.create_connection((host, int(port)))
        self.socket.settimeout(20)
        # What is wrong with a head is for the gateway to find.
        config = h2.config.H2Configuration(
            header_encoding="utf-8", validate_outbound_headers=False, normalize_outbound_headers=False
        )
        self.inner = h2.connection.H2Connection(config)
        self.streams, self.goaways, self.closed, self.rest = {}, [], False, b""
        # Streams whose data is not acknowledged.
        self.held = set()
        if window is not None:
            self.inner.local_settings[h2.settings.SettingCodes.INITIAL_WINDOW_SIZE] = window
        self.inner.initiate_connection()
        self.flush()

    def flush(self):
        self.socket.sendall(self.inner.data_to_send())

    def request(self, method, path, fields=(), ends=True, extra=()):
        number = self.inner.get_next_available_stream_id()
        head = [(":method", method), *extra, (":scheme", "http"), (":path", path), (":authority", self.address), *fields]
        self.inner.send_headers(number, head, end_stream=ends)
        self.flush()
        self.streams[number] = Stream()
        return number

    def read(self):
        came = self.socket.recv(65536)
        if not came:
            self.closed = True
            return
        for event in self.inner.receive_data(self.without_goaways(came)):
            stream = self.streams.get(getattr(event, "stream_id", None))
            if isinstance(event, h2.events.ResponseReceived):
                stream.head = dict(event.headers)
            elif isinstance(event, h2.events.InformationalResponseReceived):
                stream.interim.append(dict(event.headers))
            elif isinstance(event, h2.events.DataReceived):
                stream.data += event.data
                stream.pieces += 1
                if event.stream_id not in self.held:
                    self.inner.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.TrailersReceived):
                stream.trailers = dict(event.headers)
            elif isinstance(event, h2.events.StreamEnded):
                stream.ended = True
            elif isinstance(event, h2.events.StreamReset):
                stream.reset = event.error_code
        self.flush()

    def without_goaways(self, came):
        """Whole frames; the package would take the first GOAWAY for the end, and answers are still to come."""
        self.rest += came
        frames = b""
        while len(self.rest) >= 9 and len(self.rest) >= 9 + (length := int.from_bytes(self.rest[:3], "big")):
            frame, self.rest = self.rest[: 9 + length], self.rest[9 + length :]
            if frame[3] == 7:
                last, code = struct.unpack(">II", frame[9:17])
                self.goaways.append((last & 0x7FFFFFFF, code))
            else:
                frames += frame
        return frames

    def until(self, done):
        while not done():
            assert not self.closed, "the connection ended"
            self.read()

    def answer(self, number):
        stream = self.streams[number]
        self.until(lambda: stream.over)
        return stream

    def send(self, number, payload, ends=False):
        while payload:
            room = min(self.inner.local_flow_control_window(number), self.inner.max_outbound_frame_size)
            if room == 0:
                self.read()
                continue
            self.inner.send_data(number, payload[:room])
            payload = payload[room:]
            self.flush()
        if ends:
            self.inner.end_stream(number)
            self.flush()
