"""The page of a report, as a browser reads it."""

from __future__ import annotations

import html.parser
import re

from tests.support.verify_scene import Scene

# Texts that must not become markup.
EVIL = [
    "<script>alert(1)</script>",
    "</pre></td></table></div><h1>owned</h1>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title></style></svg><style>*{display:none}</style>",
    "<!-- <![CDATA[ ]]> --> &lt;script&gt; &#x3c;",
    "{{7*7}} ${jndi:ldap://x} javascript:alert(1)",
    "\x1b[31mred\x1b]0;title\x07\x9b2J",
    "\u202egnp.exe \u2066x\u2069 \u200e\u200b\ufeff",
    "nul \x00 del \x7f line \n\r\u2028 tab \t",
    "lone \ud800 surrogate",
]

# A report is made of these tags and attributes. Others came from a log line.
TAGS = frozenset(
    [
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "header",
        "footer",
        "div",
        "p",
        "h1",
        "h2",
        "h3",
        "ul",
        "ol",
        "li",
        "dl",
        "dt",
        "dd",
        "br",
        "a",
        "b",
        "code",
        "pre",
        "span",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "details",
        "summary",
        "figure",
        "figcaption",
        "output",
        "svg",
        "path",
        "rect",
        "line",
        "text",
        "script",
    ]
)
ATTRIBUTES = frozenset(
    [
        "lang",
        "charset",
        "http-equiv",
        "content",
        "name",
        "class",
        "id",
        "href",
        "title",
        "role",
        "tabindex",
        "scope",
        "colspan",
        "open",
        "aria-label",
        "aria-hidden",
        "data-v",
        "width",
        "height",
        "x",
        "y",
        "x1",
        "x2",
        "y1",
        "y2",
        "d",
        "viewbox",
        "preserveaspectratio",
        "vector-effect",
        "fill",
        "fill-opacity",
        "stroke",
        "stroke-width",
        "stroke-linecap",
        "stroke-linejoin",
        "text-anchor",
    ]
)
HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


class Page(html.parser.HTMLParser):
    """Reads a page as a browser would, and looks at every tag and attribute."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.policy = ""
        self.inside: list[str] = []
        self.content: dict[str, list[str]] = {"style": [], "script": []}
        self.words: list[str] = []
        self.cells: list[tuple[str, str]] = []  # class and text
        self.titles: list[str] = []
        assert not HIDDEN.search(text)
        self.feed(text)
        self.close()
        assert self.inside == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        values = dict(attrs)
        assert len(values) == len(attrs)
        for name, value in attrs:
            assert name in ATTRIBUTES, (tag, name)
            assert name != "href" or re.fullmatch("#[a-z]+[0-9]*", value or ""), value
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"] or ""
        if tag in self.content:
            self.content[tag].append("")
            assert not attrs
        if tag == "td":
            self.cells.append((values.get("class") or "", ""))
        if tag not in ("meta", "br"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.inside.pop() == tag

    def handle_data(self, data: str) -> None:
        where = self.inside[-1] if self.inside else ""
        if where in self.content:
            self.content[where][-1] += data
            return
        if where == "title":
            self.titles.append(data)
        if "td" in self.inside:
            classes, before = self.cells[-1]
            self.cells[-1] = classes, before + data
        self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


def read_page(scene: Scene) -> Page:
    return Page((scene.out / "report.html").read_text())
