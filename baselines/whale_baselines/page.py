"""The frame of every page that this package writes: one file that asks nobody for anything.

    html = document("Lineage: h0", "runs/search", body, style=static("whale_baselines.search", "lineage.css"))

The style (that of `whale-bench view`, and a little more) and the one script, which chooses the theme, are
inlined and allowed by their hashes, nothing else is. `text` escapes, and shows characters that are invisible
or turn the direction of text by name.

Not covered: what stands on a page.
"""

import html
from importlib.resources import files

from whale_bench.view.hidden import HIDDEN
from whale_bench.view.page import policy_of, static_text
from whale_envs import __version__


def document(title: str, where: str, body: str, *, style: str) -> str:
    """The page.

    Args:
        title: of the window.
        where: what it is a page of, in its first line.
        body: HTML that is safe already.
        style: what this page has besides the common style.
    """
    style = static_text("style.css") + style
    script = static_text("theme.js")
    policy = policy_of(script, style)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{html.escape(policy, quote=False)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{text(title)}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header class="top">
<p class="brand"><a href="#main">whale-baselines</a> <span>{text(where)}</span></p>
<p class="theme"><label for="theme">Theme</label>
<select id="theme"><option value="">system</option><option value="light">light</option>
<option value="dark">dark</option></select></p>
</header>
<main id="main" tabindex="-1">
{body}
</main>
<footer class="bottom"><p>whale-envs {text(__version__)}</p></footer>
<script type="module">{script}</script>
</body>
</html>
"""


def text(of: str) -> str:
    """Text as a page may show it."""
    escaped = html.escape(of.replace("\r\n", "\n"))
    return HIDDEN.sub(lambda hidden: f'<span class="hidden-char">U+{ord(hidden[0]):04X}</span>', escaped)


def static(package: str, name: str) -> str:
    """A file beside a package."""
    return (files(package) / "static" / name).read_text(encoding="utf-8")
