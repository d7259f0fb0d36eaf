"""Model folders of a trainer: written whole, as what the base is, and refused before anything is sampled."""

import msgspec
import pytest
import torch
import transformers
from tiny_model import CONTEXT, tiny_llama, tiny_qwen, train_tokenizer, write_folder
from whale_baselines.checkpoint import Checkpoints, TrainingState
from whale_baselines.recipe import Recipe
from whale_baselines.rsft import RsftTrainer
from whale_baselines.sampler import SamplerState
from whale_baselines.sequences import IGNORED, Row
from whale_baselines.weights import load_model, rest_of, write_model

from whale_bench.models import vllm_backend
from whale_bench.models.chat_template import ChatTemplate
from whale_bench.models.layout import check_replaces, layout, weight_files
from whale_envs.errors import UsageError

pytestmark = pytest.mark.usefixtures("one_thread")
VOCABULARY = len(train_tokenizer()["model"]["vocab"])
ROWS = [Row((7, 8, 9, 10, 11), (IGNORED, IGNORED, 9, 10, 11)), Row((7, 8, 9), (IGNORED, IGNORED, 9))]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of a model of text and images."""
    return write_folder(tmp_path_factory.mktemp("weights") / "base", model=tiny_qwen(VOCABULARY))


def tensors_of(folder):
    from safetensors.torch import load_file

    return {name: value for file in weight_files(folder) for name, value in load_file(file).items()}


def test_the_text_of_a_model_of_text_and_images_is_trained_and_a_whole_model_written(images, tmp_path):
    trainer = RsftTrainer(images, Recipe(lr=1e-3, precision="float32", minibatch=2))
    assert trainer.update(ROWS, step=0).updates == 1
    trainer.write_weights(tmp_path)
    trainer.write_state(tmp_path)
    check_replaces("vllm/base", tmp_path, *(layout(f, vllm_backend._read(f)[1]) for f in (images, tmp_path)))
    before, after = tensors_of(images), tensors_of(tmp_path)
    kept = {name for name in before if torch.equal(before[name], after[name])}
    assert kept == {name for name in before if ".visual." in name}
    whole, told = transformers.Qwen3_5ForConditionalGeneration.from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    assert not any(told.values())
    trained = dict(trainer.model.named_parameters())
    for name, value in whole.model.language_model.named_parameters():
        assert torch.equal(value, trained[f"model.{name}"])
    other = RsftTrainer(images, trainer.recipe)
    other.restore(tmp_path)
    assert all(torch.equal(value, trained[name]) for name, value in other.model.named_parameters())


def test_vllm_takes_vocabulary_and_context_from_the_text_part(images, monkeypatch):
    from types import SimpleNamespace

    from whale_bench.models import vllm_engine

    monkeypatch.setattr(vllm_backend, "_check_installation", lambda: None)
    monkeypatch.setattr(vllm_engine, "EngineThread", lambda folder, **given: SimpleNamespace(**given))
    backend = vllm_backend.VllmBackend.load(str(images))
    assert (backend.vocabulary, backend.context) == (VOCABULARY, CONTEXT)


@pytest.mark.parametrize("shard", ["5GB", "100KB"])
def test_written_folders_are_whole_in_one_file_and_in_several(images, tmp_path, shard, monkeypatch):
    model = load_model(images)
    save = model.save_pretrained
    monkeypatch.setattr(model, "save_pretrained", lambda folder, **k: save(folder, max_shard_size=shard, **k))
    write_model(model, tmp_path, rest_of(model, images))
    before, after = tensors_of(images), tensors_of(tmp_path)
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_a_base_whose_checkpoints_could_not_be_served_is_refused_at_once(tmp_path):
    bare = tiny_llama(VOCABULARY).model  # without an output layer: its tensors have other names
    base = write_folder(tmp_path / "base", model=bare)
    with pytest.raises(UsageError, match=r"cannot be trained: .*has shape"):
        RsftTrainer(base, Recipe(precision="float32"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_neither_written_nor_trained(tmp_path, value):
    base = write_folder(tmp_path / "base")
    model = load_model(base)
    with torch.no_grad():
        model.model.norm.weight[3] = value
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match=r"model.norm.weight that are not finite: .* smaller lr"):
        write_model(model, tmp_path / "out", rest_of(model, base))
    assert not list((tmp_path / "out").iterdir())
    model.save_pretrained(base)
    with pytest.raises(UsageError, match=r"model.norm.weight holds values that are not finite"):
        RsftTrainer(base, Recipe(precision="float32"))


def test_a_step_that_ends_in_such_weights_makes_no_checkpoint(tmp_path):
    recipe = Recipe(lr=1e-3, precision="float32", minibatch=4)
    trainer = RsftTrainer(write_folder(tmp_path / "base"), recipe)
    checkpoints = Checkpoints(tmp_path / "checkpoints", 2)
    state = TrainingState(base_id="b", recipe_id="r", sampler=SamplerState(seed=0))
    checkpoints.save(state, trainer.write_weights)
    trainer.update(ROWS, step=1)
    with torch.no_grad():
        trainer.model.model.norm.weight[3] = torch.inf  # as an update that is too large leaves it
    with pytest.raises(UsageError, match=r"training left values in .* not finite"):
        checkpoints.save(msgspec.structs.replace(state, step=1), trainer.write_weights)
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.state.step == 0
    load_model(latest.folder)


@pytest.mark.parametrize(
    "template",
    ["{% for message in messages %}{{ message['content'] }}", "{{ missing.part }}", "{{ 1 | no_filter }}"],
)
def test_a_chat_template_that_renders_nothing_is_refused_when_it_is_loaded(tmp_path, template):
    base = write_folder(tmp_path / "base")
    (base / "chat_template.jinja").write_text(template)
    with pytest.raises(UsageError, match="renders no message"):
        load_model(base)
    with pytest.raises(UsageError, match="renders no message"):
        ChatTemplate.load(base, name="local/base")


def test_a_chat_template_that_wants_a_system_message_is_taken(tmp_path):
    base = write_folder(tmp_path / "base")
    wants = "{% if messages[0]['role'] != 'system' %}{{ raise_exception('no system') }}{% endif %}x"
    (base / "chat_template.jinja").write_text(wants)
    load_model(base)
