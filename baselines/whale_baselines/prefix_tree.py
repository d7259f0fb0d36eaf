"""Rows that begin alike go through the model once for what they share: a tree of tokens in place of a batch.

    groups = tree_groups(minibatch.rows, budget=2048)   # None where too little is shared
    nll = tree_nll_sum(model, tree_of(group, model.device))

The samples of one example share their prompt, all examples of a harness its system message and worked
examples, and sampled answers are short: padded rows compute the same tokens many times over. In a tree each
prefix stands once. A token attends to itself and to its ancestors, its position is its depth, and its part of
the loss counts as often as rows have it as a label. That is the sum of the rows' own losses, and so is the
gradient; they differ by rounding alone (a test compares them in double precision).

The attention mask is dense, of size tokens squared, where kernels for causal rows skip half of it: a tree is
taken only where it has at most half of the rows' tokens, and holds at most `MOST` of them. All layers share
one mask, in the number format that they compute in.

Not covered: models whose layers do not all attend to everything before them, that have text as one of their
parts, or whose positions are no argument, and attention other than torch's own kernel. These are trained in
padded rows.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from whale_baselines.sequences import IGNORED, Row
from whale_bench.models.local import odd_layers

if TYPE_CHECKING:
    import torch

MOST = 4096
"""Tokens of one tree."""
WORTH = 0.5
"""Share of the rows' tokens that trees may have at most."""


class Tree(NamedTuple):
    """One row of tokens, each after all of its ancestors."""

    ids: "torch.Tensor"
    """[1, tokens], int64."""
    positions: "torch.Tensor"
    """[1, tokens], int64: how many ancestors a token has."""
    mask: "torch.Tensor"
    """[1, 1, tokens, tokens]: 0 where the token of a row attends to that of a column, else minus infinity."""
    parents: "torch.Tensor"
    """[targets], int64: where the model predicts from, ..."""
    targets: "torch.Tensor"
    """[targets], int64: ... the id that follows there, ..."""
    counts: "torch.Tensor"
    """[targets], float32: ... and in how many rows it is a label."""


def takes_trees(model: Any) -> bool:
    """Whether a model computes a tree as it would compute the rows."""
    config = model.config
    plain = config.get_text_config() is config and not getattr(config, "alibi", False)
    return plain and not odd_layers(config) and config._attn_implementation == "sdpa"


def tree_groups(rows: Sequence[Row], budget: int) -> list[tuple[Row, ...]] | None:
    """The rows in groups whose trees have at most `budget` tokens; None where that does not pay.

    A row longer than the budget stands alone; with one longer than `MOST` there are no trees.
    """
    if any(len(row.ids) > MOST for row in rows):
        return None
    budget = min(budget, MOST)
    groups: list[list[Row]] = []
    held = total = 0
    """Tokens of the last tree, and of all."""
    for row in sorted(rows, key=lambda row: row.ids):  # the row before is the one that shares most
        new = len(row.ids) - _shared(groups[-1][-1].ids, row.ids) if groups else 0
        if groups and held + new <= budget:
            groups[-1].append(row)
            held, total = held + new, total + new
        else:
            groups.append([row])
            held, total = len(row.ids), total + len(row.ids)
    if total > WORTH * sum(len(row.ids) for row in rows):
        return None
    return [tuple(group) for group in groups]


def tree_of(rows: Sequence[Row], device: Any = "cpu", dtype: "torch.dtype | None" = None) -> Tree:
    """The tree of these rows, its mask in `dtype`; None is float32."""
    import torch

    nodes: dict[tuple[int, int], int] = {}
    """The place of a token by its parent's and its id; the first of a row has parent -1."""
    ids, positions, parents, counts = list[int](), list[int](), list[int](), list[int]()
    for row in rows:
        at = -1
        for depth, (id_, label) in enumerate(zip(row.ids, row.labels, strict=True)):
            parent, at = at, nodes.setdefault((at, id_), len(ids))
            if at == len(ids):
                ids.append(id_)
                positions.append(depth)
                parents.append(parent)
                counts.append(0)
            counts[at] += depth > 0 and label != IGNORED
    visible = torch.eye(len(ids), dtype=torch.bool)
    for at, parent in enumerate(parents):
        if parent >= 0:
            visible[at] |= visible[parent]
    trained = [at for at, count in enumerate(counts) if count]
    return Tree(
        ids=torch.tensor([ids], device=device),
        positions=torch.tensor([positions], device=device),
        mask=torch.zeros(visible.shape, dtype=dtype)
        .masked_fill_(~visible, -torch.inf)[None, None]
        .to(device),
        parents=torch.tensor([parents[at] for at in trained], dtype=torch.int64, device=device),
        targets=torch.tensor([ids[at] for at in trained], dtype=torch.int64, device=device),
        counts=torch.tensor([counts[at] for at in trained], dtype=torch.float32, device=device),
    )


def tree_nll_sum(model: Any, tree: Tree, temperature: float = 1.0) -> "torch.Tensor":
    """What `loss.nll_sum` is of the rows."""
    import torch

    kept, of = torch.unique(tree.parents, return_inverse=True)
    out = model(
        input_ids=tree.ids,
        attention_mask=tree.mask,
        position_ids=tree.positions,
        logits_to_keep=kept,
        use_cache=False,
    )
    logits = out.logits[0].float() / temperature
    nll = torch.nn.functional.cross_entropy(logits[of], tree.targets, reduction="none")
    return (nll * tree.counts).sum()


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids they have in common at the beginning."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))
