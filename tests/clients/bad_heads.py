"""Heads that HTTP/2 and HTTP/3 do not allow, as lists of fields: a server of HTTP/1.1 behind would read another request."""


def fields(*given, method="GET", path="/echo", authority="server.test"):
    return [(":method", method), (":scheme", "https"), (":authority", authority), (":path", path), *given]


HEADS = {
    "host beside another authority": fields(("host", "other.test")),
    "two of a kind": fields()[:1] + fields(),
    "a name in upper case": fields(("X-Upper", "1")),
    "a late pseudo-header": [*fields()[:3], ("a", "b"), fields()[3]],
    "an unknown one": fields() + [(":own", "1")],
    "a response's": [(":status", "200")] + fields(),
    "no method": fields()[1:],
    "no scheme": fields()[:1] + fields()[2:],
    "no path": fields()[:3],
    "an empty path": fields(path=""),
    "no authority": fields()[:2] + fields()[3:],
    "an empty authority": fields(authority=""),
    "an authority with a user": fields(authority="user@server.test"),
    "an authority with a line": fields(authority="server.test\r\nX: y"),
    "a path with a line": fields(path="/echo HTTP/1.1\r\nX: y\r\n\r\nGET /echo"),
    "a path that begins with nothing": fields(path="echo"),
    "a method with a space": fields(method="GET /echo"),
    "connection": fields(("connection", "close")),
    "transfer-encoding": fields(("transfer-encoding", "chunked")),
    "proxy-connection": fields(("proxy-connection", "close")),
    "keep-alive": fields(("keep-alive", "5")),
    "te": fields(("te", "gzip")),
    "upgrade": fields(("upgrade", "websocket")),
    "a value with a line": fields(("a", "b\r\nc: d")),
    "a value with NUL": fields(("a", "b\0")),
    "a value with a space before": fields(("a", " b")),
    "a name with a space": fields(("a b", "c")),
    "an empty name": fields(("", "c")),
    "two lengths": fields(("content-length", "0"), ("content-length", "0")),
    "a length that is none": fields(("content-length", "+1")),
    "a length and no body": fields(("content-length", "1")),
    "an absolute path": fields(path="http://server.test/echo"),
    "a protocol that is none": [(":method", "CONNECT"), (":protocol", "connect-udp")] + fields()[1:],
    "a protocol without CONNECT": fields()[:1] + [(":protocol", "websocket")] + fields()[1:],
}
