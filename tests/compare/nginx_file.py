"""Reads nginx's configuration as nginx's tokenizer does, and writes it again with local addresses and files."""

import re
from pathlib import Path


class Directive:
    def __init__(self, words, line, file):
        self.words, self.line, self.file, self.block, self.end = words, line, file, None, line

    @property
    def name(self):
        return self.words[0]

    def all(self, name):
        return [one for one in self.block or [] if one.name == name]


def tokens(text):
    """Tokens with their line and whether they were quoted."""
    at, line = 0, 1
    while at < len(text):
        c = text[at]
        if c == "\n":
            line += 1
        if c.isspace():
            at += 1
        elif c == "#":
            at = text.find("\n", at) if "\n" in text[at:] else len(text)
        elif c in ";{}":
            yield c, line, False
            at += 1
        elif c in "\"'":
            begin, word = line, ""
            at += 1
            while at < len(text) and text[at] != c:
                if text[at] == "\\" and at + 1 < len(text) and text[at + 1] in "\"'\\":
                    at += 1
                line += text[at] == "\n"
                word += text[at]
                at += 1
            at += 1
            yield word, begin, True
        else:
            word = ""
            while at < len(text) and not text[at].isspace() and text[at] not in ";":
                if text[at] == "{" and not word.endswith("$"):
                    break
                if text[at] == "{":
                    end = text.find("}", at)
                    word += text[at:end + 1]
                    at = end + 1
                    continue
                if text[at] == "\\" and at + 1 < len(text):
                    word += text[at]
                    at += 1
                word += text[at]
                at += 1
            yield word, line, False


def parse(text, file):
    top = []
    stack, words, begin = [top], [], 1
    for word, line, quoted in tokens(text):
        if not words:
            begin = line
        if quoted or word not in (";", "{", "}"):
            words.append((word, quoted))
            continue
        if word == "}":
            if len(stack) > 1:
                stack.pop()
                stack[-1][-1].end = line
            continue
        if not words:
            continue
        one = Directive([text for text, _ in words], begin, file)
        one.quoted = [quoted for _, quoted in words]
        stack[-1].append(one)
        words = []
        if word == "{":
            one.block = []
            stack.append(one.block)
    return top


ADDRESS = re.compile(r"^(https?|grpcs?|h2c?)://([^/$\s?]+)(.*)$")


class Local:
    """Rewrites hosts, ports, certificates and files, and nothing else."""

    def __init__(self, folder, certs, ports):
        self.folder, self.certs, self.ports = folder, certs, ports
        self.listens, self.udp, self.upstreams, self.names, self.tls = {}, {}, {}, set(), set()

    def port_of_upstream(self, address):
        return self.upstreams.setdefault(address, None) or self._new(address)

    def _new(self, address):
        self.upstreams[address] = next(self.ports)
        return self.upstreams[address]

    def url(self, word):
        found = ADDRESS.match(word)
        if not found or found[2].split(":")[0] in self.names or found[2].startswith("unix:"):
            return word
        scheme, address, rest = found.groups()
        port = self.port_of_upstream(address)
        if scheme in ("https", "grpcs"):
            self.tls.add(port)
        return f"{scheme}://127.0.0.1:{port}{rest}"

    def address(self, word):
        """The value of a variable that stands for an address in a URL."""
        if re.match(r"^[A-Za-z][\w.-]*:\d+$", word):
            return f"127.0.0.1:{self.port_of_upstream(word)}"
        return "127.0.0.1" if re.match(r"^[A-Za-z][\w.-]*$", word) else word

    def listen(self, word, listens):
        if word.startswith("unix:"):
            word = "1"
        address, _, port = word.rpartition(":") if ":" in word and not word.endswith("]") else ("", "", word)
        if not port.isdigit():
            port = "80"
        if port not in listens:
            listens[port] = next(self.ports)
        return ("[::1]:" if address.startswith("[") else "127.0.0.1:") + str(listens[port])

    def directive(self, one, parent, folder):
        words, name = list(one.words), one.name
        if len(words) < 2:
            return words
        if name == "listen" and len(words) > 1:
            listens = self.udp if "udp" in words else self.listens
            words = [name, self.listen(words[1], listens)] + [w for w in words[2:] if not w.startswith(("ipv6only", "reuseport"))]
        elif name in ("proxy_pass", "grpc_pass", "set", "auth_request") and len(words) > 1:
            words = [name] + [self.url(word) for word in words[1:]]
            if name == "set" and len(words) > 2 and words[1] in self.addresses and words[2] not in self.names:
                words[2] = self.address(words[2])
            if name == "grpc_pass" and "://" not in words[1] and words[1] not in self.names:
                words[1] = f"grpc://127.0.0.1:{self.port_of_upstream(words[1])}"
            if name == "proxy_pass" and re.match(r"^[A-Za-z][\w.-]*:\d+$", words[1]):
                # In `stream`, addresses have no scheme.
                words[1] = f"127.0.0.1:{self.port_of_upstream(words[1])}"
        elif parent == "map" and len(words) > 1:
            words[-1] = self.url(words[-1])
        elif name == "server" and parent == "upstream":
            words[1] = f"127.0.0.1:{self.port_of_upstream(words[1])}"
            words = [word for word in words if word != "resolve"]
        elif name in ("ssl_certificate", "ssl_certificate_key"):
            words[1] = str(self.certs / ("server-ec.key" if name.endswith("key") else "server-ec.crt"))
        elif name in ("ssl_trusted_certificate", "ssl_client_certificate", "proxy_ssl_trusted_certificate"):
            words[1] = str(self.certs / "ca.crt")
        elif name in ("root", "alias") and len(words) > 1 and "$" not in words[1]:
            words[1] = str(folder / "www") + ("/" if words[1].endswith("/") else "")
        elif name in ("access_log", "error_log") and len(words) > 1 and words[1] != "off":
            words[1] = str(folder / name)
        elif name == "pid":
            words[1] = str(folder / "pid")
        elif name == "user":
            words = ["user", "root"]
        elif name == "auth_basic_user_file":
            words[1] = str(folder / "htpasswd")
        elif name in ("proxy_cache_path", "proxy_temp_path", "client_body_temp_path"):
            words[1] = str(folder / name)
        elif name == "ssl_dhparam":
            words[1] = str(folder / "dhparam")
        elif name == "include" and words[1].startswith("/etc/nginx/"):
            words[1] = words[1][len("/etc/nginx/"):]
        elif name == "resolver":
            words = ["resolver", "127.0.0.1"]
        return words

    def written(self, block, folder, parent="", depth=0):
        lines = []
        for one in block:
            if one.name in ("http", "stream"):
                self.names |= {up.words[1] for up in one.all("upstream") if len(up.words) > 1}
            words = self.directive(one, parent, folder)
            # Each directive stays in its line, as findings name lines.
            text = " ".join(quoted(word) for word in words)
            lines.append((one.line, text + (" {" if one.block is not None else ";")))
            if one.block is not None:
                lines += self.written(one.block, folder, one.name, depth + 1)
                lines.append((one.end, "}"))
        return lines

    def text(self, top, folder):
        passes = [one.words[1] for one, _ in walk(top) if one.name in ("proxy_pass", "grpc_pass") and len(one.words) > 1]
        self.addresses = {"$" + name for word in passes for name in re.findall(r"://\$\{?(\w+)", word)}
        self.names |= {up.words[1] for up in top if up.name == "upstream" and len(up.words) > 1}
        out, line = "", 1
        for at, text in self.written(top, folder):
            while line < at:
                out += "\n"
                line += 1
            out += text + " "
        return out + "\n"


def quoted(word):
    if word == "" or re.search(r"[\s;\"'#]", word) or (re.search("[{}]", word) and "${" not in word):
        return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return word


def walk(block, path=()):
    for one in block:
        yield one, path
        if one.block is not None:
            yield from walk(one.block, path + (one,))


def read(path):
    return parse(Path(path).read_text(errors="replace"), str(path))
