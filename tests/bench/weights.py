"""Writes models of random weights, in the shape of real ones, for figures that must not depend on a download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import gguf
import numpy as np
from numpy.typing import NDArray

from slipstream.models.errors import SlipstreamError, reason_of

_BLOCK: Final = 32  # weights that share a scale in Q8_0
_BLOCK_BYTES: Final = 2 + _BLOCK
_SPREAD: Final = 74.0  # standard deviation of a random signed byte
_Q8_0: Final = gguf.GGMLQuantizationType.Q8_0


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The measures of a llama-shaped model whose output matrix is its token embedding."""

    name: str
    n_vocab: int  # size of the vocabulary
    n_embd: int
    n_layer: int
    n_ff: int  # inner width of the feed-forward network
    n_head: int  # query heads
    n_head_kv: int  # key and value heads
    n_ctx: int = 8192  # context it claims to be trained for, in tokens

    @staticmethod
    def large() -> ModelShape:
        """About 380 MB: 350M weights, nearly half of them the embedding of 152,000 tokens, as in small Qwen models."""
        return ModelShape("made, 350M", 152_000, 1024, 17, 2816, 16, 8)

    @staticmethod
    def wide() -> ModelShape:
        """About 10 MB, nearly all of it the embedding of 152,000 tokens."""
        return ModelShape("made, 10M", 152_000, 64, 2, 128, 2, 1)

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Every quantized tensor's name and [rows, columns], in the file's order."""
        kv = self.n_embd // self.n_head * self.n_head_kv
        found = {"token_embd.weight": (self.n_vocab, self.n_embd)}
        for layer in range(self.n_layer):
            block = f"blk.{layer}."
            found[f"{block}attn_q.weight"] = (self.n_embd, self.n_embd)
            found[f"{block}attn_k.weight"] = found[f"{block}attn_v.weight"] = (kv, self.n_embd)
            found[f"{block}attn_output.weight"] = (self.n_embd, self.n_embd)
            found[f"{block}ffn_gate.weight"] = found[f"{block}ffn_up.weight"] = (self.n_ff, self.n_embd)
            found[f"{block}ffn_down.weight"] = (self.n_embd, self.n_ff)
        return found

    def norms(self) -> list[str]:
        """The names of the norms' weights."""
        inner = [f"blk.{at}.{name}_norm.weight" for at in range(self.n_layer) for name in ("attn", "ffn")]
        return [*inner, "output_norm.weight"]


def write_model(path: Path, shape: ModelShape, seed: int = 1) -> None:
    """Writes a Q8_0 GGUF without a tokenizer, one tensor at a time.

    Args:
        path: The file to write.
        shape: Its measures.
        seed: Chooses the weights.

    Raises:
        SlipstreamError: If there is no room for it, or the folder cannot be written to.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(shape.name)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(shape.n_embd // shape.n_head)
    writer.add_vocab_size(shape.n_vocab)
    writer.add_tokenizer_model("none")
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    matrices, norms = shape.matrices(), shape.norms()
    for name, (rows, columns) in matrices.items():
        size = (rows, columns // _BLOCK * _BLOCK_BYTES)
        writer.add_tensor_info(name, size, np.dtype(np.uint8), size[0] * size[1], _Q8_0)
    for name in norms:
        writer.add_tensor_info(name, (shape.n_embd,), np.dtype(np.float32), 4 * shape.n_embd)
    rng = np.random.default_rng(seed)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for rows, columns in matrices.values():
            writer.write_tensor_data(_random_q8_0(rng, rows, columns))
        for _ in norms:
            writer.write_tensor_data(np.ones(shape.n_embd, np.float32))
    except OSError as error:
        reason = reason_of(error)
        raise SlipstreamError(
            f"cannot write a model for the benchmark to {path.parent}: {reason}.",
            "Free some room there, or set TMPDIR to a folder that has it.",
        ) from error
    finally:
        writer.close()


def _random_q8_0(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.uint8]:
    """Random weights of variance 1 / columns as Q8_0: [rows, bytes a row]; a block is an F16 scale and 32 bytes."""
    blocks = rows * columns // _BLOCK
    raw = rng.integers(0, 256, (blocks, _BLOCK_BYTES), np.uint8)
    scale = np.array([1 / (_SPREAD * columns**0.5)], "<f2")
    raw[:, :2] = scale.view(np.uint8)
    return raw.reshape(rows, -1)
