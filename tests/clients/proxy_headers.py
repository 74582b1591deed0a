"""PROXY protocol headers as an attacker would write them: proxy_headers.py ADDRESS:PORT

The port asks for a header, and answers with the client's address as an upstream sees it. Each header must be understood as
it is meant, whatever packets it comes in, or the connection must be closed without an answer.
"""

import socket
import struct
import sys
import time

HOST, PORT = sys.argv[1].rsplit(":", 1)
GET = b"GET /told HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
START = b"\r\n\r\n\0\r\nQUIT\n"
V4 = bytes([192, 0, 2, 7, 10, 0, 0, 2]) + struct.pack(">HH", 56324, 443)
MAPPED = b"\0" * 10 + b"\xff\xff" + bytes([192, 0, 2, 7]) + b"\0" * 15 + b"\1" + struct.pack(">HH", 56324, 443)


def v2(command, family, block, length=None):
    return START + bytes([command, family]) + struct.pack(">H", len(block) if length is None else length) + block


def value(kind, data, length=None):
    return bytes([kind]) + struct.pack(">H", len(data) if length is None else length) + data


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def summed(wrong=False):
    header = v2(0x21, 0x11, V4 + value(3, b"\0\0\0\0"))
    return header[:-4] + struct.pack(">I", crc32c(header) ^ wrong)


def ask(pieces):
    """The body of the answer, or nothing."""
    with socket.create_connection((HOST, int(PORT))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(20)
        came = b""
        try:
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.002 if len(pieces) > 1 else 0)
            while more := connection.recv(65536):
                came += more
        except ConnectionError:
            pass
    return came.decode()


TOLD, PEER, CLOSED = "192.0.2.7", "127.0.0.1", None
HEADERS = {
    # As they should be, with all that is allowed.
    "an IPv4 address in IPv6 form is that address": (b"PROXY TCP6 ::ffff:192.0.2.7 ::1 1 2\r\n", TOLD),
    "the same in version 2": (v2(0x21, 0x21, MAPPED), TOLD),
    "values of every kind": (v2(0x21, 0x11, V4 + value(0x20, b"\1\0\0\0\0") + value(0xE0, b"") + value(4, b"x" * 900)), TOLD),
    "a right checksum": (summed(), TOLD),
    "as long as it may be": (v2(0x21, 0x11, V4 + value(4, b"x" * (4096 - 16 - 12 - 3))), TOLD),
    "local, whatever stands there": (v2(0x20, 0x11, V4), PEER),
    "local, with what is no address": (v2(0x20, 0, b"\xff" * 300), PEER),
    "a local socket": (v2(0x21, 0x31, b"/run/a".ljust(108, b"\0") * 2), PEER),
    "a datagram": (v2(0x21, 0x12, V4), PEER),
    "no family": (v2(0x21, 0, b""), PEER),
    "unknown": (b"PROXY UNKNOWN 192.0.2.7 10.0.0.2 1 2\r\n", PEER),
    # As they should not.
    "too long": (v2(0x21, 0x11, V4 + value(4, b"x" * (4096 - 16 - 12 - 2))), CLOSED),
    "as long as can be said": (v2(0x21, 0x11, V4, 0xFFFF), CLOSED),
    "addresses that are cut off": (v2(0x21, 0x21, V4), CLOSED),
    "a value longer than the header": (v2(0x21, 0x11, V4 + value(4, b"xx", 3)), CLOSED),
    "a value's head that is cut off": (v2(0x21, 0x11, V4 + b"\4\0"), CLOSED),
    "a wrong checksum": (summed(True), CLOSED),
    "a short checksum": (v2(0x21, 0x11, V4 + value(3, b"\0\0")), CLOSED),
    "another version": (v2(0x31, 0x11, V4), CLOSED),
    "another command": (v2(0x22, 0x11, V4), CLOSED),
    "another family": (v2(0x21, 0x41, V4), CLOSED),
    "another protocol": (v2(0x21, 0x13, V4), CLOSED),
    "two headers": (b"PROXY TCP4 192.0.2.7 10.0.0.2 1 2\r\nPROXY TCP4 10.1.1.1 10.0.0.2 1 2\r\n", "400"),
    "both versions": (v2(0x21, 0x11, V4) + b"PROXY TCP4 10.1.1.1 10.0.0.2 1 2\r\n", "400"),
    "a line that never ends": (b"PROXY TCP4 " + b"1" * 200, CLOSED),
    "a bare line feed": (b"PROXY TCP4 192.0.2.7 10.0.0.2 1 2\n", CLOSED),
    "a tab": (b"PROXY\tTCP4 192.0.2.7 10.0.0.2 1 2\r\n", CLOSED),
    "two spaces": (b"PROXY TCP4  192.0.2.7 10.0.0.2 1 2\r\n", CLOSED),
    "a space at the end": (b"PROXY TCP4 192.0.2.7 10.0.0.2 1 2 \r\n", CLOSED),
    "too few words": (b"PROXY TCP4 192.0.2.7 10.0.0.2 1\r\n", CLOSED),
    "too many words": (b"PROXY TCP4 192.0.2.7 10.0.0.2 1 2 3\r\n", CLOSED),
    "small letters": (b"proxy TCP4 192.0.2.7 10.0.0.2 1 2\r\n", CLOSED),
    "the wrong family": (b"PROXY TCP4 ::1 ::2 1 2\r\n", CLOSED),
    "an octal address": (b"PROXY TCP4 192.0.02.7 10.0.0.2 1 2\r\n", CLOSED),
    "a short address": (b"PROXY TCP4 192.2 10.0.0.2 1 2\r\n", CLOSED),
    "a number for an address": (b"PROXY TCP4 3221225991 10.0.0.2 1 2\r\n", CLOSED),
    "an address with a zone": (b"PROXY TCP6 fe80::1%lo ::1 1 2\r\n", CLOSED),
    "a signed port": (b"PROXY TCP4 192.0.2.7 10.0.0.2 +1 2\r\n", CLOSED),
    "a large port": (b"PROXY TCP4 192.0.2.7 10.0.0.2 65536 2\r\n", CLOSED),
    "a zero byte": (b"PROXY TCP4 192.0.2.7\0 10.0.0.2 1 2\r\n", CLOSED),
    "a request in the line": (b"PROXY TCP4 192.0.2.7 10.0.0.2 1 2 GET / HTTP/1.1\r\n", CLOSED),
}
bad = []
for name, (header, expected) in HEADERS.items():
    cut = [1, 5, 11, 12, 13, 15, 16, 17, len(header) - 1, len(header), len(header) + 1]
    whole = header + GET
    ends = [0, *sorted({at for at in cut if 0 < at < len(whole)}), len(whole)]
    for pieces in [[whole], [whole[a:b] for a, b in zip(ends, ends[1:])]]:
        came = ask(pieces)
        if expected is CLOSED:
            good = came == ""
        elif expected == "400":
            good = came.startswith("HTTP/1.1 400 ")
        else:
            good = came.startswith("HTTP/1.1 200 ") and f'"x-told":"{expected}"' in came
        if not good:
            bad.append((name, len(pieces), came[:200]))
for one in bad:
    print(*one)
print("NOT all" if bad else f"{len(HEADERS)} headers: ok")
