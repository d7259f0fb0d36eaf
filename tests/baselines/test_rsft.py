"""The update, against a plain loop in double precision and against TRL's trainer."""

import random
import resource

import pytest
import torch
from tiny_model import tiny_llama, train_tokenizer, write_folder
from whale_baselines import rsft
from whale_baselines.checkpoint import Checkpoints, TrainingState
from whale_baselines.loss import Batch, collate, nll_sum
from whale_baselines.recipe import Recipe
from whale_baselines.rsft import RsftTrainer
from whale_baselines.sampler import SamplerState
from whale_baselines.sequences import IGNORED, Minibatch, Row

from whale_envs.errors import InfrastructureError, UsageError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("rsft") / "base")


def make_rows(count, *, seed=0, longest=40):
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        ids = tuple(rng.randrange(3, 250) for _ in range(rng.randrange(4, longest)))
        start = rng.randrange(1, len(ids) - 1)
        rows.append(
            Row(ids, tuple(i if at >= start and rng.random() < 0.8 else IGNORED for at, i in enumerate(ids)))
        )
    return rows


ROWS = make_rows(4)
VOCABULARY = len(train_tokenizer()["model"]["vocab"])


def trainer_of(base, **changes):
    return RsftTrainer(base, Recipe(**{"lr": 1e-3, "precision": "float32", "minibatch": 4, **changes}))


def plain_loss(model, rows):
    """Summed NLL over the global token count, row by row, without padding, in double precision."""
    total, tokens = 0.0, 0
    for row in rows:
        logprobs = model(torch.tensor([row.ids])).logits[0].log_softmax(-1)
        for at in range(1, len(row.ids)):
            if row.labels[at] != IGNORED:
                total = total - logprobs[at - 1, row.labels[at]]
                tokens += 1
    return total / tokens


def weights_of(trainer):
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def gradients_of(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.fixture(scope="module")
def reference():
    """Loss and gradient of the plain loop."""
    model = tiny_llama(VOCABULARY).double()
    loss = plain_loss(model, ROWS)
    loss.backward()
    return loss.item(), gradients_of(model)


@pytest.mark.parametrize("split", [(4,), (2, 2), (1, 1, 1, 1), (1, 3)])
def test_loss_and_gradient_are_those_of_a_plain_double_precision_loop(base, reference, split):
    trainer = trainer_of(base, clip=1e5)
    rest = list(ROWS)
    groups = [tuple(rest.pop(0) for _ in range(size)) for size in split]
    minibatch = Minibatch(tuple(ROWS), sum(row.tokens for row in ROWS))
    nll, norm = trainer._gradient(minibatch, groups)
    loss, gradients = reference
    assert nll / minibatch.tokens == pytest.approx(loss, rel=1e-5)
    expected = sum(float(g.square().sum()) for g in gradients.values()) ** 0.5
    assert norm == pytest.approx(expected, rel=1e-4)
    for name, gradient in gradients_of(trainer.model).items():
        torch.testing.assert_close(gradient.double(), gradients[name], rtol=1e-3, atol=2e-5)


def test_a_temperature_divides_the_logits():
    model, temperature = tiny_llama(VOCABULARY), 0.7
    row = ROWS[0]
    found = nll_sum(model, collate([row]), temperature).item()
    logprobs = (model(torch.tensor([row.ids])).logits[0] / temperature).log_softmax(-1)
    places = [at for at in range(1, len(row.ids)) if row.labels[at] != IGNORED]
    assert found == pytest.approx(-sum(logprobs[at - 1, row.ids[at]].item() for at in places), rel=1e-4)
    assert found != pytest.approx(nll_sum(model, collate([row])).item(), rel=1e-2)


def test_padding_may_stand_on_either_side():
    """0 is padding and the sampled end of turn at once."""
    model = tiny_llama(VOCABULARY)
    row = Row((7, 5, 6, 8, 8, 8, 9, 0), (IGNORED, 5, 6, IGNORED, IGNORED, IGNORED, 9, 0))
    assert row.tokens == 4
    none, zero, off = torch.zeros(1, 4).long(), torch.tensor([row.ids]), torch.full((1, 4), IGNORED)
    labels, ones = torch.tensor([row.labels]), torch.ones(1, 8).long()
    right = Batch(torch.cat([zero, none], 1), torch.cat([ones, none], 1), torch.cat([labels, off], 1))
    left = Batch(torch.cat([none, zero], 1), torch.cat([none, ones], 1), torch.cat([off, labels], 1))
    alone = nll_sum(model, collate([row])).item()
    assert nll_sum(model, right).item() == pytest.approx(alone, rel=1e-6)
    assert nll_sum(model, left).item() == pytest.approx(alone, rel=1e-6)


def test_tokens_are_weighed_alike_in_short_and_long_micro_batches(base, monkeypatch):
    """One token of loss 4 and three of loss 0: 1.0, not the mean of means, 2.0."""
    short, long = Row((1, 2), (IGNORED, 2)), Row((1, 2, 3, 4), (IGNORED, 2, 3, 4))
    monkeypatch.setattr(
        rsft,
        "nll_sum",
        lambda model, batch, _temperature: (
            0 * next(model.parameters()).sum() + (4.0 if batch.ids.shape[1] == 2 else 0.0)
        ),
    )
    update = trainer_of(base, micro_tokens=4).update([short, long], step=0)
    assert (update.loss, update.tokens, update.updates) == (1.0, 4, 1)


def test_nothing_accepted_changes_nothing(base):
    trainer = trainer_of(base)
    trainer.update(ROWS, step=0)
    before, optimizer = weights_of(trainer), trainer._optimizer.state_dict()
    state = {i: {k: v.clone() for k, v in s.items()} for i, s in optimizer["state"].items()}
    update = trainer.update([], step=1)
    assert (update.updates, update.loss, update.changed) == (0, None, 0.0)
    for name, value in weights_of(trainer).items():
        assert torch.equal(value, before[name])
    for i, values in trainer._optimizer.state_dict()["state"].items():
        assert all(torch.equal(v, state[i][k]) for k, v in values.items())


def poison(monkeypatch, bad):
    """Makes the loss of the calls numbered in `bad` infinite."""
    calls, true = iter(range(10_000)), nll_sum
    monkeypatch.setattr(
        rsft,
        "nll_sum",
        lambda model, batch, temperature: (
            true(model, batch, temperature) * (float("inf") if next(calls) in bad else 1.0)
        ),
    )


def test_an_update_whose_gradient_is_not_finite_is_left_out(base, monkeypatch):
    rows = make_rows(8, seed=1)
    poison(monkeypatch, {1})
    trainer = trainer_of(base, minibatch=2, micro_tokens=10_000)
    monkeypatch.setattr(rsft, "micro_batches", lambda rows, budget: [tuple(rows)])
    update = trainer.update(rows, step=0)
    assert (update.updates, update.skipped) == (3, 1)
    assert all(torch.isfinite(value).all() for value in weights_of(trainer).values())
    assert update.loss < 100


def test_three_such_updates_in_a_row_stop_the_phase_with_good_weights(base, monkeypatch):
    poison(monkeypatch, {1, 2, 3})
    monkeypatch.setattr(rsft, "micro_batches", lambda rows, budget: [tuple(rows)])
    trainer = trainer_of(base, minibatch=1)
    with pytest.raises(UsageError, match=r"step 5: the gradients of 3 updates in a row.*lr 0.001"):
        trainer.update(make_rows(6, seed=1), step=5)
    assert all(torch.isfinite(value).all() for value in weights_of(trainer).values())


def test_bad_updates_are_counted_over_steps(base, monkeypatch):
    poison(monkeypatch, {0, 1, 2})
    monkeypatch.setattr(rsft, "micro_batches", lambda rows, budget: [tuple(rows)])
    trainer = trainer_of(base)
    assert trainer.update(ROWS, step=0).skipped == 1
    assert trainer.update(ROWS, step=1).skipped == 1
    with pytest.raises(UsageError, match="3 updates in a row"):
        trainer.update(ROWS, step=2)


def test_training_makes_what_was_sampled_likelier(base):
    trainer = trainer_of(base)
    first = trainer.update(ROWS, step=0)
    for step in range(1, 6):
        last = trainer.update(ROWS, step=step)
    assert last.loss < first.loss - 0.5
    assert 0 < last.changed < 1
    assert first.padding < 0.05


def test_a_small_step_moves_fewer_bfloat16_values_than_it_moves_weights(base):
    trainer = trainer_of(base, lr=1e-7)
    before = weights_of(trainer)
    update = trainer.update(ROWS, step=0)
    moved = sum(int((value != before[name]).sum()) for name, value in weights_of(trainer).items())
    assert moved > 10_000
    assert update.changed < 0.01


def test_minibatches_follow_from_the_step_and_nothing_else(base):
    rows, weights = make_rows(12, seed=3), []
    for _ in range(2):
        trainer = trainer_of(base)
        torch.rand(len(weights) + 1)  # somebody else's use of the global generator
        trainer.update(rows, step=4)
        weights.append(weights_of(trainer))
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


@pytest.mark.parametrize("rank", [0, 4])
def test_what_was_written_is_restored_bit_for_bit(base, tmp_path, rank):
    one = trainer_of(base, lora_rank=rank)
    one.update(ROWS, step=0)
    one.write_weights(tmp_path)
    one.write_state(tmp_path)
    other = trainer_of(base, lora_rank=rank)
    other.restore(tmp_path)
    rows = make_rows(9, seed=5)
    assert one.update(rows, step=1) == other.update(rows, step=1)
    for name, value in weights_of(one).items():
        assert torch.equal(value, weights_of(other)[name]), name


def test_adapters_are_written_merged_into_an_ordinary_folder(base, tmp_path):
    import transformers

    trainer = trainer_of(base, lora_rank=4)
    assert 0 < trainer.update(ROWS, step=0).changed < 1
    trainer.update(ROWS, step=1)
    trainer.write_weights(tmp_path)
    ids = torch.tensor([ROWS[0].ids])
    written = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.inference_mode():
        torch.testing.assert_close(written(ids).logits, trainer.model(ids).logits, rtol=1e-3, atol=1e-3)
    assert {p.name for p in tmp_path.iterdir() if p.is_file()} == {p.name for p in base.iterdir()}


@pytest.mark.filterwarnings("ignore")
def test_an_update_is_that_of_trl(base, tmp_path):
    """The same four rows as one batch of TRL's trainer, with its own loss and another accumulation."""
    import transformers
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from whale_bench.models.chat_template import load_tokenizer

    ours = trainer_of(base, weight_decay=0.0)  # TRL's spares norms, the paper's trainer does not
    update = ours.update(ROWS, step=0)
    settings = SFTConfig(
        output_dir=str(tmp_path), max_length=None, gradient_checkpointing=False, use_cpu=True, bf16=False,
        report_to=[], max_steps=1, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        learning_rate=1e-3, lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0,
        save_strategy="no", logging_steps=1, disable_tqdm=True, dataset_num_proc=None,
    )  # fmt: skip
    rows = [{"input_ids": list(row.ids), "labels": list(row.labels)} for row in ROWS]
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    theirs = SFTTrainer(
        model, settings, train_dataset=Dataset.from_list(rows), processing_class=load_tokenizer(base)
    )
    theirs.train()
    logged = next(line for line in theirs.state.log_history if "grad_norm" in line)
    assert logged["loss"] == pytest.approx(update.loss, rel=1e-4)
    assert logged["grad_norm"] == pytest.approx(update.grad_norm, rel=1e-4)
    after = weights_of(ours)
    for name, value in model.state_dict().items():
        # Adam's first step has the size of lr wherever the gradient is not 0 up to rounding.
        near = (value - after[name]).abs() < 1e-5
        assert near.float().mean() > 0.999, name


def test_a_bfloat16_forward_pass_trains_float32_weights(base):
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # it has one precision a process
    try:
        trainer = trainer_of(base, precision="bfloat16", lr=1e-7)
        update = trainer.update(ROWS, step=0)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    assert {value.dtype for value in weights_of(trainer).values()} == {torch.float32}
    exact = trainer_of(base, lr=1e-7).update(ROWS, step=0)
    assert update.loss != exact.loss
    assert update.loss == pytest.approx(exact.loss, rel=0.02)
    assert update.changed < 0.01


@pytest.mark.parametrize("most", [100_000, 600_000])
def test_a_disk_that_fills_up_while_a_checkpoint_is_written_is_no_crash(base, tmp_path, most):
    """No file may grow beyond so many bytes: the first ends in the weights, the second in the optimizer."""
    trainer, checkpoints = trainer_of(base), Checkpoints(tmp_path, 2)
    trainer.update(ROWS, step=0)

    def fill(folder):
        trainer.write_weights(folder)
        trainer.write_state(folder)

    state = TrainingState(base_id="b", recipe_id="r", sampler=SamplerState(seed=0), step=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        with pytest.raises(InfrastructureError, match="step-000001: the checkpoint cannot be written"):
            checkpoints.save(state, fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
    assert checkpoints.save(state, fill) == checkpoints.latest()
