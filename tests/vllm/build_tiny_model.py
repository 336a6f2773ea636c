"""Owns the tiny model that the real vLLM servers of these tests load.

Run inside .venv-vllm:  .venv-vllm/bin/python tests/vllm/build_tiny_model.py [OUT]
Writes a random-weight Llama (2 layers, hidden 128, vocabulary 2048, about 3.3 MB) with a
byte-level BPE tokenizer and a ChatML template to build/tiny-model.  No hub, no download.

Deterministic: the weights come from a seed and the tokenizer from the standard library's own
text, so one interpreter always gives the same bytes.  A second run finds the digest of what it
would build in the folder and does nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parents[2]
STAMP = "built-from.sha256"
SEED = 0
LAYERS, HIDDEN, HEADS, KV_HEADS, VOCAB, CONTEXT = 2, 128, 4, 2, 2048, 8192
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PAD, EOS = 0, 2
CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def corpus() -> list[Path]:
    """The text the tokenizer learns from: the first modules of the standard library."""
    return sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:120]


def digest() -> str:
    """Changes whenever the result could: this file, the interpreter's library, the versions."""
    h = hashlib.sha256(Path(__file__).read_bytes())
    h.update(sys.version.encode() + np.__version__.encode())
    for path in corpus():
        h.update(path.read_bytes())
    return h.hexdigest()


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def write_tokenizer(out: Path) -> int:
    """Train and save the tokenizer; returns the size of its vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIAL,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train([str(path) for path in corpus()], trainer)
    tokenizer.save(str(out / "tokenizer.json"))
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": CONTEXT,
            "eos_token": SPECIAL[EOS],
            "pad_token": SPECIAL[PAD],
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
            "added_tokens_decoder": {
                str(i): {"content": text, "special": True, **flags} for i, text in enumerate(SPECIAL)
            },
        },
    )
    return tokenizer.get_vocab_size()


def write_config(out: Path, vocab: int) -> None:
    write_json(
        out / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "float32",
            "hidden_size": HIDDEN,
            "intermediate_size": 2 * HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HIDDEN // HEADS,
            "vocab_size": vocab,
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "attention_bias": False,
            "bos_token_id": None,
            "eos_token_id": EOS,
            "pad_token_id": PAD,
        },
    )
    write_json(out / "generation_config.json", {"eos_token_id": EOS, "pad_token_id": PAD})


def write_weights(out: Path, vocab: int) -> int:
    """Wide random weights, so that the greedy path wanders; returns how many there are."""
    rng = np.random.default_rng(SEED)

    def normal(rows: int, columns: int, std: float) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * std).astype(np.float32)

    head, inner, ones = HIDDEN // HEADS, 2 * HIDDEN, np.ones(HIDDEN, np.float32)
    weights = {
        "model.embed_tokens.weight": normal(vocab, HIDDEN, 1.0),
        "lm_head.weight": normal(vocab, HIDDEN, 0.35),
        "model.norm.weight": ones,
    }
    # The special tokens never win by chance: a request runs to its max_tokens.
    weights["lm_head.weight"][: len(SPECIAL)] = 0.0
    shapes = {
        "self_attn.q_proj": (HEADS * head, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * head, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * head, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * head),
        "mlp.gate_proj": (inner, HIDDEN),
        "mlp.up_proj": (inner, HIDDEN),
        "mlp.down_proj": (HIDDEN, inner),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, (rows, columns) in shapes.items():
            weights[f"{prefix}{name}.weight"] = normal(rows, columns, 2 / columns**0.5)
        weights[f"{prefix}input_layernorm.weight"] = ones
        weights[f"{prefix}post_attention_layernorm.weight"] = ones
    save_file(weights, str(out / "model.safetensors"), metadata={"format": "pt"})
    return sum(array.size for array in weights.values())


def build(out: Path) -> None:
    want = digest()
    stamp = out / STAMP
    if stamp.exists() and stamp.read_text().strip() == want:
        print(f"{out} is up to date")
        return
    part = out.with_name(f"{out.name}.{os.getpid()}.part")
    part.mkdir(parents=True)
    vocab = write_tokenizer(part)
    write_config(part, vocab)
    count = write_weights(part, vocab)
    (part / STAMP).write_text(want + "\n")
    shutil.rmtree(out, ignore_errors=True)
    part.rename(out)
    print(f"{out}: vocabulary {vocab}, {count} parameters")


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "tiny-model")
