"""One set of weights that is trained and sampled from; what is sampled is what the checkpoint holds."""

import asyncio

import pytest
import torch
from test_rsft import ROWS
from tiny_model import write_folder
from whale_baselines.recipe import Recipe
from whale_baselines.rsft import RsftTrainer

from whale_bench.models import shared
from whale_bench.models.base import Message, Request, Sampling
from whale_bench.models.folder import hash_folder
from whale_bench.models.local import LocalBackend
from whale_bench.models.shared import SharedBackend
from whale_envs.errors import InfrastructureError, UsageError

pytestmark = pytest.mark.usefixtures("one_thread")

REQUESTS = [
    Request((Message("user", text),), sampling=Sampling(temperature=0), max_tokens=12, seed=1)
    for text in ("hello world", "the answer is", "white to move e2e4 e7e5")
]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("shared") / "base")


def trainer_of(base, **changes):
    return RsftTrainer(base, Recipe(**{"lr": 3e-3, "precision": "float32", "minibatch": 2, **changes}))


async def ids_of(backend):
    return [(await backend.generate(request)).sampled_ids for request in REQUESTS]


async def alone(folder, precision):
    async with LocalBackend.load(str(folder), precision=precision) as backend:
        return await ids_of(backend)


def write(trainer, folder):
    folder.mkdir()
    trainer.write_weights(folder)
    return folder


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_after_each_hand_over_it_samples_as_a_backend_that_loaded_the_folder(base, tmp_path, precision):
    async def run():
        trainer = trainer_of(base)
        async with SharedBackend.of(trainer.model, str(base), precision=precision) as backend:
            assert backend.weights_id == hash_folder(base)
            before = await ids_of(backend)
            assert before == await alone(base, precision)
            for step in range(2):
                assert trainer.update(ROWS, step=step).updates == 2  # attention of its own, as before
                folder = write(trainer, tmp_path / f"{step}")
                assert await backend.reload(folder) == backend.weights_id == hash_folder(folder)
                after = await ids_of(backend)
                assert after == await alone(folder, precision)
            assert after != before

    asyncio.run(run())


def test_there_is_one_copy_of_the_weights(base):
    trainer = trainer_of(base)
    backend = SharedBackend.of(trainer.model, str(base), precision="float32")
    ours = {p.data_ptr() for p in trainer.model.parameters()}
    assert {p.data_ptr() for p in backend._loop.model.parameters()} == ours
    assert trainer.model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_weights_that_are_not_the_folders_are_refused(base, tmp_path, precision):
    async def run():
        trainer = trainer_of(base)
        async with SharedBackend.of(trainer.model, str(base), precision=precision) as backend:
            trainer.update(ROWS, step=0)
            folder = write(trainer, tmp_path / "step")
            trainer.update(ROWS, step=1)  # the folder is a step behind now
            with pytest.raises(InfrastructureError, match=r"not those of .*step': .* differs"):
                await backend.reload(folder)
            assert backend.weights_id == hash_folder(base)

    asyncio.run(run())


def test_a_folder_that_was_hashed_by_its_writer_is_compared_all_the_same_and_not_hashed_again(
    base, tmp_path, monkeypatch
):
    hashed = []

    def watched(folder, *endings):
        hashed.append((folder.name, *endings))
        return hash_folder(folder, *endings)

    async def run():
        trainer = trainer_of(base)
        async with SharedBackend.of(trainer.model, str(base), precision="float32") as backend:
            trainer.update(ROWS, step=0)
            folder = write(trainer, tmp_path / "step")
            weights_id = hash_folder(folder)
            monkeypatch.setattr(shared, "hash_folder", watched)
            monkeypatch.setattr(shared, "load_tokenizer", None)  # it is the one in use
            await backend.adopt(folder, weights_id)
            assert backend.weights_id == weights_id
            assert all(".safetensors" not in ending for _, *endings in hashed for ending in endings)
            assert len(hashed) == 1
            trainer.update(ROWS, step=1)
            with pytest.raises(InfrastructureError, match="differs"):
                await backend.adopt(folder, "sha256:whatever")
            assert backend.weights_id == weights_id

    asyncio.run(run())


def test_another_chat_template_in_the_folder_is_taken_over(base, tmp_path):
    async def run():
        trainer = trainer_of(base)
        async with SharedBackend.of(trainer.model, str(base)) as backend:
            folder = write(trainer, tmp_path / "step")
            template = folder / "chat_template.jinja"
            template.write_text(template.read_text().replace("assistant", "robot"))
            assert await backend.reload(folder) == backend.weights_id == hash_folder(folder)
            assert "robot" in backend.render(REQUESTS[0].messages)

    asyncio.run(run())


def test_a_model_that_was_changed_before_is_not_shared(base):
    trainer = trainer_of(base)
    with torch.no_grad():
        trainer.model.get_input_embeddings().weight[5, 5] += 1e-3
    with pytest.raises(InfrastructureError, match=r"embed_tokens\.weight differs"):
        SharedBackend.of(trainer.model, str(base))


def test_another_architecture_or_a_damaged_folder_is_refused(base, tmp_path):
    async def run():
        trainer = trainer_of(base)
        async with SharedBackend.of(trainer.model, str(base)) as backend:
            folder = write(trainer, tmp_path / "step")
            (folder / "model.safetensors").write_bytes(b"no tensors")
            with pytest.raises(UsageError, match="cannot be read"):
                await backend.reload(folder)
            assert (await backend.generate(REQUESTS[0])).sampled_ids  # goes on

    asyncio.run(run())


def test_adapters_are_not_shared(base):
    assert trainer_of(base).shareable
    assert not trainer_of(base, lora_rank=2).shareable
