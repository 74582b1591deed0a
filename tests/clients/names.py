"""A name server: names.py PORT FILE

Answers questions over UDP from the lines `name address seconds` of FILE, which is read for each question. A name without a
line does not exist; it has no records of types other than A. Questions of type A are appended to FILE.asked.
"""

import ipaddress
import socket
import struct
import sys

PORT, FILE = int(sys.argv[1]), sys.argv[2]
A = 1


def records(name):
    with open(FILE) as file:
        return [line.split()[1:] for line in file if line.split()[:1] == [name]]


def answer(query):
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    name, question = ".".join(labels).lower(), query[12 : at + 5]
    (kind,) = struct.unpack("!H", query[at + 1 : at + 3])
    found = records(name)
    if kind == A:
        with open(FILE + ".asked", "a") as asked:
            print(name, file=asked)
    shown = found if kind == A else []
    flags = 0x8580 if found else 0x8583
    head = query[:2] + struct.pack("!HHHHH", flags, 1, len(shown), 0, 0)
    body = b"".join(
        struct.pack("!HHHIH", 0xC00C, A, 1, int(seconds), 4) + ipaddress.IPv4Address(address).packed
        for address, seconds in shown
    )
    return head + question + body


server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", PORT))
while True:
    query, client = server.recvfrom(4096)
    server.sendto(answer(query), client)
