"""Trees of rows that begin alike, against the rows one by one in double precision."""

import functools
from collections import Counter

import pytest
import torch
from accelerate.state import AcceleratorState
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rsft import VOCABULARY, gradients_of, plain_loss, trainer_of, weights_of
from tiny_model import tiny_llama, write_folder
from whale_baselines import rsft
from whale_baselines.prefix_tree import takes_trees, tree_groups, tree_nll_sum, tree_of
from whale_baselines.sequences import IGNORED, Row

pytestmark = pytest.mark.usefixtures("one_thread")


@st.composite
def rows_that_begin_alike(draw):
    """Rows over few ids, so that they branch at every depth, repeat, and are prefixes of one another."""
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        ids = tuple(draw(st.lists(st.integers(3, 5), min_size=1, max_size=8)))
        trained = draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
        rows.append(Row(ids, tuple(i if t else IGNORED for i, t in zip(ids, trained, strict=True))))
    return rows


@functools.cache
def double_models():
    return tiny_llama(VOCABULARY).double(), tiny_llama(VOCABULARY).double()


def summed_loss(model, rows):
    tokens = sum(row.tokens for row in rows)
    return plain_loss(model, rows) * tokens if tokens else torch.zeros(())


@settings(max_examples=25)
@given(rows_that_begin_alike())
def test_loss_and_gradient_are_those_of_the_rows_alone(rows):
    tree = tree_of(rows, dtype=torch.float64)
    prefixes = {row.ids[:end] for row in rows for end in range(1, len(row.ids) + 1)}
    assert tree.ids.shape[1] == len(prefixes)
    assert tree.counts.sum().item() == sum(row.tokens for row in rows)
    ours, plain = double_models()
    ours.zero_grad(set_to_none=False)
    plain.zero_grad(set_to_none=False)
    found, expected = tree_nll_sum(ours, tree), summed_loss(plain, rows)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-9)
    found.backward()
    if not expected.requires_grad:  # nothing is trained on: nothing moves, and every weight took part
        assert all(not gradient.any() for gradient in gradients_of(ours).values())
        return
    expected.backward()
    plain_gradients = gradients_of(plain)
    for name, gradient in gradients_of(ours).items():
        torch.testing.assert_close(gradient, plain_gradients[name], rtol=1e-4, atol=1e-6)


@given(rows_that_begin_alike(), st.integers(1, 30))
def test_groups_hold_every_row_once_and_fit_the_budget(rows, budget):
    if (groups := tree_groups(rows, budget)) is None:
        return
    assert Counter(row for group in groups for row in group) == Counter(rows)
    sizes = [tree_of(group).ids.shape[1] for group in groups]
    assert all(size <= budget or len(set(group)) == 1 for size, group in zip(sizes, groups, strict=True))
    assert sum(sizes) <= sum(len(row.ids) for row in rows) / 2


def test_a_tree_is_taken_only_where_it_saves_half():
    prompt = tuple(range(3, 13))
    alike = [Row((*prompt, end), (*[IGNORED] * 10, end)) for end in (20, 21)]
    assert tree_groups(alike, 100) is None  # 12 tokens for 22
    assert tree_groups(alike * 2, 100) is not None
    assert tree_groups([*alike * 2, Row((3,) * 4097, (IGNORED,) * 4097)], 100) is None
    assert tree_groups(alike * 2, 11) == [(alike[0],) * 2, (alike[1],) * 2]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("trees") / "base")


def samples_of_prompts():
    prompts = [tuple(range(10, 40)) + (60 + n,) * 4 for n in range(3)]
    rows = []
    for n, prompt in enumerate(prompts):
        for sample in range(5):
            answer = (100 + n, *[110 + sample % 3] * (1 + sample % 2), 2)
            rows.append(Row((*prompt, *answer), (*[IGNORED] * len(prompt), *answer)))
    return rows


def test_an_update_in_trees_is_the_update_in_padded_rows(base, monkeypatch):
    rows = samples_of_prompts()
    seen = []
    plant = tree_of
    monkeypatch.setattr(rsft, "tree_of", lambda *args: seen.append(plant(*args)) or seen[-1])
    settings = {"clip": 1e5, "minibatch": 8, "micro_tokens": 48}
    ours = trainer_of(base, **settings)
    update = ours.update(rows, step=0)
    assert len(seen) > 2
    assert max(tree.ids.shape[1] for tree in seen) <= 48
    monkeypatch.setattr(rsft, "takes_trees", lambda _model: False)
    padded = trainer_of(base, **settings)
    before, expected = weights_of(padded), padded.update(rows, step=0)
    assert (update.updates, update.tokens) == (expected.updates, expected.tokens) == (2, 51)
    assert update.loss == pytest.approx(expected.loss, rel=1e-5)
    assert update.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
    assert update.padding == 0
    mine, other = weights_of(ours), weights_of(padded)
    moved = max((other[name] - before[name]).abs().max().item() for name in before)
    apart = sum((mine[name] - other[name]).abs().sum().item() for name in before)
    count = sum(value.numel() for value in before.values())
    assert apart / count < 0.01 * moved  # Adam's first steps turn rounding of tiny gradients into signs


@pytest.fixture
def _any_precision():
    """accelerate takes one precision a process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("_any_precision")
@pytest.mark.parametrize("settings", [{"precision": "bfloat16"}, {"lora_rank": 4}])
def test_trees_train_rounded_passes_and_adapters_too(base, monkeypatch, settings):
    rows = samples_of_prompts()
    ours = trainer_of(base, minibatch=15, **settings).update(rows, step=0)
    monkeypatch.setattr(rsft, "takes_trees", lambda _model: False)
    padded = trainer_of(base, minibatch=15, **settings).update(rows, step=0)
    assert ours.padding == 0 < padded.padding
    assert ours.loss == pytest.approx(padded.loss, rel=1e-2)
    assert ours.grad_norm == pytest.approx(padded.grad_norm, rel=3e-2)


def test_all_layers_keep_one_mask():
    model, kept = tiny_llama(VOCABULARY), {}

    def pack(tensor):
        if tensor.shape[-2:] == (count, count):
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    tree = tree_of(samples_of_prompts())
    count = tree.ids.shape[1]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        tree_nll_sum(model, tree)
    assert len(kept) <= 1


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": ["full_attention", "linear_attention"]},
        {"sliding_window": 8},
        {"_attn_implementation": "eager"},
        {"alibi": True},
        {"get_text_config": lambda: None},  # of a model of text and images it is another config
    ],
)
def test_other_kinds_of_attention_are_trained_in_rows(changes):
    model = tiny_llama(VOCABULARY)
    assert takes_trees(model)
    for name, value in changes.items():
        setattr(model.config, name, value)
    assert not takes_trees(model)
