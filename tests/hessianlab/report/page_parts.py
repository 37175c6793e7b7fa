"""What tests ask of a page's HTML: tags that close, ids, links."""

from html.parser import HTMLParser


class Tags(HTMLParser):
    """Checks that tags close in order, and collects attributes."""

    VOID = frozenset(("meta", "br", "path", "use", "image", "rect", "line", "circle", "input"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        told = dict(attrs)
        self.ids += [told["id"]] if told.get("id") else []
        self.links += [told["href"] or ""] if tag == "a" and "href" in told else []
        self.loaded += [told[name] or "" for name in ("href", "src", "xlink:href") if name in told and tag != "a"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag
