"""A Hugging Face model in this process, by transformers, with exact sampled ids.

    backend = LocalBackend.load("smollm2")  # or a folder
    async with backend:
        generation = await backend.generate(Request(messages=(Message("user", "Hi"),), seed=1))

Requests in flight at the same time share one batch; see `sampling_loop.py`. Everything runs in one
worker thread on one device: CUDA where there is one, else the CPU.

Chats are rendered by the model's own template, see `chat_template.py`.

Not covered: pickled weights, code that comes with a model, quantised weights, several devices,
native tool calls (they stay in the text), models with sliding-window or recurrent layers.
"""

import asyncio
import hashlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from whale_bench.models.base import Generation, Message, Request, TokenBackend, Usage
from whale_bench.models.chat_template import ChatTemplate
from whale_bench.models.pull import ensure_smollm2
from whale_envs.errors import ModelError, UsageError
from whale_envs.text import split_thinking

if TYPE_CHECKING:
    from whale_bench.models.sampling_loop import SamplingLoop

HASHED = (".safetensors", ".json", ".jinja", ".model", ".txt")
"""Endings of the files that decide what a folder answers: weights, settings, tokenizer, template."""

Precision = Literal["bfloat16", "float32"]


class LocalBackend(TokenBackend):
    """One model folder in memory. Use it as a context manager: leaving ends the worker thread."""

    def __init__(
        self, name: str, weights_id: str, tokenizer: Any, loop: "SamplingLoop", context: int
    ) -> None:
        self.name = name
        self.weights_id = weights_id
        self.context = context
        """Most tokens of prompt and answer together."""
        self._chat = ChatTemplate(tokenizer, name)
        self._loop = loop
        self._load_seconds = 0.0

    @classmethod
    def load(cls, path_or_name: str, *, precision: Precision | None = None) -> Self:
        """Loads "smollm2" (fetched when missing) or a folder with safetensors and a chat template.

        Args:
            path_or_name: as on the command line behind "local/".
            precision: None takes bfloat16 where the device computes in it, else float32.

        Raises:
            UsageError: the folder, the model or the installation cannot be used; says why.
            InfrastructureError: "smollm2" could not be fetched.
        """
        started = time.perf_counter()
        folder = ensure_smollm2() if path_or_name == "smollm2" else _check_folder(path_or_name)
        # OpenMP threads that wait for each other spin, by default so long that everything slows down
        # up to tenfold once something else wants the cores. A short spin costs nothing on quiet
        # cores. Read once, when torch loads its OpenMP library.
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
        try:
            import torch
            import transformers as installed
        except ImportError as error:
            raise UsageError(f'{error.name} is missing: pip install "whale-envs[local]"') from error
        from whale_bench.models.key_values import ATTENTION, grouped_attention
        from whale_bench.models.sampling_loop import SamplingLoop

        transformers: Any = installed  # its own type hints are incomplete
        device = "cuda" if torch.cuda.is_available() else "cpu"
        transformers.AttentionInterface.register(ATTENTION, grouped_attention)
        settings = {"local_files_only": True, "trust_remote_code": False}
        bars = transformers.utils.logging.is_progress_bar_enabled()
        transformers.utils.logging.disable_progress_bar()
        try:
            config = transformers.AutoConfig.from_pretrained(folder, **settings)
            _check_layers(folder, config)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **settings)
            if not tokenizer.chat_template:
                raise UsageError(f"the tokenizer in {str(folder)!r} has no chat template")
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=getattr(torch, precision or _native_precision(device)),
                attn_implementation=ATTENTION,
                use_safetensors=True,
                **settings,
            )
        except (OSError, ValueError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"cannot load the model in {str(folder)!r}: {error}") from error
        finally:
            if bars:
                transformers.utils.logging.enable_progress_bar()
        model = model.to(device).eval()
        ends = model.generation_config.eos_token_id
        stop_ids = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
        budgets = {}
        if device == "cuda":
            free = torch.cuda.mem_get_info()[0]
            budgets = {"batch_bytes": free // 2, "prefix_bytes": free // 4}
        loop = SamplingLoop(model, stop_ids, **budgets)
        name = f"local/{path_or_name}"
        backend = cls(name, hash_folder(folder), tokenizer, loop, config.max_position_embeddings)
        backend._load_seconds = time.perf_counter() - started
        return backend

    def render(self, messages: tuple[Message, ...], tools: tuple[dict[str, Any], ...] = ()) -> str:
        return self._chat.render(messages, tools)

    def encode(self, text: str) -> tuple[int, ...]:
        return self._chat.encode(text)

    def decode(self, ids: tuple[int, ...]) -> str:
        return self._chat.decode(ids)

    async def generate(self, request: Request) -> Generation:
        """Samples one turn; cancelling the task drops it from the batch.

        `logprobs` are the model's own: temperature 1, nothing cut off.

        Raises:
            ModelError: "context_length", no room is left behind the prompt; "chat_template", the
                model's template does not take these messages.
            InfrastructureError: out of memory, or the backend was closed.
            UsageError: `max_tokens` below 1, or prompt ids that are none or not in the vocabulary.
        """
        from whale_bench.models.sampling_loop import Job

        prompt = request.prompt_ids
        if prompt is None:
            prompt = self.encode(self.render(request.messages, request.tools))
        vocabulary = self._loop.model.config.vocab_size
        if not prompt or min(prompt) < 0 or max(prompt) >= vocabulary:
            raise UsageError(f"prompt ids must be in [0, {vocabulary}), at least one; got {prompt[:8]}…")
        if request.max_tokens is not None and request.max_tokens < 1:
            raise UsageError(f"max_tokens must be at least 1, got {request.max_tokens}")
        room = self.context - len(prompt)
        if room < 1:
            raise ModelError(
                "context_length", f"a prompt of {len(prompt)} tokens, a context of {self.context}"
            )
        job = Job(prompt, min(request.max_tokens or room, room), request.sampling, request.seed)
        sampled = await asyncio.wrap_future(self._loop.submit(job))
        reasoning, text = split_thinking(self._chat.decode(sampled.ids, skip_special_tokens=True))
        return Generation(
            text=text,
            finish_reason=sampled.finish,
            reasoning=reasoning,
            raw_text=self.decode(sampled.ids),
            prompt_ids=prompt,
            sampled_ids=sampled.ids,
            logprobs=sampled.logprobs,
            usage=Usage(len(prompt), len(sampled.ids)),
        )

    def seconds(self) -> dict[str, float]:
        """Of "load", then of the worker thread: "prefill" (prompts) and "decode" (sampling)."""
        return {"load": self._load_seconds, **self._loop.seconds}

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self._loop.close)


def hash_folder(folder: Path, endings: tuple[str, ...] = HASHED) -> str:
    """Hash ("sha256:…") over the names and bytes of the files in `folder` that decide its answers.

    Weights, settings, tokenizer and chat template (by `endings`), not what is beside them: a copy has
    the same id, and a changed template another one.
    """
    total = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.suffix in endings and p.is_file()):
        with path.open("rb") as file:
            total.update(f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return f"sha256:{total.hexdigest()}"


def _check_folder(path: str) -> Path:
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UsageError(f"local/PATH needs a model folder (or smollm2), and {path!r} is not one")
    if not (folder / "config.json").is_file():
        raise UsageError(f"{path!r} holds no config.json, so it is not a Hugging Face model folder")
    return folder


def _check_layers(folder: Path, config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if kinds != {"full_attention"} or window or not hasattr(config, "max_position_embeddings"):
        shown = ", ".join(sorted(kinds | ({"sliding_attention"} if window else set())))
        raise UsageError(f"{str(folder)!r} ({config.model_type}) has layers that are not supported: {shown}")


def _native_precision(device: str) -> Precision:
    """bfloat16 where the device multiplies in it; elsewhere it is slower than float32."""
    import torch

    if device == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return "bfloat16" if any(getattr(torch.cpu, p, lambda: False)() for p in probes) else "float32"
