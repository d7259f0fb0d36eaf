"""New weights for a server elsewhere, and telling whether it serves them."""

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st
from test_rsft import make_rows
from tiny_model import write_folder
from weight_server import WeightServer
from whale_baselines.real_operators import _backend
from whale_baselines.recipe import Recipe
from whale_baselines.rsft import RsftTrainer
from whale_baselines.serving import _logprobs_in

from whale_bench.models import openai_reload
from whale_bench.models.base import Message, Request, names_weights
from whale_bench.models.folder import hash_folder
from whale_bench.models.openai_reload import Fingerprints, ReloadedServer, check_fingerprint
from whale_bench.models.openai_restart import RestartedServer
from whale_bench.plan import EvalPlan
from whale_envs.errors import InfrastructureError, UsageError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("server") / "base")


@asynccontextmanager
async def serving(base, **how):
    """(trainer, the server, a backend that asks it)."""
    server = WeightServer(base, **how)
    trainer = RsftTrainer(base, Recipe(lr=1e-2, precision="float32", minibatch=4))
    async with server.backend, TestServer(server.app) as listening:
        url = str(listening.make_url("/v1"))
        backend = ReloadedServer("policy", str(base), logprobs=trainer.logprobs, base_url=url)
        async with backend:
            yield trainer, server, backend


def train(trainer, folder):
    trainer.update(make_rows(16, seed=3), step=0)
    folder.mkdir()
    trainer.write_weights(folder)
    return folder


def test_a_server_that_takes_the_weights_is_believed_and_never_shown_as_verified(base, tmp_path):
    async def run():
        async with serving(base) as (trainer, server, backend):
            assert await backend.reload(base) == f"remote:policy:{hash_folder(base)}"
            folder = train(trainer, tmp_path / "next")
            weights_id = await backend.reload(folder)
            assert server.backend.weights_id == hash_folder(folder)
            assert server.resets == 2
            assert weights_id == backend.weights_id != hash_folder(folder)
            assert names_weights(weights_id, hash_folder(folder))
            assert not names_weights(weights_id, hash_folder(base))
            found = await backend.generate(Request((Message("user", "hello"),), max_tokens=4))
            assert found.sampled_ids

    asyncio.run(run())


@pytest.mark.parametrize("obeys", ["not", "partly"])
def test_a_server_that_serves_old_weights_or_a_mixture_stops_the_run(base, tmp_path, obeys):
    async def run():
        async with serving(base, obeys=obeys) as (trainer, _, backend):
            await backend.reload(base)
            with pytest.raises(InfrastructureError, match=r"serves other weights|did not take all"):
                await backend.reload(train(trainer, tmp_path / "next"))
            assert backend.weights_id == f"remote:policy:{hash_folder(base)}"

    asyncio.run(run())


def test_earlier_weights_are_compared_with_their_own_log_probabilities(base, tmp_path):
    other = write_folder(tmp_path / "other", seed=5)

    async def run():
        async with serving(base) as (trainer, server, backend):
            await backend.reload(train(trainer, tmp_path / "next"))
            await backend.reload(base, logprobs=partial(_logprobs_in, base))
            assert server.backend.weights_id == hash_folder(base)
            await backend.reload(tmp_path / "next")
        async with serving(base, obeys="not") as (_, _, backend):
            await backend.reload(base)
            with pytest.raises(InfrastructureError, match=r"serves other weights|did not take all"):
                await backend.reload(other, logprobs=partial(_logprobs_in, other))

    asyncio.run(run())


def test_a_server_of_another_model_is_found_out_before_the_first_rollout(base, tmp_path):
    other = write_folder(tmp_path / "other", seed=5)

    async def run():
        async with serving(other, obeys="not") as (_, _, backend):
            backend._logprobs = RsftTrainer(base, Recipe(precision="float32")).logprobs
            with pytest.raises(InfrastructureError, match=r"serves other weights.*a token"):
                await backend.reload(base)

    asyncio.run(run())


def test_a_server_without_the_routes_is_named_with_what_opens_them(base):
    async def run():
        async with serving(base, dev_mode=False) as (_, _, backend):
            with pytest.raises(UsageError, match="VLLM_SERVER_DEV_MODE=1"):
                await backend.reload(base)

    asyncio.run(run())


@pytest.mark.parametrize("moved", [False, True])
def test_what_was_remembered_finds_out_a_server_that_kept_its_weights_over_a_restart_of_ours(
    base, tmp_path, moved
):
    """Within the tolerance of one look only what was before tells, also of a server at a new address."""

    async def run():
        async with serving(base) as (trainer, _, backend):
            await backend.reload(base)
            told, folder = backend.remembered(), tmp_path / "next"
            trainer.update(make_rows(4, seed=3), step=0)
            folder.mkdir()
            trainer.write_weights(folder)
        async with serving(base, obeys="not") as (_, _, backend):
            if not moved:
                told = told.replace(
                    next(iter(json.loads(told))).encode(), backend._servers.all[0].address.encode()
                )
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(openai_reload, "TOLERANCE", 100.0)
                patch.setattr(openai_reload, "TELLING", 0.0)
                await backend.reload(folder, logprobs=partial(_logprobs_in, folder))  # who would know?
                backend.remember(told)
                with pytest.raises(InfrastructureError, match="did not take all of the new weights"):
                    await backend.reload(folder, logprobs=partial(_logprobs_in, folder))

    asyncio.run(run())


def test_a_server_that_is_gone_is_no_misuse(base):
    async def run():
        trainer = RsftTrainer(base, Recipe(precision="float32"))
        backend = ReloadedServer(
            "policy", str(base), logprobs=trainer.logprobs, base_url="http://127.0.0.1:9/v1"
        )
        async with backend:
            with pytest.raises(InfrastructureError, match="collective_rpc failed"):
                await backend.reload(base)

    asyncio.run(run())


def test_a_recipe_with_a_command_has_servers_of_its_own(base):
    command = f"{sys.executable} {{folder}}"
    trainer = SimpleNamespace(recipe=Recipe(server_command=command), logprobs=None)
    plan = EvalPlan(
        domain="chess_puzzles", model="openai/policy", tokenizer=str(base), base_url="http://127.0.0.1:9/v1"
    )
    assert isinstance(_backend(plan, trainer, trainer), RestartedServer)
    for other in (replace(plan, model="local/x"), replace(plan, base_url=None)):
        with pytest.raises(UsageError, match="server_command goes with openai/NAME and base_url"):
            _backend(other, trainer, trainer)
    assert Recipe(server_command=command).recipe_id == Recipe().recipe_id  # it decides no weight


@given(seed=st.integers(0, 10_000), taken=st.sampled_from([0.0, 0.5, 1.0]), step=st.floats(0.15, 1.0))
def test_what_rounding_does_is_told_from_what_a_reload_left_out(seed, taken, step):
    """Log-probabilities off by 0.02 a token, a change of `step` a token, of which `taken` arrived."""
    rng = np.random.default_rng(seed)
    old, change = rng.normal(-3, 1, 200), rng.normal(0, step, 200)
    lists = (
        old + rng.normal(0, 0.02, 200),
        old,
        old + taken * change + rng.normal(0, 0.02, 200),
        old + change,
    )
    before_theirs, before_ours, theirs, ours = (list(map(float, one)) for one in lists)
    before, now = Fingerprints(before_theirs, before_ours), Fingerprints(theirs, ours)
    if taken == 1.0:
        check_fingerprint(now, before, "it")
    else:
        with pytest.raises(InfrastructureError, match="it "):
            check_fingerprint(now, before, "it")


def test_a_change_that_rounding_hides_is_not_held_against_a_server():
    rng = np.random.default_rng(1)
    old = rng.normal(-3, 1, 200)
    noise = [rng.normal(0, 0.04, 200) for _ in range(2)]
    before = Fingerprints(list(old + noise[0]), list(old))
    check_fingerprint(Fingerprints(list(old + noise[1]), list(old + 1e-4)), before, "it")


def test_weights_that_are_handed_over_again_are_no_change_however_the_trainer_rounds():
    before = Fingerprints([-1.0] * 200, [-1.0] * 200, "sha256:a")
    check_fingerprint(Fingerprints([-1.0] * 200, [-1.000001] * 200, "sha256:a"), before, "it")
    with pytest.raises(InfrastructureError, match="did not take all"):
        check_fingerprint(Fingerprints([-1.0] * 200, [-1.000001] * 200, "sha256:b"), before, "it")


@pytest.mark.parametrize("bad", [[0.0], [float("nan"), 0.0]])
def test_log_probabilities_that_are_none_are_refused(bad):
    with pytest.raises(InfrastructureError, match="gave no usable"):
        check_fingerprint(Fingerprints(bad, [0.0, 0.0]), None, "it")


def test_the_trainers_log_probabilities_are_those_of_a_plain_forward_pass(base):
    trainer = RsftTrainer(base, Recipe(precision="float32"))
    found = trainer.logprobs([(5, 6, 7), (8, 9)])
    with torch.inference_mode():
        one = trainer.model(torch.tensor([[5, 6, 7]])).logits[0].log_softmax(-1)
        two = trainer.model(torch.tensor([[8, 9]])).logits[0].log_softmax(-1)
    expected = [one[0, 6], one[1, 7], two[0, 9]]
    assert found == pytest.approx([float(value) for value in expected], rel=1e-5)
