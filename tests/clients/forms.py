"""The first form of a page of a provider."""

import html.parser


class Form(html.parser.HTMLParser):
    """The first form of a page: where it goes to, and its fields."""

    def __init__(self, page):
        super().__init__()
        self.action, self.fields = None, {}
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "form" and self.action is None:
            self.action = attributes["action"]
        if tag in ("input", "button") and attributes.get("name"):
            self.fields.setdefault(attributes["name"], attributes.get("value") or "")
