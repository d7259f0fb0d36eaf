"""Renders the site's templates so that text of submissions is only ever text.

    page = Pages().render("rules.html", root="", title="Rules", rules=text)

Jinja escapes every value. Before that, characters that are invisible or that turn the direction of text are
spelt out, as on a replay's page. A page holds its style and script, and a content security policy by whose
hashes nothing else can run or load: no other script, no style of an element, no image, font or connection.

Not covered: which pages there are, see `build.py`.
"""

import html
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from whale_bench.view.page import HIDDEN, policy_of, static_text
from whale_envs import UsageError, __version__

if TYPE_CHECKING:
    from jinja2 import Environment


def plain(text: str) -> str:
    """The text with hidden characters spelt out.

    >>> plain("a\u202eb")
    'a‹U+202E›b'
    """
    if text.isprintable():  # holds none, and no line break: most text by far
        return text
    return HIDDEN.sub(lambda found: f"‹U+{ord(found[0]):04X}›", text.replace("\r\n", "\n"))


class Pages:
    """The templates, loaded.

    Raises:
        UsageError: Jinja is not installed.
    """

    def __init__(self) -> None:
        self._environment = _environment()
        style = static_text("style.css") + static_text("heat.css") + _static("site.css")
        script = static_text("theme.js") + _static("site.js")
        policy = policy_of(script, style)
        # The page's own parts are the only text here that is not escaped.
        self._environment.globals |= {
            "style": _markup(style),
            "script": _markup(script),
            "policy": _markup(html.escape(policy, quote=False)),
            "version": __version__,
        }

    def render(self, template: str, **values: Any) -> str:
        """A page. What a template needs and is not given is an error of ours."""
        return self._environment.get_template(template).render(**values)


@cache
def _environment() -> "Environment":
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise UsageError("the site needs Jinja: pip install 'whale-envs[site]'") from error
    environment = Environment(
        loader=FileSystemLoader(str(files("whale_leaderboard.site") / "templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters |= FILTERS
    return environment


def _finalize(value: Any) -> Any:
    if value is None:
        return "–"
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return plain(value)
    return value


def _markup(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)  # noqa: S704 - a file of this package


def _static(name: str) -> str:
    return (files("whale_leaderboard.site") / "static" / name).read_text(encoding="utf-8")


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _rise(value: float) -> str:
    return f"{value:+.4f}"


def _money(value: float | None) -> str:
    return "unknown" if value is None else f"${value:,.2f}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _short(name: str) -> str:
    """An id's kind and first characters."""
    kind, colon, rest = name.partition(":")
    return f"{kind}:{rest[:10]}…" if colon and len(rest) > 16 else name[:40]


def _joined(rows: str) -> Any:
    """Markup without the line breaks between its elements, each of which were a node of the page."""
    return _markup(str.replace(rows, ">\n<", "><"))  # not Markup.replace, which escapes what it puts in


FILTERS: Mapping[str, Any] = {
    "count": _count, "score": _score, "rise": _rise, "money": _money, "words": _words,
    "short": _short, "joined": _joined,
}  # fmt: skip
"""How numbers and names are written."""
