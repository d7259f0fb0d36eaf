"""Finds a backend by its name on the command line.

    load_backend("scripted/random")
    load_backend("openai/NAME", base_url="http://127.0.0.1:8000/v1")
    load_backend("openai/NAME", tokenizer="models/NAME")     # prompts as token ids, for training
    load_backend("local/smollm2")

Not covered: what a backend does, see `base.py`.
"""

from collections.abc import Sequence

from whale_bench.models.base import Backend
from whale_envs.errors import UnknownNameError, UsageError

KINDS = {
    "scripted/oracle": "plays from the gold answer; a fixture, never ranked",
    "scripted/random": "a random well-formed action each turn",
    "scripted/noisy-oracle:P": "the gold action with probability P each turn, else a random one",
    "openai/NAME": "any OpenAI-compatible server (--base-url, OPENAI_BASE_URL, OPENAI_API_KEY, --tokenizer)",
    "local/PATH": "a Hugging Face folder, by transformers in this process (extra: local)",
    "local/smollm2": "SmolLM2-135M-Instruct, after `whale-bench pull smollm2` (extra: local)",
}
"""Every model name a command line takes, with a line for people."""


def load_backend(
    name: str, *, base_url: str | Sequence[str] | None = None, tokenizer: str | None = None
) -> Backend:
    """The backend of that name; heavy libraries are imported only when asked for.

    Args:
        name: one of `KINDS`.
        base_url: the server of openai/NAME, or several that serve the same model.
        tokenizer: a folder with the tokenizer of openai/NAME: prompts are then sent as token ids.

    Raises:
        UnknownNameError: no such kind of model.
        UsageError: the rest of the name, or a needed setting or extra, is wrong.
        InfrastructureError: weights that had to be fetched could not be.
    """
    kind, slash, rest = name.partition("/")
    if not slash or not rest:
        raise UnknownNameError("model", name, KINDS)
    if base_url is not None and kind != "openai":
        raise UsageError(f"--base-url goes with openai/NAME, got {name!r}")
    if tokenizer is not None and kind != "openai":
        raise UsageError(f"--tokenizer goes with openai/NAME, got {name!r}")
    if kind == "scripted":
        from whale_bench.models.scripted import load_scripted

        return load_scripted(rest)
    if kind == "openai" and tokenizer is not None:
        from whale_bench.models.openai_tokens import OpenAITokens

        return OpenAITokens(rest, tokenizer, base_url=base_url)
    if kind == "openai":
        from whale_bench.models.openai import OpenAIBackend

        return OpenAIBackend(rest, base_url=base_url)
    if kind == "local":
        from whale_bench.models.local import LocalBackend

        return LocalBackend.load(rest)
    raise UnknownNameError("model", name, KINDS)
