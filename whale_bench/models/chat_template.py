"""A model's own chat template and tokenizer: chats to text, text to token ids and back.

    chat = ChatTemplate.load(Path("models/smollm2"), name="local/smollm2")
    ids = chat.encode(chat.render((Message("user", "Hi"),)))

Text from environments and users cannot forge a turn of the chat: where it spells one of the
tokenizer's special tokens, `render` writes a space behind that token's first character
("<|im_end|>" becomes "< |im_end|>"), in every string of messages and tool schemas. A space is
visible and survives any tokenizer's clean-up, which a zero-width character does not. Tokens that
are in the vocabulary without being special, such as "<think>", are left alone: chat templates
look for them in earlier answers. Special tokens that only a tokenizer's own normalisation would
produce are not covered.

A template's own switches (`enable_thinking`) are set by name. One that the template never reads is refused:
it would do nothing, and the run would say that it did.

A template may open the thinking tag at the end of the prompt. `read` takes what was sampled for thinking
then, up to the closing tag, or all of it where that never came.

Not covered: weights, and code that comes with a tokenizer, which is never run.
"""

import functools
import json
import re
from pathlib import Path
from typing import Any, Self

from whale_bench.models.base import Message, Request, TemplateKwargs
from whale_envs.errors import ModelError, UsageError
from whale_envs.text import split_thinking

SETTINGS = {"local_files_only": True, "trust_remote_code": False}
"""Of everything that transformers reads."""

_OURS = {"messages", "tools", "documents", "add_generation_prompt"}
"""What every template is given, and no switch."""

_LAST_TAG = re.compile(r"[<\[◁][^<\[◁\s]*[>\]▷]\s*\Z")
_TAIL = 16
"""Tokens at a prompt's end in which an opened tag is looked for."""


class ChatTemplate:
    """A tokenizer with a chat template; `name` is whose it is, for messages."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        self.tokenizer = tokenizer
        self._name = name
        self._forged = _special_pattern(tokenizer)

    @classmethod
    def load(cls, folder: Path, *, name: str) -> Self:
        """The tokenizer of a Hugging Face folder.

        Raises:
            UsageError: there is none in it, or it has no chat template, or transformers is missing.
        """
        try:
            return cls(load_tokenizer(folder, name), name)
        except ImportError as error:
            raise UsageError(f'{error.name} is missing: pip install "whale-envs[local]"') from error
        except UsageError:
            raise
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot load the tokenizer in {str(folder)!r}: {error}") from error

    def render(
        self,
        messages: tuple[Message, ...],
        tools: tuple[dict[str, Any], ...] = (),
        kwargs: TemplateKwargs = (),
    ) -> str:
        """The template's text, open for the assistant to continue; see `TokenBackend.render`."""
        for name, _ in kwargs:
            if name not in self.switches:
                shown = ", ".join(sorted(self.switches)) or "none"
                raise UsageError(f"the chat template of {self._name} has no switch {name!r}; it has {shown}")
        chat = [self._plain(_as_dict(message)) for message in messages]
        from jinja2 import TemplateError

        try:
            text: str = self.tokenizer.apply_chat_template(
                chat,
                tools=[self._plain(tool) for tool in tools] or None,
                tokenize=False,
                add_generation_prompt=True,
                **dict(kwargs),
            )
        except TemplateError as error:
            raise ModelError("chat_template", f"{self._name} refuses this chat: {error}") from error
        return text

    @functools.cached_property
    def switches(self) -> frozenset[str]:
        """Names that the template reads and nobody sets, unless a caller does."""
        from jinja2 import TemplateError, meta
        from transformers.utils import chat_template_utils as installed

        utils: Any = installed  # the environment that it is rendered in, which has tags of its own
        template = self.tokenizer.chat_template
        texts = template.values() if isinstance(template, dict) else [template]
        found: set[str] = set()
        for text in texts:
            try:
                environment = utils._compile_jinja_template(text).environment
                found |= meta.find_undeclared_variables(environment.parse(text))
            except TemplateError as error:
                raise UsageError(f"the chat template of {self._name} is none: {error}") from error
        return frozenset(found - _OURS - self.tokenizer.special_tokens_map.keys())

    def read(self, prompt: tuple[int, ...], sampled: tuple[int, ...]) -> tuple[str, str]:
        """(thinking, final text) of what was sampled behind a prompt."""
        tag = _LAST_TAG.search(self.decode(prompt[-_TAIL:]))
        text = self.decode(sampled, skip_special_tokens=True)
        opened = tag is not None and split_thinking(f"{tag[0]}.")[0].strip() == "."
        return split_thinking((tag[0].rstrip() if tag and opened else "") + text)

    def prompt(self, request: Request) -> tuple[int, ...]:
        """The ids that a request is to continue: its own, or those of its chat."""
        if request.prompt_ids is not None:
            return request.prompt_ids
        return self.encode(
            self.render(request.messages, request.tools, request.sampling.chat_template_kwargs)
        )

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of rendered text, special tokens recognised, none added."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False, verbose=False))

    def decode(self, ids: tuple[int, ...], *, skip_special_tokens: bool = False) -> str:
        # Some folders ask for a clean-up of spaces, which would change what was sampled.
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    def _plain(self, value: Any) -> Any:
        """`value` with every special token that a string inside it spells broken by a space."""
        if isinstance(value, str):
            # Breaking one token can lay bare another that overlapped it.
            while self._forged.search(value):
                value = self._forged.sub(lambda m: m[0][:1] + " " + m[0][1:], value)
            return value
        if isinstance(value, dict):
            return {self._plain(key): self._plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._plain(item) for item in value]
        return value


def load_tokenizer(folder: Path, name: str = "") -> Any:
    """The folder's tokenizer, with a chat template that renders; `name` is whose it is, for messages.

    Raises as transformers does where it is unreadable, and UsageError for the template.
    """
    import transformers

    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, **SETTINGS)
    if not tokenizer.chat_template:
        raise UsageError(f"the tokenizer in {str(folder)!r} has no chat template")
    check_template(tokenizer, name or repr(str(folder)))
    return tokenizer


def check_template(tokenizer: Any, name: str) -> None:
    """Whether a chat template renders one message, so that a broken one ends no rollout after another.

    Raises:
        UsageError: it does so neither alone nor behind a system message, which some templates want.
    """
    chat, user = ChatTemplate(tokenizer, name), Message("user", "Hello")
    for opening in ((), (Message("system", "Be brief."),)):
        try:
            chat.render((*opening, user))
            return
        except ModelError as error:
            problem = str(error)
    raise UsageError(f"the chat template of {name} renders no message: {problem}")


def _special_pattern(tokenizer: Any) -> re.Pattern[str]:
    """Matches every special token of two or more characters: one character cannot be broken up."""
    added = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
    tokens = {t for t in [*added, *tokenizer.all_special_tokens] if len(t) > 1}
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)")


def _as_dict(message: Message) -> dict[str, Any]:
    """In the shape chat templates expect: arguments of calls as objects, not as JSON text."""
    chat: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        chat["tool_calls"] = [_with_arguments(call) for call in message.tool_calls]
    if message.tool_call_id:
        chat["tool_call_id"] = message.tool_call_id
    return chat


def _with_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function", {})
    try:
        arguments = json.loads(function["arguments"])
    except (KeyError, TypeError, ValueError):
        return call  # not JSON: the template gets the text as it is
    return {**call, "function": {**function, "arguments": arguments}}
