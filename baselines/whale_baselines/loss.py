"""The loss: negative log-likelihood of what was sampled, over the tokens of the whole minibatch.

    batch = collate(rows, model.device)
    loss = nll_sum(model, batch) / minibatch.tokens     # add up over all micro-batches and processes

The sum and not the mean of a micro-batch: a mean of means would weigh the tokens of short
micro-batches too much. Dividing by the minibatch's count makes the gradient the same however its
rows are cut into micro-batches.

Only positions whose next token is trained on go through the output layer, which for a small model
with a large vocabulary is most of the work.

Not covered: the auxiliary losses of mixture-of-experts models.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from whale_baselines.sequences import IGNORED, Row

if TYPE_CHECKING:
    import torch

PAD = 0
"""Any id does: padding is neither attended to nor trained on, even where it is the end-of-turn token."""


class Batch(NamedTuple):
    """Rows as tensors [rows, longest], int64."""

    ids: "torch.Tensor"
    mask: "torch.Tensor"
    """1 where there is a token, 0 where there is padding."""
    labels: "torch.Tensor"


def collate(rows: Sequence[Row], device: Any = "cpu") -> Batch:
    """The rows, padded on the right to the longest."""
    import torch

    width = max(len(row.ids) for row in rows)
    ids = [list(row.ids) + [PAD] * (width - len(row.ids)) for row in rows]
    mask = [[1] * len(row.ids) + [0] * (width - len(row.ids)) for row in rows]
    labels = [list(row.labels) + [IGNORED] * (width - len(row.ids)) for row in rows]
    return Batch(*(torch.tensor(part, device=device) for part in (ids, mask, labels)))


def logprobs_of(model: Any, prompts: Sequence[tuple[int, ...]]) -> list[float]:
    """Log-probabilities of every token but the first of each prompt, all prompts after one another."""
    import torch

    found: list[float] = []
    with torch.no_grad():  # weights that are spread are gathered into what is trained on later
        for prompt in prompts:
            ids = torch.tensor([prompt], device=model.device)
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
            found += logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0].tolist()
    return found


def saved_bytes(model: Any, tokens: int) -> int:
    """What a forward pass over so many tokens keeps for the backward one, but for logits.

    Weights are not counted, nor what is saved twice; rounded copies of weights are.
    """
    import torch

    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}
    held: list[torch.Tensor] = []  # so that no place is given away and counted as one of before

    def pack(tensor: "torch.Tensor") -> "torch.Tensor":
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
            held.append(tensor)
        return tensor

    row = Row((PAD,) * tokens, (*[IGNORED] * (tokens - 1), PAD))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        nll_sum(model, collate([row], model.device))
    return sum(kept.values())


def nll_sum(model: Any, batch: Batch, temperature: float = 1.0) -> "torch.Tensor":
    """Summed negative log-likelihood of the labelled tokens, in float32; padding may stand anywhere.

    Logits are divided by `temperature`, so that it is the likelihood under what was sampled from.
    """
    import torch

    targets = batch.labels[:, 1:]
    kept = (targets != IGNORED).any(0).nonzero()[:, 0]
    out = model(
        input_ids=batch.ids,
        attention_mask=batch.mask,
        position_ids=(batch.mask.cumsum(-1) - 1).clamp(min=0),
        logits_to_keep=kept,
        use_cache=False,
    )
    return torch.nn.functional.cross_entropy(
        out.logits.float().flatten(0, 1) / temperature,
        targets[:, kept].flatten(),
        ignore_index=IGNORED,
        reduction="sum",
    )
