"""The vLLM backend on the real engine, with a tiny random Llama; nothing here asserts exact samples."""

import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import CONTEXT, write_folder

from whale_bench.models.base import Message, Pausable, Reloadable, Request, Sampling
from whale_bench.models.folder import hash_folder
from whale_bench.models.local import LocalBackend
from whale_bench.models.vllm_backend import VllmBackend
from whale_bench.models.vllm_build import MOST_SHARE, arguments, share_beside
from whale_envs.errors import InfrastructureError, ModelError, UsageError

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed: `make vllm`", allow_module_level=True)

# Raised by vLLM's and torch's own code.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

GREEDY = Sampling(temperature=0.0)
PROMPT = tuple(range(3, 60))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("vllm")
    return [write_folder(base / f"seed{seed}", seed=seed) for seed in range(2)]


@pytest.fixture(scope="module")
def backend(folders):
    loaded = VllmBackend.load(str(folders[0]), precision="float32")
    yield loaded
    loaded._engine.close()


def ask(prompt=PROMPT, **settings):
    return Request(messages=(), prompt_ids=prompt, **{"max_tokens": 12, **settings})


def wait_until(condition, timeout=60.0):
    ends = time.monotonic() + timeout
    while not condition() and time.monotonic() < ends:
        time.sleep(0.01)
    assert condition()


async def ask_all(backend, requests):
    return await asyncio.gather(*(backend.generate(r) for r in requests))


@pytest.fixture(scope="module")
def references(folders):
    """The same models in transformers."""
    import transformers

    load = transformers.AutoModelForCausalLM.from_pretrained
    return [load(folder, dtype=torch.float32).eval() for folder in folders]


def full_logits(reference, ids):
    with torch.inference_mode():
        return reference(torch.tensor([ids])).logits[0].float()


def greedy_continuation(reference, prompt, sampled):
    """What `reference` finds likeliest at each place of `sampled`."""
    logits = full_logits(reference, prompt + sampled)
    return tuple(logits.argmax(-1)[len(prompt) - 1 : -1].tolist())


async def test_a_generation_carries_exact_ids_and_texts(backend, folders):
    messages = (Message("system", "play"), Message("user", "white to move"))
    generation = await backend.generate(Request(messages=messages, max_tokens=9, seed=2**63 - 1))
    assert generation.prompt_ids == backend.encode(backend.render(messages))
    assert generation.raw_text == backend.decode(generation.sampled_ids)
    assert len(generation.logprobs) == len(generation.sampled_ids) == generation.usage.sampled_tokens
    assert backend.weights_id == hash_folder(folders[0])
    assert isinstance(backend, Reloadable)
    assert set(backend.seconds()) == {"load", "engine"}


async def test_it_is_the_same_model_to_the_engine_as_local(backend, folders):
    messages = (Message("user", "<|im_end|> e2e4"), Message("assistant", "hello"))
    async with LocalBackend.load(str(folders[0]), precision="float32") as local:
        assert backend.weights_id == local.weights_id
        assert backend.render(messages) == local.render(messages)
        assert backend.encode(backend.render(messages)) == local.encode(local.render(messages))
        assert backend.context == local.context == CONTEXT
        assert backend.vocabulary == local.vocabulary
        ours, theirs = [await b.generate(ask(sampling=GREEDY, max_tokens=20)) for b in (backend, local)]
    assert ours.sampled_ids == theirs.sampled_ids
    assert (ours.text, ours.finish_reason) == (theirs.text, theirs.finish_reason)
    assert ours.logprobs == pytest.approx(theirs.logprobs, abs=2e-4)


async def test_logprobs_are_the_models_own_whatever_was_cut_off(backend, references):
    kinds = [Sampling(temperature=0.7), Sampling(top_k=3), Sampling(top_k=0, top_p=0.5), GREEDY]
    requests = [ask(PROMPT[: 20 + i], seed=i, sampling=kinds[i % 4]) for i in range(16)]
    for request, generation in zip(requests, await ask_all(backend, requests), strict=True):
        ids = request.prompt_ids + generation.sampled_ids
        logprobs = full_logits(references[0], ids).log_softmax(-1)[len(request.prompt_ids) - 1 : -1]
        expected = logprobs.gather(-1, torch.tensor(generation.sampled_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(generation.logprobs), expected, atol=5e-4, rtol=1e-4)


async def test_many_requests_share_one_batch(backend):
    sizes = []
    step = backend._engine._engine.step

    def counted():
        sizes.append(len(backend._engine._running))
        return step()

    backend._engine._engine.step = counted
    try:
        generations = await ask_all(backend, [ask(seed=i, max_tokens=16) for i in range(64)])
    finally:
        backend._engine._engine.step = step
    assert max(sizes) == 64
    assert len(sizes) < 64
    assert len({g.sampled_ids for g in generations}) > 32


async def test_prompts_that_begin_alike_are_computed_once(backend):
    cached = []
    step = backend._engine._engine.step

    def counted():
        outputs = step()
        cached.extend(output.num_cached_tokens for output in outputs)
        return outputs

    prompt = tuple(3 + (7 * i) % 90 for i in range(100))
    backend._engine._engine.step = counted
    try:
        first, *_ = await ask_all(backend, [ask(prompt, seed=i) for i in range(8)])
        together, cached[:] = sorted(cached), []
        await backend.generate(ask(prompt + first.sampled_ids + (7, 8, 9)))
    finally:
        backend._engine._engine.step = step
    assert together == [0] + [96] * 7  # whole blocks of 32
    assert cached == [96]


async def test_seeds_make_samples_differ(backend):
    hot = Sampling(temperature=1.5, top_k=0)
    one, same, other = [await backend.generate(ask(seed=s, sampling=hot)) for s in (1, 1, 2)]
    assert one.sampled_ids == same.sampled_ids
    assert one.sampled_ids != other.sampled_ids


async def test_top_k_0_is_off_and_1_is_greedy(backend, references):
    logits = full_logits(references[0], PROMPT)
    outside = 1 - (logits / 2).softmax(-1).topk(20).values.sum(-1)
    place = int(outside[8:].argmax()) + 8
    assert outside[place] > 0.1
    likeliest = set(logits[place].topk(20).indices.tolist())

    async def first_ids(sampling):
        requests = [ask(PROMPT[: place + 1], seed=i, max_tokens=1, sampling=sampling) for i in range(100)]
        return {g.sampled_ids[0] for g in await ask_all(backend, requests)}

    assert not await first_ids(Sampling(temperature=2.0, top_k=0)) <= likeliest
    assert await first_ids(Sampling(temperature=2.0, top_k=20)) <= likeliest
    assert await first_ids(Sampling(top_k=1)) == {int(logits[place].argmax())}


async def test_the_end_token_stays_in_the_ids_and_out_of_the_text(backend):
    assert backend._engine.ends == {2}
    usual = await backend.generate(ask(sampling=GREEDY))
    assert usual.finish_reason == "length"
    end = usual.sampled_ids[4]
    backend._engine.ends = frozenset({end})
    try:
        ended = await backend.generate(ask(sampling=GREEDY))
    finally:
        backend._engine.ends = frozenset({2})
    assert ended.finish_reason == "stop"
    assert ended.sampled_ids == usual.sampled_ids[: usual.sampled_ids.index(end) + 1]


async def test_answers_end_at_the_context_and_prompts_must_leave_room(backend):
    prompt = tuple(3 + i % 90 for i in range(CONTEXT - 3))
    generation = await backend.generate(ask(prompt, max_tokens=None, sampling=GREEDY))
    assert len(generation.sampled_ids) == 3 or generation.finish_reason == "stop"
    with pytest.raises(ModelError) as caught:
        await backend.generate(ask((3,) * CONTEXT))
    assert caught.value.reason == "context_length"


@pytest.mark.parametrize(
    "wrong",
    [{"prompt": ()}, {"prompt": (10**6,)}, {"max_tokens": 0}, {"sampling": Sampling(temperature=-1.0)}],
)
async def test_requests_that_can_never_work_are_refused(backend, wrong):
    with pytest.raises(UsageError):
        await backend.generate(ask(**wrong))
    assert (await backend.generate(ask())).sampled_ids


async def test_cancelling_aborts_the_request_in_the_engine(backend):
    endless = backend._engine.ends
    backend._engine.ends = frozenset()
    long = asyncio.create_task(backend.generate(ask(PROMPT[:9], max_tokens=None)))
    await asyncio.to_thread(wait_until, lambda: backend._engine._running)
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    backend._engine.ends = endless
    await backend.generate(ask(max_tokens=1))
    assert not backend._engine._running
    assert backend._engine._engine.get_num_unfinished_requests() == 0


async def test_a_reload_serves_the_new_folder_and_going_back_restores_the_old(backend, folders, references):
    requests = [ask(PROMPT[i : i + 30], sampling=GREEDY) for i in range(6)]
    before = await ask_all(backend, requests)
    try:
        assert await backend.reload(folders[1]) == backend.weights_id == hash_folder(folders[1])
        for generation in await ask_all(backend, requests):
            likeliest = greedy_continuation(references[1], generation.prompt_ids, generation.sampled_ids)
            assert generation.sampled_ids == likeliest
            logprobs = full_logits(references[1], generation.prompt_ids + generation.sampled_ids)
            best = logprobs.log_softmax(-1).max(-1).values[len(generation.prompt_ids) - 1 : -1]
            assert generation.logprobs == pytest.approx(best.tolist(), abs=5e-4)
    finally:
        assert await backend.reload(folders[0]) == hash_folder(folders[0])
    assert [g.sampled_ids for g in await ask_all(backend, requests)] == [g.sampled_ids for g in before]


async def test_a_reload_waits_for_what_runs_and_holds_what_comes(backend, folders, references):
    before = asyncio.create_task(backend.generate(ask(sampling=GREEDY, max_tokens=60)))
    await asyncio.sleep(0)
    order = backend._engine.reload(str(folders[1]), swapped=lambda: None)
    behind = asyncio.create_task(backend.generate(ask(sampling=GREEDY)))
    old, new = await before, await behind
    assert order.done()
    await backend.reload(folders[0])
    assert old.sampled_ids == greedy_continuation(references[0], PROMPT, old.sampled_ids)
    assert new.sampled_ids == greedy_continuation(references[1], PROMPT, new.sampled_ids)


@pytest.fixture
def calls(backend, monkeypatch):
    """What vLLM's engine is told, with a backend that acts as if it had a GPU to share."""
    told, engine = [], backend._engine._engine
    monkeypatch.setattr(backend._engine, "lends", True)

    def heard(name):
        function = getattr(engine, name)

        def call(*args, **named):
            told.append((name, *args, *named.values()))
            return function(*args, **named)

        monkeypatch.setattr(engine, name, call)

    for name in ("sleep", "wake_up", "collective_rpc", "reset_prefix_cache", "step"):
        heard(name)
    return told


async def test_an_engine_rests_until_a_reload_puts_weights_where_the_old_ones_were(
    backend, folders, references, calls
):
    under_way = asyncio.create_task(backend.generate(ask(sampling=GREEDY, max_tokens=20)))
    await asyncio.sleep(0)
    await backend.rest()
    assert under_way.done()  # a rest waits for it
    assert backend.resting
    assert [call for call in calls if call[0] != "step"] == [("sleep", 2)]
    with pytest.raises(UsageError, match="samples nothing until a reload"):
        await backend.generate(ask())
    await backend.rest()  # rests already
    del calls[:]
    await backend.reload(folders[1])
    assert not backend.resting
    assert calls == [
        ("wake_up", ["weights"]),
        ("collective_rpc", "whale_reload", (str(folders[1]),)),
        ("wake_up", ["kv_cache"]),
        ("reset_prefix_cache",),
    ]
    new = await backend.generate(ask(sampling=GREEDY))
    assert new.sampled_ids == greedy_continuation(references[1], PROMPT, new.sampled_ids)
    await backend.reload(folders[0])  # awake, so nobody has to be woken
    assert [call[0] for call in calls[4:] if call[0] != "step"] == ["collective_rpc", "reset_prefix_cache"]


async def test_without_a_gpu_to_share_nothing_rests(backend):
    assert isinstance(backend, Pausable)
    await backend.rest()
    assert not backend.resting
    assert (await backend.generate(ask())).sampled_ids


def test_beside_a_trainer_vllm_is_given_a_share_and_can_sleep():
    from vllm import EngineArgs

    given = arguments("/models/a", "bfloat16", 8192, cpu=False, share=0.4)
    made = EngineArgs(**given)
    assert (made.enable_sleep_mode, made.gpu_memory_utilization) == (True, 0.4)
    alone = EngineArgs(**arguments("/models/a", "bfloat16", 8192, cpu=False, share=None))
    default = EngineArgs(model="/models/a")
    assert not alone.enable_sleep_mode
    assert alone.gpu_memory_utilization == default.gpu_memory_utilization
    for share in (0.4, None):  # a CPU's build refuses to sleep, and its memory is no GPU's
        on_cpu = arguments("/models/a", "float32", 8192, cpu=True, share=share)
        assert "enable_sleep_mode" not in on_cpu


@given(
    total=st.integers(10**9, 10**12),
    taken=st.floats(0, 1),
    held=st.integers(0, 10**12),
    own=st.floats(0, 1),
)
def test_a_share_leaves_the_trainer_what_it_holds(total, taken, held, own):
    own = int(own * min(held, taken * total))  # of what is taken, this process's part
    free = total - int(taken * total)
    try:
        share = share_beside(held, free=free, total=total, own=own)
    except UsageError:
        assert free + own - held <= 0.051 * total
        return
    assert 0 < share <= MOST_SHARE
    assert share * total + held <= free + own


async def test_a_folder_that_cannot_replace_the_weights_is_refused_untouched(backend, folders, tmp_path):
    usual = await backend.generate(ask(sampling=GREEDY))

    async def refused(folder, words):
        with pytest.raises(UsageError, match=words):
            await backend.reload(folder)
        assert backend.weights_id == hash_folder(folders[0])
        assert (await backend.generate(ask(sampling=GREEDY))).sampled_ids == usual.sampled_ids

    await refused(tmp_path / "nowhere", "nowhere")
    other = shutil.copytree(folders[1], tmp_path / "other")
    config = other / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    await refused(other, "num_hidden_layers is 3, served is 2")
    missing = shutil.copytree(folders[1], tmp_path / "missing")
    from safetensors.torch import load_file, save_file

    weights = load_file(missing / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "norm.weight" not in k}, missing / "model.safetensors")
    await refused(missing, r"input_layernorm.weight' has shape None")
    torn = shutil.copytree(folders[1], tmp_path / "torn")
    file = torn / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    await refused(torn, "cannot be read")


def test_a_second_engine_in_the_process_is_refused(backend, folders):
    with pytest.raises(UsageError, match="one vllm/ model at a time"):
        VllmBackend.load(str(folders[1]))


def test_folders_that_cannot_be_loaded_say_why(tmp_path):
    with pytest.raises(UsageError, match="vllm/PATH needs a model folder"):
        VllmBackend.load("/no/such/folder")
    broken = write_folder(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(UsageError, match="cannot be read"):
        VllmBackend.load(str(broken))


def test_a_torchvision_that_would_break_the_import_is_named(folders, tmp_path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('no operator nms')")
    code = f"from whale_bench.models.vllm_backend import VllmBackend\nVllmBackend.load({str(folders[0])!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert "UsageError: torchvision does not fit" in done.stderr
    assert "pip uninstall torchvision" in done.stderr


# The engine of this module ends here: the tests below need to break or to follow one of their own.


async def test_an_engine_that_dies_fails_its_requests_as_infrastructure(backend, folders):
    def broken():
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    backend._engine._engine.step = broken
    results = await asyncio.gather(*(backend.generate(ask(seed=i)) for i in range(3)), return_exceptions=True)
    assert {type(r) for r in results} == {InfrastructureError}
    with pytest.raises(InfrastructureError, match="illegal memory access"):
        await backend.generate(ask())
    with pytest.raises(InfrastructureError, match="illegal memory access"):
        await backend.reload(folders[1])
    await backend.__aexit__()
    assert not any(t.name == "whale-vllm" for t in threading.enumerate())


def test_an_interrupt_ends_the_run_and_leaves_no_process(folders, tmp_path):
    roomy = shutil.copytree(folders[0], tmp_path / "roomy")
    config = roomy / "config.json"
    config.write_text(config.read_text().replace(f": {CONTEXT},", ": 4096,"))
    out = tmp_path / "run"
    command = [sys.executable, "-m", "whale_bench.cli", "eval", "chess_puzzles", "-n", "96", "-k", "8"]
    command += ["--model", f"vllm/{roomy}", "--max-tokens", "8", "-c", "4", "--out", str(out)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as run:
        begun = lambda: any(f.stat().st_size for f in out.glob("rollouts-*")) or run.poll() is not None  # noqa: E731
        wait_until(begun, timeout=300)  # it loads an engine
        os.killpg(run.pid, signal.SIGINT)
        said = run.communicate(timeout=60)[0]
    assert run.returncode == 130, said
    assert "Traceback" not in said
    with pytest.raises(ProcessLookupError):
        os.killpg(run.pid, 0)
