r"""Finds the boxed answer in a response, and brings answers to one way of writing.

    >>> last_box(r"\boxed{5}; no: \boxed {\frac{1}{2}} and \boxed{3")
    '\\frac{1}{2}'
    >>> clean(r"$\dfrac{2}{7}\,.$")
    '\\frac{2}{7}'

A box is `\boxed` or `\fbox` (the backslash may be doubled), spaces, and braces that match; escaped
braces do not count. The box that begins last among the complete ones is the answer, as published;
so of nested boxes the inner one. Nothing outside a box is an answer. Every function here is total
and linear in its input.

Not covered: what an answer means (`rational.py`, `equality.py`).
"""

import re

from whale_envs.math_python.labels import strip_label
from whale_envs.text import strip_thinking

_TAG_STARTS = "<[◁"
"""Every tag of thinking begins with one of these (`whale_envs.text`)."""
_BOX = re.compile(r"\\\\?(?:boxed|fbox)\s*\{")
_BRACES = re.compile(r"\\[\\{}]|[{}]")
_TOKENS = re.compile(r"(\\\\?(?:boxed|fbox)\s*\{)|\\[\\{}]|[{}]")
_CHARACTERS = str.maketrans(
    {
        **{chr(0xFF01 + i): chr(0x21 + i) for i in range(94)},  # full-width forms
        "−": "-", "–": "-", "﹣": "-", "‐": "-", "‑": "-", "。": ".", "、": ",", "　": " ", "\u00a0": " ",
        "\u2009": " ", "\u202f": " ", "\u200b": None, "\u2060": None, "\ufeff": None,
        "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ", "÷": r"\div ", "π": r"\pi ", "∞": r"\infty ",
        "°": r"^\circ ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∅": r"\emptyset ",
        "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "⅓": r"\frac{1}{3}",
        "⅔": r"\frac{2}{3}", "⅕": r"\frac{1}{5}", "⅖": r"\frac{2}{5}", "⅗": r"\frac{3}{5}",
        "⅘": r"\frac{4}{5}", "⅙": r"\frac{1}{6}", "⅚": r"\frac{5}{6}", "⅛": r"\frac{1}{8}",
        "⅜": r"\frac{3}{8}", "⅝": r"\frac{5}{8}", "⅞": r"\frac{7}{8}", "º": r"^\circ ", "∈": r"\in ",
        "±": r"\pm ",
    }
)  # fmt: skip
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_RAISED_RUN = re.compile(r"[⁺⁻]?[⁰¹²³⁴-⁹]+")
_ROOT = re.compile(r"√\s*(?:(\d+|[A-Za-z])|\(([^()]*)\)|(?=\{))", re.ASCII)
_DRESS = re.compile(
    r"\\(?:text)?color(?:box)?\s*\{[A-Za-z0-9!,.]{1,30}\}|\\fcolorbox\s*(?:\{[A-Za-z0-9!,.]{1,30}\}\s*){2}"
    r"|\\[hv]?phantom\s*\{[^{}]{0,80}\}|\\[hv]space\*?\s*\{[^{}]{0,20}\}|\\(?:tag|label)\s*\{[^{}]{0,40}\}"
    r"|\\(?:tiny|scriptsize|small|normalsize|large|Large|LARGE|huge|Huge|bf|bfseries|it|scriptstyle)(?![A-Za-z])"
)
"""Colours, sizes, invisible things and numbers of lines: no part of an answer."""
_FONT = re.compile(
    r"(?:(?<=[-+*/=({\[,^_])|\A)\s*\\(?:text(?:bf|it|rm|normal)|math(?:rm|bf|it|sf)|boldsymbol|bm|underline)\s*"
    r"(?:(\d)|(\{(?:[^{}A-Za-z\\]|\\(?:[,;:! ]|[dtc]?frac|sqrt|pi(?![A-Za-z]))|\{[^{}A-Za-z\\]*\})*\}))"
)
"""A font around nothing but a number, where it begins a term: elsewhere 5 and a bold 7 would be 57."""
_LEAD = re.compile(
    r"(?:\\(?:therefore|Rightarrow|Longrightarrow|implies)(?![A-Za-z])|\\\\(?=[\s\d$+-])|[∴⇒\s])+"
)
_TAIL = re.compile(
    r"(?:\s|\\(?:checkmark|blacksquare|qed|newline)(?![A-Za-z])|[✓✔✅■]|\\text\s*\{[\s.,;!]{0,4}\}"
    r"|\\)+\Z"
)
r"""What may follow an answer; a backslash is what is left of a space or a line break (`12\ `)."""
_SPACING = re.compile(
    r"\\\\|\\[,;:! ]|\\(?:left|right|bigl?|bigr|Bigl?|Bigr|displaystyle|textstyle|limits|quad|qquad)"
    r"(?![A-Za-z])|\\[dtc]frac(?![A-Za-z])|\\[dt]binom(?![A-Za-z])|\\[lr]brace(?![A-Za-z])"
    r"|\\(?:leq|geq|neq|varnothing|ast|degree)(?![A-Za-z])|\{,\}|~"
)
_SPELLED = {
    "\\\\": "\\\\", "\\!": "", "\\ ": " ", "\\,": " ", "\\;": " ", "\\:": " ", "~": " ", "{,}": ",",
    "\\dfrac": "\\frac", "\\tfrac": "\\frac", "\\cfrac": "\\frac", "\\dbinom": "\\binom",
    "\\tbinom": "\\binom", "\\lbrace": "\\{", "\\rbrace": "\\}", "\\quad": " ",
    "\\qquad": " ", "\\leq": "\\le", "\\geq": "\\ge", "\\neq": "\\ne", "\\varnothing": "\\emptyset",
    "\\ast": "*", "\\degree": "^\\circ",
}  # fmt: skip
_WRAPPER = re.compile(
    r"(?:\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mathsf|mbox|boldsymbol|bm|boxed|fbox"
    r"|displaystyle|ensuremath|underline|mathbb)\s*)?\{"
)
_THOUSANDS = re.compile(r"(?<![\d.])[1-9]\d{0,2}(?:\{,\}\d{3})+(?!\d)", re.ASCII)
_DELIMITERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
_PLAIN = re.compile(r"[0-9+\-/.]+\Z")
_WORDY_GAP = re.compile(r"(?<=[A-Za-z0-9])\s+(?=[A-Za-z0-9.])")
_SPACE = re.compile(r"\s+")


def read_answer(response: str) -> str | None:
    """The content of the last complete box outside thinking, or None. An empty box is no answer."""
    if any(map(response.__contains__, _TAG_STARTS)):  # else there is no tag to look for
        response = strip_thinking(response)
    content = last_box(response)
    return content if content is not None and content.strip() else None


def last_box(text: str) -> str | None:
    """The content of the complete box that begins last, as written, or None."""
    start = max(text.rfind("boxed"), text.rfind("fbox"))
    if start < 0:
        return None
    for opening in _BOX.finditer(text, max(0, start - 2)):
        end = closing_brace(text, opening.end(), len(text))
        if end is not None:
            return text[opening.end() : end]
    return _last_box_of_all(text)


def closing_brace(text: str, start: int, stop: int) -> int | None:
    """Where the group that was opened just before `start` is closed, before `stop`, or None."""
    depth = 1
    for token in _BRACES.finditer(text, start, stop):
        if token[0] == "{":
            depth += 1
        elif token[0] == "}":
            depth -= 1
            if not depth:
                return token.start()
    return None


def _last_box_of_all(text: str) -> str | None:
    """As `last_box`, in one pass with a stack, for texts whose last box is broken off."""
    stack: list[int] = []
    best: tuple[int, int] | None = None
    for token in _TOKENS.finditer(text):
        word = token[0]
        if token[1]:
            stack.append(token.end())
        elif word == "{":
            stack.append(-1)
        elif word == "}" and stack:
            start = stack.pop()
            if start >= 0 and (best is None or start > best[0]):
                best = (start, token.start())
    return None if best is None else text[slice(*best)]


def clean(answer: str) -> str:
    """The answer without what does not change its meaning: spacing, delimiters, wrappers, a full stop.

    So do colours, sizes, words that only announce it, and marks before and after it (a "therefore", a
    tick). Fractions and binomials get one spelling, full-width, raised and typographic characters their
    plain form; an em dash is no minus.
    """
    text = answer.strip()
    if _PLAIN.match(text):
        return text if text.endswith("...") else text.rstrip(".") or text
    if not text.isascii():
        text = _ROOT.sub(lambda m: f"\\sqrt{{{m[1] or m[2]}}}" if m[1] or m[2] else "\\sqrt", text)
        text = _RAISED_RUN.sub(lambda m: f"^{{{m[0].translate(_RAISED)}}}", text).translate(_CHARACTERS)
    if "{,}" in text:
        text = _THOUSANDS.sub(lambda m: m[0].replace("{,}", ""), text)
    text = _FONT.sub(lambda m: m[1] or m[2], _DRESS.sub("", text))
    text = _SPACING.sub(lambda m: _SPELLED.get(m[0], ""), text)
    for _ in range(8):
        before = text
        text = strip_label(_trim_marks(text))
        for left, right in _DELIMITERS:
            if text.startswith(left) and text.endswith(right) and len(text) >= len(left) + len(right):
                text = text[len(left) : -len(right)].strip()
                break
        text = _trim_end(text)
        text = text.removeprefix("=").strip()
        wrapper = _WRAPPER.match(text)
        if wrapper and closing_brace(text, wrapper.end(), len(text)) == len(text) - 1:
            text = text[wrapper.end() : -1]
        if text == before:
            break
    return text


def _trim_marks(text: str) -> str:
    """The text without spaces and marks around it, such as a "therefore" or a tick."""
    lead = _LEAD.match(text)
    tail = _TAIL.search(text, max(0, len(text) - 200))
    return text[lead.end() if lead else 0 : tail.start() if tail else len(text)].strip()


def _trim_end(text: str) -> str:
    trimmed = text.rstrip(" \t\r\n.,;:")
    if text.endswith("...") or "..." in text[len(trimmed) :]:  # it goes on
        return text
    if len(trimmed) < len(text) and trimmed.endswith("\\"):  # the mark belonged to a command
        return text
    return trimmed or text


def squeeze(text: str) -> str:
    """The text without spaces that LaTeX ignores; two cleaned texts so equal are identical answers."""
    return _SPACE.sub("", _WORDY_GAP.sub("\x00", text)).replace("\x00", " ")
