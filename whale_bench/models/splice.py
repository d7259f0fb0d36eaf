"""Keeps sampled token ids across turns: builds the next prompt around them instead of re-encoding.

When the next chat is the last one plus the model's reply and more, its prompt is

    last prompt ids + sampled ids + encode(the rest of the rendered text)

so that a multi-turn rollout is one token sequence. Decoding and encoding again is no identity; the
ids that were sampled are the ones to train on. Where the harness rewrote the context, or the chat
template renders an earlier turn differently, the new chat is encoded afresh and starts a sequence
of its own.

Not covered: merging segments for training, see `records.training_sequences`.
"""

import msgspec

from whale_bench.models.base import Request, TokenBackend
from whale_bench.records import Segment


def splice(backend: TokenBackend, request: Request, last: Segment | None) -> Request:
    """`request` with its exact `prompt_ids`, continuing `last` where its context does."""
    kwargs = request.sampling.chat_template_kwargs
    text = backend.render(request.messages, request.tools, kwargs)
    prompt_ids = None
    if last is not None and last.prompt_ids is not None and last.sampled_ids is not None:
        context = last.prompt_ids + last.sampled_ids
        before = backend.render(last.messages, last.tools, kwargs) + backend.decode(last.sampled_ids)
        if text.startswith(before):
            prompt_ids = context + backend.encode(text[len(before) :])
    if prompt_ids is None:
        prompt_ids = backend.encode(text)
    return msgspec.structs.replace(request, prompt_ids=prompt_ids)
