"""Texts that a regular expression matches, and requests around a path."""

from re import _constants as ops
from re import _parser as parser


def sample(pattern, ignore_case=False):
    """A text that probably matches; None for an expression that this cannot read."""
    try:
        tree = parser.parse(pattern.replace("(?<", "(?P<").replace("(?P<=", "(?<=").replace("(?P<!", "(?<!"))
        text = "".join(_of(tree, {}))
    except (RecursionError, ValueError, parser.error, KeyError, OverflowError):
        return None
    return text.upper() if ignore_case else text


def _of(tree, groups):
    for op, value in tree:
        if op is ops.LITERAL:
            yield chr(value)
        elif op is ops.NOT_LITERAL:
            yield "x" if chr(value) != "x" else "y"
        elif op is ops.ANY:
            yield "a"
        elif op is ops.IN:
            yield _of_class(value)
        elif op in (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT):
            least, most, inside = value
            times = least if least > 0 else min(1, most)
            for _ in range(min(int(times), 40)):
                yield from _of(inside, groups)
        elif op is ops.SUBPATTERN:
            text = "".join(_of(value[3], groups))
            groups[value[0]] = text
            yield text
        elif op is ops.BRANCH:
            yield from _of(value[1][0], groups)
        elif op is ops.GROUPREF:
            yield groups.get(value, "")
        elif op is ops.ATOMIC_GROUP:
            yield from _of(value, groups)
        # Anchors and lookarounds add nothing.


def _of_class(items):
    negated, refused = False, set()
    for op, value in items:
        if op is ops.NEGATE:
            negated = True
        elif negated:
            refused.update(_members(op, value))
        else:
            return next(iter(_members(op, value)), "a")
    return next(c for c in "ab1-_.%/" if c not in refused)


def _members(op, value):
    if op is ops.LITERAL:
        return [chr(value)]
    if op is ops.RANGE:
        return [chr(c) for c in range(value[0], min(value[1], value[0] + 300) + 1)]
    return {ops.CATEGORY_DIGIT: list("1234567890"), ops.CATEGORY_WORD: list("ab1_"),
            ops.CATEGORY_SPACE: [" "]}.get(value, list("a-."))


def around(path):
    """A path, near misses and odd spellings of it."""
    plain = path.rstrip("/") or "/"
    deeper = path if path.endswith("/") else path + "/"
    found = [path, deeper, deeper + "a/b", deeper + "a%20b?x=1&y=2", path + "x", path + "?q=1"]
    if plain != "/":
        found += [plain, plain + "x/y", plain[:-1] or "/", plain.upper(), "/" + plain, plain + "/../other", plain + "//a",
                  plain + "/%2e%2e/x", "/%" + format(ord(plain[1]), "02x") + plain[2:], "/x" + plain]
    seen = []
    for one in found:
        if one.startswith("/") and one not in seen and " " not in one:
            seen.append(one)
    return seen
