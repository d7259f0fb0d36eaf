"""Turns a GGUF model into an ordinary Hugging Face folder in bfloat16.

    dequantise(Path("SmolLM2-135M-Instruct.Q4_1.gguf"), Path("smollm2"))

Equal files give equal bytes, whatever the versions of the libraries: the folder's content hash can
serve as the identity of the weights.

Not covered: other models than Llama with a byte-level BPE tokenizer and a chat template, scaled
rotary embeddings.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whale_envs.errors import DataError

PARTS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""GGUF's names of a Llama's parts, and transformers'."""


def dequantise(gguf_file: Path, folder: Path) -> None:
    """Writes a GGUF Llama model into `folder` as safetensors (bfloat16), tokenizer and template.

    By hand, not by transformers: its loader needs another package, cannot save what it loaded, and
    in some versions gets the end token wrong.

    Raises:
        DataError: another architecture or tokenizer.
    """
    import torch
    from gguf import GGUFReader, dequantize
    from safetensors.torch import save_file

    reader = GGUFReader(str(gguf_file))
    meta = {key: field.contents() for key, field in reader.fields.items()}
    if (kind := meta.get("general.architecture")) != "llama":
        raise DataError(f"{gguf_file.name} holds a {kind!r} model, expected 'llama'")
    _write_tokenizer(meta, folder)
    _write_config(meta, folder, tied=all(t.name != "output.weight" for t in reader.tensors))
    heads = {"attn_q": meta["llama.attention.head_count"], "attn_k": meta["llama.attention.head_count_kv"]}
    tensors = {}
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type)
        block, _, part = tensor.name.removesuffix(".weight").rpartition(".")
        if part in heads:
            # GGUF interleaves the two halves that a rotary embedding turns; transformers doesn't.
            split = array.reshape(heads[part], -1, 2, array.shape[-1])
            array = split.swapaxes(1, 2).reshape(array.shape)
        name = f"{block.replace('blk', 'model.layers')}.{PARTS[part]}" if block else PARTS[part]
        tensors[f"{name}.weight"] = torch.from_numpy(array.copy()).to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _write_config(meta: Mapping[str, Any], folder: Path, *, tied: bool) -> None:
    heads = meta["llama.attention.head_count"]
    special = {
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": meta["llama.embedding_length"] // heads,
        "max_position_embeddings": meta["llama.context_length"],
        # Both are float32 in the file: seven digits give back what was meant.
        "rms_norm_eps": float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.7g}"),
        "rope_theta": float(f"{meta['llama.rope.freq_base']:.7g}"),
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        **special,
    }
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", special)


def _write_tokenizer(meta: Mapping[str, Any], folder: Path) -> None:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    splits = {"gpt-2": byte_level, "smollm": {"type": "Sequence", "pretokenizers": [digits, byte_level]}}
    kind, split = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre")
    if kind != "gpt2" or split not in splits:
        raise DataError(f"tokenizer {kind!r} with pre-tokenizer {split!r} is not supported")
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    control = [i for i, t in enumerate(meta["tokenizer.ggml.token_type"]) if t == 3]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": tokens[i], **plain} for i in control],
        "normalizer": None,
        "pre_tokenizer": splits[split],
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": meta["tokenizer.ggml.merges"],
        },
    }
    write_json(folder / "tokenizer.json", tokenizer)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[meta["tokenizer.ggml.padding_token_id"]],
        "clean_up_tokenization_spaces": False,
        "model_max_length": meta["llama.context_length"],
    }
    write_json(folder / "tokenizer_config.json", settings)
    (folder / "chat_template.jinja").write_text(meta["tokenizer.chat_template"], encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
