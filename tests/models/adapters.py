"""Random models with a Kangaroo adapter, and what llama.cpp computes with them."""

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from tests.models.kinds import add_all, finish

from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.heads.file import HeadsInfo, identity, write_heads
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions, PrefillChunk
from slipstream.models.types import Floats, TokenTree

EXACT = ContextOptions(n_ctx=256, kv="f32", flash=False, max_leaves=1, threads=1)
WIDTH, HEADS, KV_HEADS, HEAD, UNITS, VOCABULARY, LAYERS = 64, 4, 2, 32, 96, 100, 3


class Pair(NamedTuple):
    target: Path
    adapter: Path


def random_adapter(header: Header, rng: np.random.Generator, exit_layer: int) -> tuple[HeadsInfo, dict[str, Floats]]:
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (WIDTH,), "attn_q.weight": (HEADS * HEAD, WIDTH),
        "attn_k.weight": (KV_HEADS * HEAD, WIDTH), "attn_v.weight": (KV_HEADS * HEAD, WIDTH),
        "attn_output.weight": (WIDTH, HEADS * HEAD), "output_norm.weight": (WIDTH,),
    }  # fmt: skip
    if header.architecture == "qwen3":
        shapes |= {"attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,)}
    info = HeadsInfo("kangaroo", identity(header), header.name, "folder", (), 1, {"exit_layer": exit_layer})
    return info, {name: random_tensor(rng, shape) for name, shape in shapes.items()}


def random_tensor(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.normal(float(len(shape) == 1), 0.2, shape).astype(np.float32)


def random_pair(
    folder: Path, architecture: str, exit_layer: int, kind: Kind = Kind.F32, tied: bool = False, per_file: int = 0
) -> Pair:
    """A model of random weights, large enough that every part of it matters, and an adapter."""
    rng = np.random.default_rng(3)
    path = folder / "random.gguf"
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=per_file)
    sizes = {
        "context_length": 256, "embedding_length": WIDTH, "block_count": LAYERS, "feed_forward_length": UNITS,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.key_length": HEAD,
        "attention.value_length": HEAD, "rope.dimension_count": HEAD, "vocab_size": VOCABULARY,
    }  # fmt: skip
    add_all(writer, f"{architecture}.", sizes | {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 5000.0})
    writer.add_tokenizer_model("none")
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (VOCABULARY, WIDTH), "output_norm": (WIDTH,)}
    if not tied:
        shapes["output"] = (VOCABULARY, WIDTH)
    for layer in range(LAYERS):
        block: dict[str, tuple[int, ...]] = {
            "attn_norm": (WIDTH,), "attn_q": (HEADS * HEAD, WIDTH), "attn_k": (KV_HEADS * HEAD, WIDTH),
            "attn_v": (KV_HEADS * HEAD, WIDTH), "attn_output": (WIDTH, HEADS * HEAD), "ffn_norm": (WIDTH,),
            "ffn_gate": (UNITS, WIDTH), "ffn_up": (UNITS, WIDTH), "ffn_down": (WIDTH, UNITS),
        }  # fmt: skip
        if architecture == "qwen3":
            block |= {"attn_q_norm": (HEAD,), "attn_k_norm": (HEAD,)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    for name, shape in shapes.items():
        values = random_tensor(rng, shape)
        stored = kind if len(shape) > 1 else Kind.F32
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, stored), raw_dtype=stored)
    if architecture == "llama":
        writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, HEAD // 2, dtype=np.float32))
    finish(writer)
    target = min(folder.glob("random*.gguf"))
    info, tensors = random_adapter(read_header(target), rng, exit_layer)
    adapter = folder / "adapter.gguf"
    write_heads(adapter, info, tensors, "f32" if kind == Kind.F32 else "q8_0")
    return Pair(target, adapter)


def layer_inputs(path: Path, layer: int, tokens: list[int]) -> Floats:
    rows: list[Floats] = []

    def keep(chunk: PrefillChunk) -> None:
        rows.append(chunk.hidden[layer].copy())

    with closing(LlamaModel(path)) as model, closing(LlamaTarget(model, EXACT)) as target:
        target.request(frozenset({layer}))
        target.prefill(tokens, on_chunk=keep)
    return np.concatenate(rows)


def logits_of(path: Path, tokens: list[int]) -> Floats:
    with closing(LlamaModel(path)) as model, closing(LlamaTarget(model, EXACT)) as target:
        rows: Floats = target.evaluate(tokens[0], TokenTree.chain(tokens[1:])).logits.copy()
    return rows
