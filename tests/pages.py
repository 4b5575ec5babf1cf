"""Reads pages as a browser would, and markup that must not run there."""

import html.parser

ATTACK = '<script>alert("x")</script><img src=x onerror=alert(1)>{{ 7 * 7 }}'


class Page(html.parser.HTMLParser):
    """Collects tags, attributes and visible text."""

    def __init__(self, page):
        super().__init__()
        self.tags = []
        self.attributes = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data):
        self.text += data

    def check_inert(self):
        """The page runs nothing and requests nothing."""
        forbidden = {"script", "link", "iframe", "img", "image", "object", "embed", "base", "form"}
        assert not forbidden & set(self.tags)
        addresses = ("src", "href", "xlink:href", "action", "srcset")
        for name, value in self.attributes:
            assert not name.startswith("on")
            assert name not in addresses or value.startswith("#")
        assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in self.attributes


class _Tables(html.parser.HTMLParser):
    """Collects the rows of all tables, with the text of each cell."""

    def __init__(self, page):
        super().__init__()
        self.tables = []
        self.is_inside = False
        self.feed(page)

    def handle_starttag(self, tag, _):
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.is_inside = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.is_inside = False

    def handle_data(self, data):
        if self.is_inside:
            self.tables[-1][-1][-1] += f" {data}"


def tables_of(page):
    """The tables of a page; each a list of rows, a row a list of the texts of its cells."""
    return [[[" ".join(cell.split()) for cell in row] for row in t] for t in _Tables(page).tables]
