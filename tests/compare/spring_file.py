"""Reads files of Spring as one list of properties, each with its line and the place of its text."""

import re

import yaml


class Property:
    def __init__(self, key, value, line, last, begin, end, document):
        self.key, self.value, self.line, self.last, self.document = key, value, line, last, document
        self.begin, self.end = begin, end

    @property
    def name(self):
        """The key in the uniform spelling of Spring Boot."""
        return re.sub(r"[-_]", "", self.key).lower()


def read(path, text):
    """All properties; keys of lists are `name[0]`."""
    return list(of_properties(text) if path.suffix == ".properties" else of_yaml(text))


def of_yaml(text):
    for at, document in enumerate(yaml.compose_all(text)):
        if document is not None:
            yield from of_node(document, "", at)


def of_node(node, key, document):
    if isinstance(node, yaml.MappingNode) and node.value:
        for name, value in node.value:
            plain = name.value[1:-1] if re.fullmatch(r"\[.*\]", name.value) else name.value
            yield from of_node(value, f"{key}.{plain}" if key else plain, document)
    elif isinstance(node, yaml.SequenceNode) and node.value:
        for at, value in enumerate(node.value):
            yield from of_node(value, f"{key}[{at}]", document)
    else:
        begin, end = node.start_mark, node.end_mark
        value = node.value if isinstance(node, yaml.ScalarNode) else ""
        last = end.line + 1 if end.column or end.line == begin.line else end.line
        yield Property(key, value, begin.line + 1, last, begin.index, end.index, document)


def of_properties(text):
    offset, document, lines = 0, 0, text.splitlines(keepends=True)
    at = 0
    while at < len(lines):
        first, begin, logical = at, offset, ""
        while True:
            line = lines[at]
            offset, at = offset + len(line), at + 1
            logical += line.rstrip("\r\n").lstrip() if logical else line.rstrip("\r\n")
            if not re.search(r"(?<!\\)(\\\\)*\\$", logical) or at == len(lines):
                break
            logical = logical[:-1]
        stripped = logical.lstrip()
        if stripped in ("#---", "!---"):
            document += 1
        if not stripped or stripped[0] in "#!":
            continue
        found = re.match(r"((?:\\.|[^\\=:\s])+)\s*[=:\s]\s*(.*)", stripped)
        if found:
            start = text.index("=", begin) + 1
            value = re.sub(r"\\(.)", r"\1", found.group(2))
            yield Property(found.group(1), value, first + 1, at, start, offset - 1, document)


def resolved(value, values, depth=0):
    """The text with variables filled in by other properties or their defaults."""

    def fill(found):
        name, _, default = found.group(1).partition(":")
        known = values.get(re.sub(r"[-_]", "", name).lower())
        return default if known is None else resolved(known, values, depth + 1) if depth < 8 else known

    for _ in range(8):
        filled = re.sub(r"(?<!\\)\$\{([^${}]*)\}", fill, value)
        if filled == value:
            break
        value = filled
    return value
