"""What every backend that loads a Hugging Face folder shares: chats, ids, checks, the weights' hash.

    class MyBackend(FolderBackend):
        async def _sample(self, job: Job) -> Sampled: ...

`local.py` and `vllm_backend.py` build on it, so that both render the same prompt for the same chat,
refuse the same requests with the same words and give equal folders equal `weights_id`s.

Chats are rendered by the model's own template, see `chat_template.py`.

Not covered: how ids are sampled; pickled weights; code that comes with a model; native tool calls
(they stay in the text).
"""

import abc
import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from whale_bench.models.base import Generation, Message, Request, TemplateKwargs, TokenBackend, Usage
from whale_bench.models.chat_template import ChatTemplate
from whale_bench.models.pull import ensure_smollm2
from whale_envs.errors import ModelError, UsageError
from whale_envs.paths import hash_file

if TYPE_CHECKING:
    from whale_bench.models.sampling_loop import Job, Sampled

HASHED = (".safetensors", ".json", ".jinja", ".model", ".txt")
"""Endings of the files that decide what a folder answers: weights, settings, tokenizer, template."""

Precision = Literal["bfloat16", "float32"]


class FolderBackend(TokenBackend):
    """A model folder that something samples from; subclasses say what, in `_sample`."""

    def __init__(self, name: str, weights_id: str, tokenizer: Any, context: int, vocabulary: int) -> None:
        self.name = name
        self.weights_id = weights_id
        self.context = context
        """Most tokens of prompt and answer together."""
        self.vocabulary = vocabulary
        """Prompt ids are below it."""
        self._use(tokenizer)

    def render(
        self,
        messages: tuple[Message, ...],
        tools: tuple[dict[str, Any], ...] = (),
        kwargs: TemplateKwargs = (),
    ) -> str:
        return self._chat.render(messages, tools, kwargs)

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
            InfrastructureError: out of memory, or the backend failed or was closed.
            UsageError: `max_tokens` below 1, or prompt ids that are none or not in the vocabulary.
        """
        from whale_bench.models.sampling_loop import Job

        prompt = self._chat.prompt(request)
        if not prompt or min(prompt) < 0 or max(prompt) >= self.vocabulary:
            raise UsageError(f"prompt ids must be in [0, {self.vocabulary}), at least one; got {prompt[:8]}…")
        if request.max_tokens is not None and request.max_tokens < 1:
            raise UsageError(f"max_tokens must be at least 1, got {request.max_tokens}")
        room = self.context - len(prompt)
        if room < 1:
            raise ModelError(
                "context_length", f"a prompt of {len(prompt)} tokens, a context of {self.context}"
            )
        job = Job(prompt, min(request.max_tokens or room, room), request.sampling, request.seed)
        sampled = await self._sample(job)
        reasoning, text = self._chat.read(prompt, sampled.ids)
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

    @abc.abstractmethod
    async def _sample(self, job: "Job") -> "Sampled":
        """Continues one prompt that fits the context; cancelling drops it."""

    def _use(self, tokenizer: Any) -> None:
        self._chat = ChatTemplate(tokenizer, self.name)


def hash_folder(folder: Path, endings: tuple[str, ...] = HASHED) -> str:
    """Hash ("sha256:…") over the names and bytes of the files in `folder` that decide its answers.

    Weights, settings, tokenizer and chat template (by `endings`), not what is beside them: a copy has
    the same id, and a changed template another one.
    """
    total = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.suffix in endings and p.is_file()):
        total.update(f"{path.name}\0{hash_file(path)}\n".encode())
    return f"sha256:{total.hexdigest()}"


def model_folder(kind: str, path_or_name: str) -> Path:
    """The folder meant by "KIND/PATH" or "KIND/smollm2", the latter fetched when missing."""
    if path_or_name == "smollm2":
        return ensure_smollm2()
    folder = Path(path_or_name).expanduser()
    if not folder.is_dir():
        raise UsageError(f"{kind}/PATH needs a model folder (or smollm2), and {path_or_name!r} is not one")
    if not (folder / "config.json").is_file():
        raise UsageError(f"{path_or_name!r} holds no config.json, so it is not a Hugging Face model folder")
    return folder


@contextlib.contextmanager
def loading(folder: Path, *failures: type[Exception]) -> Iterator[None]:
    """Loads a model inside, without transformers' progress bars.

    Args:
        folder: where from.
        failures: what else says that the folder is at fault, beside OSError and ValueError.

    Raises:
        UsageError: the folder cannot be loaded; says why.
    """
    blamed: tuple[type[Exception], ...] = (OSError, ValueError, *failures)
    try:
        with without_bars():
            yield
    except blamed as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"cannot load the model in {str(folder)!r}: {error}") from error


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Without transformers' progress bars."""
    import transformers as installed

    logging: Any = installed.utils.logging
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()


def stop_ids(tokenizer: Any, generation_config: Any) -> frozenset[int]:
    """Ids that end an answer, by the tokenizer's settings and by those for generation."""
    ends = generation_config.eos_token_id
    return frozenset({tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None})


def native_precision(device: str) -> Precision:
    """bfloat16 where the device multiplies in it; elsewhere it is slower than float32."""
    import torch

    if device == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return "bfloat16" if any(getattr(torch.cpu, p, lambda: False)() for p in probes) else "float32"
