"""The cross-play matrix as a heat map: a page of its own, and a part of the page that compares runs.

    write_crossplay(matrix, "whale-0", Path("runs/whale/crossplay/index.html"))

Every cell has its number; the shade only repeats it. Weights and harnesses are numbered in the order in which
the run came to them, with the first digits of their hashes below.

Not covered: playing, see `crossplay.py`.
"""

from collections.abc import Iterator
from pathlib import Path

from whale_baselines.curves import CrossPlay
from whale_baselines.page import document, static, text
from whale_baselines.play import twelve
from whale_bench.view.page import static_text, write_page

SHADES = 9


def write_crossplay(matrix: CrossPlay, where: str, out: Path) -> Path:
    """Writes the page of a run that is called `where`; returns where it stands."""
    body = ['<div class="heading"><h1>Cross-play on dev</h1></div>', *heat_map(matrix, where)]
    write_page(document(f"Cross-play: {where}", where, "\n".join(body), style=style()).encode(), out)
    return out


def style() -> str:
    """Of pages that compare runs."""
    return static_text("heat.css") + static("whale_baselines", "comparison.css")


def heat_map(matrix: CrossPlay, where: str) -> Iterator[str]:
    """The gap in a sentence, and the table."""
    yield f"<p>{gap_of(matrix)}</p>"
    yield (
        '<p class="note">A row is weights, a column a harness, both numbered as the run came to them. '
        "Outlined: the pair that the run had. Below each score its standard error.</p>"
    )
    yield (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Cross-play of {text(where)}">'
        '<table class="heat"><thead><tr><th scope="col">Weights</th>'
    )
    for number, harness_id in enumerate(matrix.harnesses):
        yield f'<th scope="col">Harness {number}<br><code>{text(twelve(harness_id)[:8])}</code></th>'
    yield "</tr></thead><tbody>"
    most = max((score.mean for row in matrix.scores for score in row), default=0.0) or 1.0
    for number, (weights_id, row) in enumerate(zip(matrix.weights, matrix.scores, strict=True)):
        yield f'<tr><th scope="row">{number} <code>{text(twelve(weights_id)[:8])}</code></th>'
        for harness_id, score in zip(matrix.harnesses, row, strict=True):
            own = " own" if matrix.partner.get(weights_id) == harness_id else ""
            shade = round(SHADES * score.mean / most)
            yield f'<td class="heat{shade}{own}">{score.mean:.1%}<br><small>± {score.stderr:.1%}</small></td>'
        yield "</tr>"
    yield "</tbody></table></div>"


def gap_of(matrix: CrossPlay) -> str:
    """The co-adaptation gap, for people."""
    gap = matrix.gap
    if gap is None:
        return "Co-adaptation gap: none, as there is only one harness or one pair."
    return (
        f"Co-adaptation gap, own harness less the others: {gap.mean:+.1%}, 95% interval over "
        f"{gap.examples} examples [{gap.low:+.1%}, {gap.high:+.1%}]."
    )
