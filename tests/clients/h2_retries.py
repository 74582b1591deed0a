"""Tries and limits with upstreams of HTTP/2: h2_retries.py ADDRESS:PORT SICK GOOD

Two servers listen here, on the ports SICK and GOOD. The first does to a request what its path says; the second answers.
"""

import concurrent.futures
import http.client
import socket
import struct
import sys
import threading
import time

import h2.config
import h2.connection
import h2.events
import h2.settings

ADDRESS, SICK, GOOD = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
INTERNAL_ERROR, REFUSED_STREAM = 2, 7
# (server, method, path) of all requests that came whole.
seen, connections = [], 0
lock = threading.Lock()


def serve(client, name):
    if name == "sick" and garbled:
        client.recv(65536)
        client.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        return client.close()
    inner = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
    inner.initiate_connection()
    # The package sees to it once the other side has acknowledged this.
    inner.update_settings({h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 2})
    client.sendall(inner.data_to_send())
    heads, open_, writing = {}, set(), threading.Lock()

    def answer(stream, status):
        with writing:
            open_.discard(stream)
            inner.send_headers(stream, [(":status", status), ("content-length", "4")])
            inner.send_data(stream, name[:4].encode(), end_stream=True)
            client.sendall(inner.data_to_send())

    while True:
        try:
            came = client.recv(65536)
        except OSError:
            return
        if not came:
            return
        with writing:
            events = inner.receive_data(came)
            client.sendall(inner.data_to_send())
        for event in events:
            if isinstance(event, h2.events.RequestReceived):
                heads[event.stream_id] = dict(event.headers)
                if len(open_) == 2:
                    # It was sent before the limit was known.
                    with writing:
                        inner.reset_stream(event.stream_id, REFUSED_STREAM)
                        client.sendall(inner.data_to_send())
                    heads[event.stream_id] = None
                    continue
                open_.add(event.stream_id)
            elif isinstance(event, h2.events.StreamReset):
                open_.discard(event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                stream, head = event.stream_id, heads[event.stream_id]
                if head is None:
                    continue
                path = head[":path"]
                with lock:
                    seen.append((name, head[":method"], path))
                if path in ("/slow", "/limited"):
                    threading.Timer(pause, answer, (stream, "200")).start()
                elif name == "good":
                    answer(stream, "200")
                elif path == "/stall":
                    pass
                elif path == "/busy":
                    answer(stream, "503")
                elif path == "/closes":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return client.close()
                else:
                    with writing:
                        if path == "/cut":
                            inner.send_headers(stream, [(":status", "200"), ("content-length", "9")])
                            inner.send_data(stream, b"part")
                        inner.reset_stream(stream, REFUSED_STREAM if path == "/refuses" else INTERNAL_ERROR)
                        client.sendall(inner.data_to_send())


def listen(port, name):
    listener = socket.create_server(("127.0.0.1", port))

    def accept():
        global connections
        while True:
            client, _ = listener.accept()
            with lock:
                connections += 1
            threading.Thread(target=serve, args=(client, name), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def ask(method, path):
    """Status, body or how it broke off, and who saw it."""
    host, port = ADDRESS.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        # In one piece: of a body that comes behind its head, what went out once is not kept.
        body = "Content-Length: 4\r\n\r\nbody" if method == "POST" else "\r\n"
        connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: a\r\n{body}".encode())
        answer = http.client.HTTPResponse(connection, method=method)
        answer.begin()
        try:
            text = answer.read()
        except (http.client.IncompleteRead, ConnectionError):
            text = "broken"
        return answer.status, text


def check(method, path, status, text, servers):
    with lock:
        seen.clear()
    got = ask(method, path)
    with lock:
        came = [server for server, _, _ in seen]
    assert got[0] == status and (text is None or got[1] == text) and came == servers, (method, path, got, came)


garbled, pause = False, 0.2
listen(SICK, "sick")
listen(GOOD, "good")
for path in ("/reset", "/closes", "/stall"):
    check("GET", path, 200, b"good", ["sick", "good"])
    # It may have been processed.
    check("POST", path, 504 if path == "/stall" else 502, None, ["sick"])
# It was not.
check("GET", "/refuses", 200, b"good", ["sick", "good"])
check("POST", "/refuses", 200, b"good", ["sick", "good"])
check("GET", "/busy", 200, b"good", ["sick", "good"])
check("POST", "/busy", 503, b"sick", ["sick"])
# What has begun is not begun anew, and does not look whole.
check("GET", "/cut", 200, "broken", ["sick"])
print("retries: ok")

# Long enough for all of them to come.
pause = 4
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    statuses = sorted(status for status, _ in pool.map(lambda _: ask("GET", "/limited"), range(8)))
assert statuses == [200] * 3 + [503] * 5, statuses
# Places come back.
pause = 0.2
assert [ask("GET", "/limited")[0] for _ in range(3)] == [200] * 3
before, pause = connections, 4
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    statuses = [status for status, _ in pool.map(lambda _: ask("GET", "/slow"), range(8))]
assert statuses == [200] * 8 and connections > before, (statuses, connections - before)
print("limits: ok")

garbled = True
time.sleep(0.1)
check("GET", "/other", 200, b"good", ["good"])
print("garbage: ok")
