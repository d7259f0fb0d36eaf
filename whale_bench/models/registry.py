"""Finds a backend by its name on the command line.

    load_backend("scripted/random")
    load_backend("openai/NAME", base_url="http://127.0.0.1:8000/v1")
    load_backend("openai/NAME", tokenizer="models/NAME")     # prompts as token ids, for training
    load_backend("local/smollm2")

Not covered: what a backend does, see `base.py`.
"""

from collections.abc import Sequence
from pathlib import Path

from whale_bench.agents.names import KINDS as OWN_KINDS
from whale_bench.agents.names import is_own_agent
from whale_bench.models.base import Backend
from whale_envs.errors import UnknownNameError, UsageError

KINDS = {
    "scripted/oracle": "plays from the gold answer; a fixture, never ranked",
    "scripted/random": "a random well-formed action each turn",
    "scripted/noisy-oracle:P": "the gold action with probability P each turn, else a random one",
    "openai/NAME": "any OpenAI-compatible server (--base-url, OPENAI_BASE_URL, OPENAI_API_KEY, --tokenizer)",
    "anthropic/NAME": "Messages API (ANTHROPIC_API_KEY, --base-url, ANTHROPIC_BASE_URL; extra: anthropic)",
    "local/PATH": "a Hugging Face folder, by transformers in this process (extra: local)",
    "local/smollm2": "SmolLM2-135M-Instruct, after `whale-bench pull smollm2` (extra: local)",
    "vllm/PATH": "a Hugging Face folder, by vLLM in this process (extra: vllm)",
    "vllm/smollm2": "SmolLM2-135M-Instruct, by vLLM (extra: vllm)",
    **OWN_KINDS,
}
"""Every model name a command line takes, with a line for people."""
LOADED = ("local/", "vllm/")
"""Beginnings of the names whose weights `load_backend` loads into this process."""
TEMPLATED = (*LOADED, "openai/")
"""Beginnings of the names of models whose chats a template renders, here or on a server."""


def load_backend(
    name: str,
    *,
    base_url: str | Sequence[str] | None = None,
    tokenizer: str | None = None,
    directory: str | None = None,
) -> Backend:
    """The backend of that name; heavy libraries are imported only when asked for.

    Args:
        name: one of `KINDS`.
        base_url: the server of openai/NAME, or several that serve the same model.
        tokenizer: a folder with the tokenizer of openai/NAME: prompts are then sent as token ids.
        directory: where a relative path to weights begins; None for the working directory.

    Raises:
        UnknownNameError: no such kind of model.
        UsageError: the rest of the name, or a needed setting or extra, is wrong.
        InfrastructureError: weights that had to be fetched could not be.
    """
    if is_own_agent(name):
        raise UsageError(f"{name!r} is a whole agent, which can be evaluated but is no model")
    kind, slash, rest = name.partition("/")
    if not slash or not rest:
        raise UnknownNameError("model", name, KINDS)
    if base_url is not None and kind not in ("openai", "anthropic"):
        raise UsageError(f"--base-url goes with openai/NAME and anthropic/NAME, got {name!r}")
    if tokenizer is not None and kind != "openai":
        raise UsageError(f"--tokenizer goes with openai/NAME, got {name!r}")
    if kind == "openai":
        return _openai(rest, base_url, tokenizer)
    if kind == "scripted":
        from whale_bench.models.scripted import load_scripted

        return load_scripted(rest)
    if kind == "anthropic":
        from whale_bench.models.anthropic_api import AnthropicBackend

        return AnthropicBackend(rest, base_url=one_address(name, base_url))
    if kind == "local":
        from whale_bench.models.local import LocalBackend

        return LocalBackend.load(_path(rest, directory))
    if kind == "vllm":
        from whale_bench.models.vllm_backend import VllmBackend

        return VllmBackend.load(_path(rest, directory))
    raise UnknownNameError("model", name, KINDS)


def one_address(name: str, base_url: str | Sequence[str] | None) -> str | None:
    """The address of a model that takes one at most.

    Raises:
        UsageError: there are several.
    """
    if base_url is None or isinstance(base_url, str):
        return base_url
    if len(base_url) > 1:
        raise UsageError(f"{name} takes one --base-url, got {len(base_url)}: {', '.join(base_url)}")
    return base_url[0] if base_url else None


def _path(rest: str, directory: str | None) -> str:
    """A folder of weights as it is found from here; a name such as smollm2 as it is."""
    if directory is None or Path(directory) == Path.cwd() or not Path(directory, rest).is_dir():
        return rest
    return str(Path(directory, rest))


def _openai(name: str, base_url: str | Sequence[str] | None, tokenizer: str | None) -> Backend:
    if tokenizer is not None:
        from whale_bench.models.openai_tokens import OpenAITokens

        return OpenAITokens(name, tokenizer, base_url=base_url)
    from whale_bench.models.openai import OpenAIBackend

    return OpenAIBackend(name, base_url=base_url)
