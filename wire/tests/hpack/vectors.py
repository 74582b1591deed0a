"""Writes vectors.txt: field blocks by an independent implementation of HPACK, and its verdict.

Run with the package `hpack` 4.2.0 of PyPI (target/python has it, as a dependency of h2):

    target/python/bin/python wire/tests/hpack/vectors.py > wire/tests/hpack/vectors.txt

Each connection starts with `table SIZE`, the size that the decoder announced. `block HEX` is followed
by its fields; `refused HEX` ends the connection.
"""

import random

import hpack

NAMES = [
    ":authority", ":method", ":path", ":scheme", ":status", "accept", "accept-encoding", "cache-control",
    "content-length", "content-type", "cookie", "date", "etag", "grpc-status", "server", "set-cookie",
    "traceparent", "user-agent", "via", "x-forwarded-for", "x-own-name", "x-request-id",
]
VALUES = [
    "", "/", "0", "200", "GET", "https", "gzip, deflate", "no-cache", "application/grpc", "text/html; charset=utf-8",
    "Fri, 27 Nov 2026 16:22:37 GMT", "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36", "a=b; c=\"d\" {e} <f>",
]
PRINTABLE = "".join(map(chr, range(0x20, 0x7f)))


def field():
    name = random.choice(NAMES) if random.random() < 0.8 else "x-" + "".join(random.choices("abcdefghij-", k=12))
    value = random.choice(VALUES)
    if random.random() < 0.3:
        value = "".join(random.choices(PRINTABLE, k=random.choice([3, 20, 20, 120])))
    kind = hpack.NeverIndexedHeaderTuple if random.random() < 0.2 else hpack.HeaderTuple
    return kind(name, value)


def changed(block):
    """The block with one byte changed, removed or added."""
    at = random.randrange(len(block))
    byte = bytes([random.randrange(256)])
    return random.choice([block[:at] + byte + block[at + 1:], block[:at] + block[at + 1:], block[:at] + byte + block[at:]])


def decoded(decoder, block):
    """The fields of a block, or None if it is invalid. Other than printable texts are skipped."""
    try:
        fields = decoder.decode(block, raw=True)
    except hpack.HPACKError:
        return None
    lines = [f"{name.decode('latin-1')}: {value.decode('latin-1')}" for name, value in fields]
    return lines if all(line.isascii() and line.isprintable() for line in lines) else ["?"]


def connection(size):
    encoder, decoder = hpack.Encoder(), hpack.Decoder()
    decoder.max_allowed_table_size = size
    decoder.header_table_size = size
    encoder.header_table_size = size
    print("table", size)
    for _ in range(random.randrange(2, 9)):
        if random.random() < 0.2:
            encoder.header_table_size = random.randrange(size + 1)
        block = encoder.encode([field() for _ in range(random.randrange(1, 9))], huffman=random.random() < 0.6)
        ends = random.random() < 0.2
        if ends:
            block = changed(block)
        lines = decoded(decoder, block)
        if lines == ["?"]:
            return
        print("refused" if lines is None else "block", block.hex())
        for line in lines or []:
            print(line)
        # After a change the encoder's table may differ.
        if ends:
            return


random.seed(7541)
for _ in range(90):
    connection(random.choice([4096, 4096, 400, 150, 64, 0]))
