"""Messages in the wire format of Protocol Buffers, without a schema."""


def varint(value):
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def part(field, value):
    return varint(field << 3 | 2) + varint(len(value)) + value


def number(field, value):
    return varint(field << 3) + varint(value)


def parts(message):
    """The fields by their numbers: bytes and numbers."""
    found, at = {}, 0

    def read():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = read()
        value = read()
        if tag & 7 == 2:
            value, at = message[at : at + value], at + value
        found.setdefault(tag >> 3, []).append(value)
    return found
