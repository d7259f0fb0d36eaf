"""A run's cross-play matrix in a bundle: what its author's run wrote, checked in form and never recomputed.

    matrix = read_matrix(bundle.read(CROSSPLAY, MOST_CROSSPLAY))
    matrix.scores[0][0].mean, matrix.partner

`whale-baselines crossplay RUN` writes `crossplay/matrix.json` into the run's folder: every kept weights with
every accepted harness on dev. `pack` takes it along; pages show it as *reported, not verified*, for its
rollouts are no part of a bundle.

Not covered: whether it is true.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from whale_leaderboard.naming import doubled

CROSSPLAY = "crossplay.json"
"""Its place in a bundle."""
OF_RUN = "crossplay/matrix.json"
"""Its place in a run's folder."""
MOST_CROSSPLAY = 2**23
"""Of its bytes."""

_Id = Annotated[str, Meta(min_length=1, max_length=512)]
_Share = Annotated[float, Meta(ge=0.0, le=1.0)]
_Rise = Annotated[float, Meta(ge=-1.0, le=1.0)]
_Ids = Annotated[tuple[_Id, ...], Meta(min_length=1, max_length=256)]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all in it."""


class Cell(_Strict, frozen=True, kw_only=True):
    """mean@k on dev of one pair."""

    mean: _Share
    stderr: _Share
    low: _Share
    high: _Share


class Gap(_Strict, frozen=True, kw_only=True):
    """A mean difference over examples."""

    examples: Annotated[int, Meta(ge=1, le=2**53)]
    mean: _Rise
    stderr: _Share
    low: _Rise
    high: _Rise


class Matrix(_Strict, frozen=True, kw_only=True):
    """Every saved weights with every accepted harness."""

    weights: _Ids
    """Rows, oldest first."""
    harnesses: _Ids
    """Columns."""
    scores: tuple[tuple[Cell, ...], ...]
    partner: Annotated[dict[_Id, _Id], Meta(max_length=256)]
    """The harness that each weights had in the run."""
    gap: Gap | None
    """How much better weights do with their own harness than with the others."""


def read_matrix(data: bytes) -> Matrix:
    """The matrix of a file.

    Raises:
        ValueError: it holds none, or not a score of each pair.
    """
    try:
        matrix = msgspec.json.decode(data, type=Matrix)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"is no cross-play matrix: {error}") from error
    if (name := doubled(data)) is not None:
        raise ValueError(f"has the name {name!r:.80} twice in one object")
    rows, columns = len(matrix.weights), len(matrix.harnesses)
    if len(matrix.scores) != rows or any(len(row) != columns for row in matrix.scores):
        raise ValueError(f"has not a score of each of {rows} weights with each of {columns} harnesses")
    return matrix
