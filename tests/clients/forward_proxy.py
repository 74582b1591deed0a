"""An HTTP proxy that writes down its requests: forward_proxy.py PORT LOG

It passes on requests with a whole URL, and opens tunnels for CONNECT; names that end in .test are
this machine. A request without the right Proxy-Authorization gets 407. A tunnel to the port 1 gets
bytes behind the head of its answer.
"""

import http.client
import http.server
import socket
import sys
import threading
import urllib.parse

PORT, LOG = int(sys.argv[1]), sys.argv[2]


def pump(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def note(self):
        with open(LOG, "a") as log:
            log.write(f"{self.command} {self.path} {self.headers.get('Proxy-Authorization', '-')} {self.headers['Host']}\n")
        if self.headers.get("Proxy-Authorization") == "Basic cDpx":
            return True
        self.send_response(407)
        self.send_header("Content-Length", "0")
        self.end_headers()
        return False

    def do_CONNECT(self):
        if not self.note():
            return
        if self.path.endswith(":1"):
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\nbytes of the proxy")
            self.close_connection = True
            return
        host, port = self.path.rsplit(":", 1)
        host = "127.0.0.1" if host.endswith(".test") else host
        with socket.create_connection((host, int(port))) as server:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=pump, args=(server, self.connection))
            back.start()
            pump(self.connection, server)
            back.join()
        self.close_connection = True

    def do_GET(self):
        if not self.note():
            return
        url = urllib.parse.urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server = http.client.HTTPConnection(url.netloc)
        headers = {name: value for name, value in self.headers.items() if not name.lower().startswith("proxy-")}
        server.request(self.command, urllib.parse.urlunsplit(("", "", url.path, url.query, "")), body, headers)
        answer = server.getresponse()
        text = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_POST = do_GET

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
