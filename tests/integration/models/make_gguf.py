"""Writes a model file for llama.cpp: random weights in the shape of a Llama, a vocabulary of bytes.

Runs in the environment of `llama_cpp.lock`. The keys and tensors are those that llama.cpp asks for when it loads the
architecture `llama`.
"""

import argparse

import numpy as np
from gguf import GGUFWriter, LlamaFileType, TokenType

_SPECIAL = [(b"<unk>", TokenType.UNKNOWN), (b"<s>", TokenType.CONTROL), (b"</s>", TokenType.CONTROL)]
_BYTES = [(b"<0x%02X>" % value, TokenType.BYTE) for value in range(256)]
_PRINTABLE = [(bytes([value]), TokenType.NORMAL) for value in range(32, 127)]
_HEADS = 4
_CONTEXT = 4096


def write(path: str, width: int, layers: int) -> None:
    """`width` must be a multiple of 8."""
    vocabulary = _SPECIAL + _BYTES + _PRINTABLE
    inner = 2 * width
    writer = GGUFWriter(path, "llama")
    writer.add_name("random")
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // _HEADS)
    writer.add_file_type(LlamaFileType.ALL_F32)
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_scores([0.0] * len(vocabulary))
    writer.add_token_types([kind for _, kind in vocabulary])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    chance = np.random.default_rng(1)

    def random(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", 0.05 * chance.standard_normal(shape, dtype=np.float32))

    def ones(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))

    random("token_embd", len(vocabulary), width)
    ones("output_norm")
    random("output", len(vocabulary), width)
    for block in range(layers):
        for norm in ("attn_norm", "ffn_norm"):
            ones(f"blk.{block}.{norm}")
        for square in ("attn_q", "attn_k", "attn_v", "attn_output"):
            random(f"blk.{block}.{square}", width, width)
        random(f"blk.{block}.ffn_gate", inner, width)
        random(f"blk.{block}.ffn_up", inner, width)
        random(f"blk.{block}.ffn_down", width, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True)
    options = parser.parse_args()
    write(options.path, options.width, options.layers)
