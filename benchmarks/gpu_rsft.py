"""Tokens per second sampled and trained, and memory, on whatever GPU there is (or on the CPU).

    python benchmarks/gpu_rsft.py --model FOLDER --backend vllm --prompts 64 --samples 8 --reply 512
    python benchmarks/gpu_rsft.py --model smollm2 --prompts 4 --samples 2 --reply 16      # a CPU

One step as the loop makes it: so many prompts sampled so often through the backend, one pass of
training over all that was sampled (nothing is verified: every reply is trained on), a checkpoint, and the
hand-over. `vllm` takes what training leaves of the GPU, and rests during the update. Memory that is told is
the estimate of `--explain`. Not covered: several GPUs; tasks with tools; what vLLM itself takes of memory.
"""

import argparse
import asyncio
import platform
import resource
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from whale_baselines.checkpoint import Checkpoints, TrainingState
from whale_baselines.explain import memory_bytes
from whale_baselines.handover import hand_over, make_room
from whale_baselines.recipe import Recipe
from whale_baselines.rsft import RsftTrainer
from whale_baselines.sampler import SamplerState
from whale_baselines.sequences import IGNORED, Row

from whale_bench.models import load_backend
from whale_bench.models.base import Message, Request
from whale_bench.models.folder import model_folder
from whale_bench.models.shared import SharedBackend
from whale_bench.models.vllm_backend import VllmBackend
from whale_envs import load_examples


async def run(asked):
    import torch

    recipe = Recipe(
        prompts=asked.prompts, samples=asked.samples, lr=1e-6, micro_tokens=asked.micro_tokens,
        lora_rank=asked.lora_rank,
    )  # fmt: skip
    base = model_folder("local", asked.model)
    async with AsyncExitStack() as stack:
        trainer = RsftTrainer(base, recipe)
        if asked.backend == "local" and trainer.shareable:
            backend = SharedBackend.of(trainer.model, asked.model)
        elif asked.backend == "vllm":
            backend = VllmBackend.load(asked.model, beside=trainer.held_bytes)
        else:
            backend = load_backend(f"local/{asked.model}")
        await stack.enter_async_context(backend)
        problems = load_examples("math_python", "small", "weight")[: asked.prompts]
        requests = [
            Request((Message("user", problem.problem),), max_tokens=asked.reply, seed=sample)
            for problem in problems
            for sample in range(asked.samples)
        ]
        began = time.perf_counter()
        found = await asyncio.gather(*map(backend.generate, requests))
        sampling = time.perf_counter() - began
        rows = [
            Row((*g.prompt_ids, *g.sampled_ids), (*[IGNORED] * len(g.prompt_ids), *g.sampled_ids))
            for g in found
        ]
        resting = asked.backend == "vllm" and trainer.accelerators > 0
        shared = getattr(backend, "shares", False)
        told = memory_bytes(recipe, trainer, shared=shared, resting=resting)
        began = time.perf_counter()
        await make_room(backend)
        resting_took = time.perf_counter() - began
        began = time.perf_counter()
        update = trainer.update(rows, step=0)
        training = time.perf_counter() - began
        state = TrainingState(base_id=trainer.base_id, recipe_id="", sampler=SamplerState(seed=0), step=1)

        def fill(folder):
            trainer.write_weights(folder)
            trainer.write_state(folder)

        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            checkpoint = Checkpoints(Path(folder), 1).save(state, fill)
            saving = time.perf_counter() - began
            began = time.perf_counter()
            await hand_over(backend, checkpoint, Path(folder) / "served.json")
            handing = time.perf_counter() - began + resting_took
    sampled = sum(len(generation.sampled_ids) for generation in found)
    passed = sum(len(row.ids) for row in rows)
    cuda = torch.cuda.is_available()
    print(f"device: {torch.cuda.get_device_name() if cuda else platform.processor() or 'CPU'}")
    print(f"model: {asked.model}, backend {asked.backend}, precision {trainer.precision}")
    print(f"sampled: {sampled} tokens in {sampling:.1f} s, {sampled / sampling:.0f} tokens/s")
    print(
        f"trained: {passed} tokens, {update.tokens} with a loss, {update.updates} updates in {training:.1f} "
        f"s, {passed / training:.0f} tokens/s, padding {update.padding:.1%}"
    )
    print(f"checkpoint {saving:.1f} s, hand-over {handing:.1f} s")
    if cuda:
        print(f"GPU memory: {torch.cuda.max_memory_reserved() / 1e9:.1f} GB reserved by torch at most")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"told: {told / 1e9:.1f} GB, memory: {most:.1f} GB at most")


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="a folder, or smollm2")
    parser.add_argument("--backend", choices=("local", "vllm"), default="local")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--reply", type=int, default=256, help="most tokens of a reply")
    parser.add_argument("--micro-tokens", type=int, default=16_384)
    parser.add_argument("--lora-rank", type=int, default=0)
    asyncio.run(run(parser.parse_args(words)))


if __name__ == "__main__":
    main()
