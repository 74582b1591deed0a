"""An upstream that takes no more, and how requests go elsewhere: refusing.py ADDRESS:PORT PORT

The upstream listens on the second port and speaks HTTP/2. What it has not looked at is sent again, once, also when it is
a POST; what it may have looked at is not.
"""

import http.client
import socket
import sys
import threading
import time

import h2.config
import h2.connection
import h2.events
import h2.settings

answered, connections, closed = [], [], []


def serve(client, number):
    inner = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
    inner.initiate_connection()
    client.sendall(inner.data_to_send())
    paths, bodies = {}, {}
    while came := client.recv(65536):
        for event in inner.receive_data(came):
            if isinstance(event, h2.events.RequestReceived):
                paths[event.stream_id], bodies[event.stream_id] = dict(event.headers)[":path"], b""
            elif isinstance(event, h2.events.DataReceived):
                bodies[event.stream_id] += event.data
            elif isinstance(event, h2.events.StreamEnded):
                path, first = paths[event.stream_id], event.stream_id == 1
                if path == "/refused" and not first:
                    inner.reset_stream(event.stream_id, 7)
                elif path == "/going" and not first:
                    inner.close_connection(last_stream_id=event.stream_id - 2)
                    client.sendall(inner.data_to_send())
                    client.close()
                    return
                elif path == "/seen" and not first:
                    answered.append(path)
                    inner.close_connection(last_stream_id=event.stream_id)
                    client.sendall(inner.data_to_send())
                    client.close()
                    return
                else:
                    answered.append(path)
                    inner.send_headers(event.stream_id, [(":status", "200"), ("content-length", "4")])
                    if path == "/pausing":
                        inner.update_settings({h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 0})
                    inner.send_data(event.stream_id, b"done", end_stream=True)
        client.sendall(inner.data_to_send())
    closed.append(number)


def main():
    listener = socket.create_server(("127.0.0.1", int(sys.argv[2])))

    def accept():
        while True:
            client, _ = listener.accept()
            connections.append(client)
            threading.Thread(target=serve, args=(client, len(connections)), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()

    def post(path):
        answered.clear()
        host, port = sys.argv[1].split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            # In one piece: of a body that comes behind its head, what went out once is not kept, so
            # that such a request is not sent again.
            connection.sendall(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody".encode())
            answer = http.client.HTTPResponse(connection, method="POST")
            answer.begin()
            return answer.status, answer.read()[:4], list(answered)

    assert post("/plain") == (200, b"done", ["/plain"])
    assert post("/plain") == (200, b"done", ["/plain"])
    assert len(connections) == 1, "requests share a connection"
    # A server that takes no more requests for now keeps none waiting, and its connection is not kept either.
    for _ in range(3):
        before = len(connections)
        assert post("/pausing") == (200, b"done", ["/pausing"])
        assert post("/plain") == (200, b"done", ["/plain"]), "it does not wait for the paused connection"
        assert len(connections) == before + 1, "it goes on another one"
        deadline = time.monotonic() + 20
        while before not in closed and time.monotonic() < deadline:
            time.sleep(0.01)
        assert before in closed, "the paused connection is closed"
    for path in ["/refused", "/going"]:
        assert post("/plain")[0] == 200
        assert post(path) == (200, b"done", [path]), path
    assert post("/plain")[0] == 200
    status, _, seen = post("/seen")
    assert (status, seen) == (502, ["/seen"]), (status, seen)
    assert post("/plain")[0] == 200
    print("refusing: ok")


main()
