"""Finds a backend by its name on the command line.

    load_backend("scripted/random")
    load_backend("openai/NAME", base_url="http://127.0.0.1:8000/v1")
    load_backend("local/smollm2")

Not covered: what a backend does, see `base.py`.
"""

from whale_bench.models.base import Backend
from whale_envs.errors import UnknownNameError, UsageError

KINDS = {
    "scripted/oracle": "plays from the gold answer; a fixture, never ranked",
    "scripted/random": "a random well-formed action each turn",
    "scripted/noisy-oracle:P": "the gold action with probability P each turn, else a random one",
    "openai/NAME": "any OpenAI-compatible server (--base-url, OPENAI_BASE_URL, OPENAI_API_KEY)",
    "local/PATH": "a Hugging Face folder, by transformers in this process (extra: local)",
    "local/smollm2": "SmolLM2-135M-Instruct, after `whale-bench pull smollm2` (extra: local)",
    "vllm/PATH": "a Hugging Face folder, by vLLM in this process (extra: vllm)",
    "vllm/smollm2": "SmolLM2-135M-Instruct, by vLLM (extra: vllm)",
}
"""Every model name a command line takes, with a line for people."""
LOADED = ("local/", "vllm/")
"""Beginnings of the names whose weights `load_backend` loads into this process."""


def load_backend(name: str, *, base_url: str | None = None) -> Backend:
    """The backend of that name; heavy libraries are imported only when asked for.

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
    if kind == "scripted":
        from whale_bench.models.scripted import load_scripted

        return load_scripted(rest)
    if kind == "openai":
        from whale_bench.models.openai import OpenAIBackend

        return OpenAIBackend(rest, base_url=base_url)
    if kind == "local":
        from whale_bench.models.local import LocalBackend

        return LocalBackend.load(rest)
    if kind == "vllm":
        from whale_bench.models.vllm_backend import VllmBackend

        return VllmBackend.load(rest)
    raise UnknownNameError("model", name, KINDS)
