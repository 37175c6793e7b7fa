"""JavaScript without what only its readers need: comments, indentation, spaces, and marks that may be left out.

The text is taken apart into tokens and written down again; no name changes. Texts in quotes, templates and regular
expressions stay as they are. A line break stays wherever it might end a statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_BLANK = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)+", re.DOTALL)
_STRING = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'")
_NUMBER = re.compile(r"0[xX][\da-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"[#\w$]+")
_REGEX = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/\w*")
_TEMPLATE_TEXT = re.compile(r"(?:\\.|\$(?!\{)|[^`\\$])*", re.DOTALL)
_PUNCTUATION = re.compile(
    r"=>|\.{3}|\?\.(?!\d)|>{2,3}=?|<<=?|(?:\*\*|&&|\|\||\?\?)=?|\+\+|--|[=!]==?|[-+*/%&|^<>]=|.", re.DOTALL
)
_BEFORE_VALUES = {"return", "typeof", "case", "in", "of", "new", "delete", "void", "throw", "else", "do", "await"}
_RESTRICTED = {"return", "break", "continue", "throw", "yield", "async"}
_CLOSING = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True)
class Token:
    """A piece of a script.

    Attributes:
        kind: "word", "number", "value" (a string, a template text, a regular expression) or "mark".
        text: As it is written.
        new_line: Whether a line break stands before it.
    """

    kind: str
    text: str
    new_line: bool = False


def tokens(source: str) -> list[Token]:
    """A script taken apart; a template is its texts with the tokens of its expressions between them.

    >>> [token.text for token in tokens("a = `${b / 2}px`; // half")]
    ['a', '=', '`${', 'b', '/', '2', '}px`', ';']
    """
    found: list[Token] = []
    templates: list[int] = []  # the depth of braces inside each template that is open
    at, new_line = 0, False
    while at < len(source):
        blank = _BLANK.match(source, at)
        if blank:
            at, new_line = blank.end(), new_line or "\n" in blank[0]
            continue
        kind, text = _next(source, at, found[-1] if found else None, templates)
        found.append(Token(kind, text, new_line))
        at, new_line = at + len(text), False
    return found


def _next(source: str, at: int, before: Token | None, templates: list[int]) -> tuple[str, str]:
    """The kind and the text of the token that begins here."""
    char = source[at]
    if char == "`" or (char == "}" and templates and templates[-1] == 0):
        return "value", _template_text(source, at, templates)
    for kind, pattern in (("value", _STRING), ("number", _NUMBER), ("word", _WORD)):
        match = pattern.match(source, at)
        if match:
            return kind, match[0]
    regex = _REGEX.match(source, at) if char == "/" and _value_may_follow(before) else None
    if regex:
        return "value", regex[0]
    if templates and char in "{}":
        templates[-1] += 1 if char == "{" else -1
    match = _PUNCTUATION.match(source, at)
    assert match is not None
    return "mark", match[0]


def _template_text(source: str, at: int, templates: list[int]) -> str:
    """A text of a template with the marks around it, up to the next expression or to its end."""
    begins = source[at] == "`"
    match = _TEMPLATE_TEXT.match(source, at + 1)
    assert match is not None
    end = match.end()
    if end >= len(source):
        raise ValueError(f"script: got a template that does not end, {source[at : at + 30]!r}; expected a closing `.")
    closes = source[end] == "`"
    if begins and not closes:
        templates.append(0)
    elif closes and not begins:
        templates.pop()
    return source[at : end + (1 if closes else 2)]


def _value_may_follow(before: Token | None) -> bool:
    """Whether a slash here begins a regular expression; else it divides."""
    if before is None or before.text.endswith("${"):
        return True
    return (
        before.text in _BEFORE_VALUES if before.kind == "word" else before.kind == "mark" and before.text not in ")]}"
    )


def minify(source: str) -> str:
    r"""The same script in fewer characters.

    >>> minify("const f = (x) => {\n  return x + 0.5; // more\n};\nconst g = 1;\n")
    'const f=x=>{return x+.5},g=1;'
    """
    found = [_short_number(token) for token in tokens(source)]
    for shorten in (_without_needless_marks, _without_repeated_const):
        found = list(shorten(found))
    return "".join(_joined(found))


def _short_number(token: Token) -> Token:
    """0.5 as .5."""
    short = token.kind == "number" and re.fullmatch(r"0\.\d.*", token.text)
    return Token(token.kind, token.text[1:], token.new_line) if short else token


def _without_needless_marks(found: Sequence[Token]) -> Iterator[Token]:
    """Without a comma or a semicolon before a closing bracket, and without brackets around the one name of an arrow."""
    empty = _ends_of_conditions(found)
    for k, token in enumerate(found):
        before, after = found[k - 1].text if k else "", found[k + 1].text if k + 1 < len(found) else ""
        if token.text == "," and after in _CLOSING and before not in (",", "["):
            continue
        if token.text == ";" and after == "}" and k - 1 not in empty:
            continue
        if _is_mark(found, k, "(") and _is_lone_parameter(found, k):
            continue
        if _is_mark(found, k, ")") and k >= 2 and _is_mark(found, k - 2, "(") and _is_lone_parameter(found, k - 2):
            continue
        yield token


def _is_mark(found: Sequence[Token], k: int, text: str) -> bool:
    return found[k].kind == "mark" and found[k].text == text


def _is_lone_parameter(found: Sequence[Token], k: int) -> bool:
    """Whether `(name) =>` begins at this token."""
    own = found[k + 1 : k + 4]
    return len(own) == 3 and own[0].kind == "word" and own[1].text == ")" and own[2].text == "=>"


def _ends_of_conditions(found: Sequence[Token]) -> set[int]:
    """Where the brackets behind `if`, `for` and `while` close: a semicolon behind them is an empty statement."""
    opened: list[int] = []
    ends = set()
    for k, token in enumerate(found):
        if token.kind != "mark":
            continue
        if token.text == "(":
            opened.append(k)
        elif token.text == ")" and found[opened.pop() - 1].text in ("if", "for", "while"):
            ends.add(k)
    return ends


def _without_repeated_const(found: Sequence[Token]) -> Iterator[Token]:
    """`const a = 1, b = 2;` for two statements one after the other, where each ends with a semicolon."""
    constant: list[bool] = [False]  # by depth of brackets: whether the statement under way is one of `const`
    skip = False
    for k, token in enumerate(found):
        if skip:
            skip = False
            continue
        opens, closes = _brackets(token)
        if closes and len(constant) > 1:
            constant.pop()
        if opens:
            constant.append(False)
        after = found[k + 1].text if k + 1 < len(found) else ""
        if token.text == "const" and token.kind == "word":
            constant[-1] = k == 0 or found[k - 1].text != "("
        if token.kind == "mark" and token.text == ";":
            if constant[-1] and after == "const":
                skip = True
                yield Token("mark", ",")
                continue
            constant[-1] = False
        yield token


def _brackets(token: Token) -> tuple[bool, bool]:
    """Whether a token opens a bracket, and whether it closes one; the texts of templates do so too."""
    if token.kind == "mark":
        return token.text in "([{", token.text in ")]}"
    template = token.kind == "value" and (token.text[0] in "`}")
    return template and token.text.endswith("${"), template and token.text[0] == "}"


def _joined(found: Sequence[Token]) -> Iterator[str]:
    """The tokens, with a space or a line break only where one is needed."""
    before: Token | None = None
    for token in found:
        if before is not None:
            if token.new_line and (before.text in _RESTRICTED or (_may_end(before) and _may_begin(token))):
                yield "\n"
            elif _would_merge(before, token):
                yield " "
        yield token.text
        before = token


def _may_end(token: Token) -> bool:
    """Whether a statement may end with this token."""
    return (token.kind != "mark" and not token.text.endswith("${")) or token.text in ")]}"


def _may_begin(token: Token) -> bool:
    """Whether a statement may begin with it, where the line before could have gone on: an operator would have."""
    return token.kind in ("word", "number") or token.text[0] in "\"'{+-"


def _would_merge(before: Token, token: Token) -> bool:
    """Whether two tokens side by side would be read as others."""
    last, first = before.text[-1], token.text[0]
    wordlike = ("word", "number")
    if before.kind in wordlike and token.kind in wordlike:
        return True
    return (last == first and last in "+-/&|*=<>?.") or (before.kind == "number" and first == ".")
