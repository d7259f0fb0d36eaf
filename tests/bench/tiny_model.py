"""A random tiny Llama as a Hugging Face folder or as GGUF in a wheel, built without any network."""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

from whale_bench.models.pull import WheelSource

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LAYERS, HIDDEN, HEADS, KV_HEADS, INNER, CONTEXT = 2, 64, 2, 1, 128, 256
CORPUS = ["user assistant system hello world", "white to move e2e4 e7e5 Qxf7", "the answer is 12 34"]


def train_tokenizer() -> dict[str, Any]:
    """The JSON of a byte-level BPE tokenizer whose first ids are the special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    return json.loads(tokenizer.to_str())


def tiny_llama(vocabulary: int, seed: int = 0) -> Any:
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HIDDEN // HEADS,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        initializer_range=0.4,  # far from uniform logits, so that greedy choices are clear
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(config).eval()


def tiny_qwen(vocabulary: int) -> Any:
    """A model of text and images, of the architecture that the paper's models have."""
    import torch
    import transformers

    text = {
        "vocab_size": vocabulary, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 4,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HIDDEN // HEADS,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "linear_num_key_heads": 2, "linear_num_value_heads": 2, "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True, "eos_token_id": 2, "full_attention_interval": 4,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
            "mrope_section": [4, 2, 2], "mrope_interleaved": True,
        },
    }  # fmt: skip
    vision = {
        "depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": HIDDEN,
        "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 16,
    }  # fmt: skip
    tokens = {"image_token_id": 3, "video_token_id": 4, "vision_start_token_id": 5, "vision_end_token_id": 6}
    config = transformers.Qwen3_5Config(
        text_config=text, vision_config=vision, tie_word_embeddings=True, **tokens
    )
    torch.manual_seed(0)
    return transformers.Qwen3_5ForConditionalGeneration(config).eval()


def write_folder(folder: Path, *, template: bool = True, seed: int = 0, model: Any = None) -> Path:
    """Of `model`, or of a Llama made from the seed."""
    folder.mkdir(parents=True)
    tokenizer = train_tokenizer()
    if model is None:
        model = tiny_llama(len(tokenizer["model"]["vocab"]), seed)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template:
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def write_gguf(path: Path) -> dict[str, Any]:
    """Writes a Q4_1 / float32 GGUF; returns what the folder made of it must hold, by HF's names."""
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFWriter, TokenType, dequantize, quantize

    tokenizer = train_tokenizer()
    vocabulary = tokenizer["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if t in SPECIAL else TokenType.NORMAL for t in tokens])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    blocks = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    expected: dict[str, Any] = {}
    for name, weight in tiny_llama(len(tokens)).state_dict().items():
        if name == "lm_head.weight":
            continue
        value = weight.numpy()
        if name.startswith("model.layers."):
            _, _, layer, part = name.removesuffix(".weight").split(".", 3)
            target = f"blk.{layer}.{blocks[part]}.weight"
        else:
            target = "token_embd.weight" if "embed" in name else "output_norm.weight"
        if value.ndim == 1:
            writer.add_tensor(target, value)
        else:
            heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(target.split(".")[-2], 0)
            if heads:  # as llama.cpp's converter permutes for its rotary embedding
                value = value.reshape(heads, 2, -1, HIDDEN).swapaxes(1, 2).reshape(value.shape)
            packed = quantize(np.ascontiguousarray(value), GGMLQuantizationType.Q4_1)
            writer.add_tensor(target, packed, raw_dtype=GGMLQuantizationType.Q4_1)
            value = dequantize(packed, GGMLQuantizationType.Q4_1)
            if heads:
                value = value.reshape(heads, -1, 2, HIDDEN).swapaxes(1, 2).reshape(value.shape)
        expected[name] = value
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def write_wheel(
    folder: Path, gguf_file: Path, package: str = "tiny-gguf", version: str = "1.0"
) -> WheelSource:
    """A wheel in `folder` that carries the GGUF, and the source that describes it."""
    module = package.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    member = f"{module}/{gguf_file.name}"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as archive:
        archive.write(gguf_file, member)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return WheelSource(package, version, member, hashlib.sha256(gguf_file.read_bytes()).hexdigest())
