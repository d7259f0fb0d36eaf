"""What a machine lacks for a recipe is told before anything is loaded: GPU, memory, model."""

import json
import shutil

import pytest
from runs import recipe_in
from tiny_model import HIDDEN, write_folder
from whale_baselines import readiness
from whale_baselines.explain import training_bytes
from whale_baselines.readiness import Found, Gpu, check_ready, find_gpus, parameters_in
from whale_baselines.recipe_files import recipe_names
from whale_baselines.recipes import load_recipe

from whale_envs.errors import UsageError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("ready") / "model")


@pytest.fixture
def machine(monkeypatch):
    """Makes torch find these GPUs."""

    def has(*gigabytes):
        gpus = tuple(Gpu("H200", int(each * 1e9)) for each in gigabytes)
        monkeypatch.setattr(readiness, "find_gpus", lambda: Found(gpus, "torch 2 finds no CUDA device"))

    return has


def own(folder, base, model, more=""):
    text = f'base = "paper/math_python/{base}"\n[agent]\nmodel = "{model}"\n[recipe]\nmicro_tokens = 8\n'
    return recipe_in(folder, text + more)


def test_this_machine_is_seen_as_torch_sees_it(monkeypatch):
    import torch

    if torch.cuda.is_available():
        assert all(gpu.memory > 0 for gpu in find_gpus().gpus)
        return
    gpus, why = find_gpus()
    assert gpus == ()
    assert torch.__version__ in why
    assert ("is a build for CPUs" in why) == (torch.version.cuda is None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "torch is not installed here (pip install" in find_gpus().why


def test_without_a_gpu_a_paper_recipe_says_what_was_found_and_where_a_small_one_is(machine):
    machine()
    with pytest.raises(
        UsageError,
        match="needs a GPU, and torch 2 finds no CUDA device; demo/search_qa/fst is the same method",
    ):
        check_ready(load_recipe("paper/search_qa/fst"))
    check_ready(load_recipe("simulated/whale"))
    check_ready(load_recipe("demo/math_python/whale"))


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.startswith("paper/")])
def test_the_papers_models_are_served_by_what_knows_their_layers(name):
    assert str(load_recipe(name).agent["model"]).startswith("vllm/Qwen3.5-")


def test_a_search_with_a_model_elsewhere_needs_no_gpu_here_and_training_does(machine, tmp_path):
    machine()
    check_ready(own(tmp_path, "harness_only", "openai/x"))
    with pytest.raises(UsageError, match="needs a GPU"):
        check_ready(own(tmp_path, "weight_only", "openai/x"))


def test_a_model_that_is_not_here_is_named(machine, tmp_path, monkeypatch):
    machine(141)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="needs a model folder"):
        check_ready(load_recipe("paper/search_qa/fst"))


def test_memory_is_that_of_the_models_own_files_against_the_devices(machine, folder, tmp_path, monkeypatch):
    count = parameters_in(folder)
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    assert count > rows * HIDDEN
    needed = training_bytes(count, count, 8, rows)  # more than what serves beside weights and moments takes
    assert needed > (4 + 8 + 2) * count
    trains = own(tmp_path, "whale", f"vllm/{folder}")
    machine(needed / 1e9 * 1.01)
    check_ready(trains)
    machine(needed / 1e9 * 0.99)
    with pytest.raises(
        UsageError,
        match=r"at least [\d.]+ GB of memory on one GPU for .* billion parameters, .* H200 of [\d.]+ GB",
    ):
        check_ready(trains)
    check_ready(own(tmp_path, "harness_only", f"vllm/{folder}"))  # serves only
    check_ready(own(tmp_path, "whale", f"vllm/{folder}", "lora_rank = 8\n"))
    machine(needed / 1e9 * 0.6, needed / 1e9 * 0.6)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    check_ready(trains)


def test_a_damaged_file_of_weights_is_named(machine, folder, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "model.safetensors").write_bytes(b"half")
    machine(141)
    with pytest.raises(UsageError, match=r"model.safetensors: cannot be read"):
        check_ready(own(tmp_path, "whale", f"vllm/{broken}"))
