"""An OpenAI-compatible server at token level: prompts go as token ids, and sampled ids come back.

    OpenAITokens("NAME", "models/NAME", base_url="http://127.0.0.1:8000/v1")
    whale-bench eval chess_puzzles -m openai/NAME --tokenizer models/NAME --base-url …

For training: the chat is rendered by the tokenizer in a local folder, earlier sampled ids are spliced in
unchanged (`splice.py`), and `/completions` gets the ids themselves. What was sampled is exactly the ids
that the server reports, the end of the turn included, with one log-probability each where it gives them.
Text is decoded from them. A server that reports no ids cannot be used this way.

The folder's tokenizer has to be the served model's; that is not checked.

Not covered: native tool calls (they stay in the text), servers without vLLM's `return_token_ids`.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from whale_bench.models.base import Generation, Message, Request, TemplateKwargs, TokenBackend, Usage
from whale_bench.models.chat_template import ChatTemplate
from whale_bench.models.folder import hash_folder
from whale_bench.models.http_retry import Patience
from whale_bench.models.openai import PATIENCE, OpenAIBackend
from whale_bench.models.openai_reply import TextCompletion, broke_off, finish_of, logprobs_of
from whale_bench.models.server import Server
from whale_envs.errors import ModelError, UsageError

_ALL = 2**31 - 1
"""Asked for where the caller sets no bound: the server then names its context."""

_CONTEXT = re.compile(r"maximum (?:context|model) length (?:is|of) (\d+)")


class OpenAITokens(OpenAIBackend, TokenBackend):
    """See the module's docstring.

    Args:
        model: name of the model on the server.
        tokenizer: folder with its tokenizer and chat template.
        base_url: see `OpenAIBackend`.
        patience: see `OpenAIBackend`.

    Attributes:
        tokenizer_id: hash of the folder's files that decide prompts.

    Raises:
        UsageError: an address or the folder cannot be used.
    """

    route = "/completions"

    def __init__(
        self,
        model: str,
        tokenizer: str,
        *,
        base_url: str | Sequence[str] | None = None,
        patience: Patience = PATIENCE,
    ) -> None:
        super().__init__(model, base_url=base_url, patience=patience)
        folder = Path(tokenizer).expanduser()
        if not folder.is_dir():
            raise UsageError(f"--tokenizer needs a folder with a tokenizer, and {tokenizer!r} is not one")
        self._chat = ChatTemplate.load(folder, name=self.name)
        self.tokenizer_id = hash_folder(folder, (".json", ".jinja", ".model", ".txt"))
        self._texts = msgspec.json.Decoder(TextCompletion)
        self._context: int | None = None

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
        return await self._ask(request)

    async def _ask(self, request: Request, *, only: Server | None = None) -> Generation:
        request = msgspec.structs.replace(request, prompt_ids=self._chat.prompt(request))
        generation = await super()._ask(self._within(request), only=only)
        prompt_ids = request.prompt_ids or ()
        sampled = generation.sampled_ids or ()
        reasoning, text = self._chat.read(prompt_ids, sampled)
        return msgspec.structs.replace(
            generation, text=text, reasoning=reasoning, prompt_ids=prompt_ids,
            usage=Usage(len(prompt_ids), len(sampled)),
        )  # fmt: skip

    def _within(self, request: Request) -> Request:
        """`request` with no more tokens than its context has room for."""
        if self._context is None or request.prompt_ids is None:
            return request
        room = self._context - len(request.prompt_ids)
        if room < 1:
            raise ModelError(
                "context_length",
                f"a prompt of {len(request.prompt_ids)} tokens, a context of {self._context}",
            )
        return msgspec.structs.replace(request, max_tokens=min(request.max_tokens or room, room))

    def _payload(self, request: Request) -> dict[str, Any]:
        payload = {"model": self._model, "prompt": request.prompt_ids, **self._settings(request)}
        payload.setdefault(self._limit, self._most or _ALL)
        payload |= {"return_token_ids": True, "logprobs": 1}
        end = self._chat.tokenizer.eos_token_id
        if end is not None:  # the end of a turn, whatever the served model's own settings say
            payload["stop_token_ids"] = [end]
        for name in self.dropped:
            payload.pop(name, None)
        return payload

    def _read(self, body: bytes) -> Generation | None:
        try:
            completion = self._texts.decode(body)
        except (msgspec.ValidationError, UnicodeDecodeError) as error:
            if b'"choices"' in body and "token_ids" in str(error):
                raise self._without_ids() from error
            return None
        except (msgspec.DecodeError, RecursionError):
            return None
        if not completion.choices:
            return None
        choice = completion.choices[0]
        if broke_off(choice.finish_reason):
            return None
        ids, self._has_ids = tuple(choice.token_ids), True
        return Generation(
            text="",  # `_ask`, which has the prompt, reads it
            raw_text=self.decode(ids),
            finish_reason=finish_of(choice.finish_reason),
            sampled_ids=ids,
            logprobs=logprobs_of(choice.logprobs, ids),
            usage=Usage(None, len(ids)),
        )

    def _shorter(self, request: Request, words: str) -> Request:
        named = _CONTEXT.search(words)
        if named is None:
            raise ModelError("context_length", words)
        self._context = int(named[1])
        shorter = self._within(request)  # many may learn it at once: each has one more try of its own
        if shorter.max_tokens == request.max_tokens:
            raise ModelError("context_length", words)
        return shorter

    def _drop(self, name: str) -> None:
        if name == "return_token_ids":
            raise self._without_ids()
        super()._drop(name)

    def _without_ids(self) -> UsageError:
        return UsageError(
            f"the server of {self.name} reports no token ids (vLLM's return_token_ids): leave out --tokenizer"
        )
