"""Ways to break one entry of a model file, its framing left whole: metadata, vocabulary, tensors."""

import random
import struct
from collections.abc import Callable, Sequence
from typing import Final

from tests.models.conftest import ARRAY, BOOL, CODES, F32, I32, STRING, U32, U64, RawModel

from slipstream.models.gguf.parse import TENSOR_TYPES

INTEGERS: Final = [0, 1, 2, 3, 5, 7, 31, 63, 64, 255, 512, 513, 2**16, 2**31 - 1, 2**31, 2**32 - 1]
LONGS: Final = [0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, 2**40, 512, 513]
REALS: Final = [0.0, -1.0, 1e-30, 2.0, 1e38, float("inf"), float("nan")]
ARCHITECTURES: Final = [
    *("llama", "mamba", "bert", "t5", "rwkv7", "gpt2", "plamo2", "qwen2", "qwen35", "gemma3", "gemma4", "deepseek2"),
    *("falcon", "phi3", "lfm2", "jamba", "granitehybrid", "clip", "eagle3", "llada", "deci", "no-such-thing", ""),
]
TOKENIZERS: Final = ["llama", "gpt2", "bert", "t5", "rwkv", "gemma4", "plamo2", "none", "no_vocab", "gpt-2", ""]
PRE: Final = ["default", "llama-bpe", "gpt-2", "qwen2", "deepseek-r1-qwen", "tekken", "no-such-thing", ""]
TEXTS: Final = [b"", b"llama", b"\xff\xfe", b"{{ x", b"x" * 5000, b"{% for a in range(99999) %}", b"\0", b"a\0b"]
TOKENS: Final = [
    *("", "<0x-1>", "<0x41>", "<0xGG>", "</s>", "a" * 70_000, "\u2581", "\ufffd", "<|im_end|>", "a\0b", "\x1b[2J")
]
MERGES: Final = ["", " ", "a", "a b c", "no such", "  ", "a  b", "\0 \0", "\u0120 t"]
EXTRA: Final = [
    *("expert_count", "expert_used_count", "nextn_predict_layers", "leading_dense_block_count"),
    *("rope.dimension_count", "rope.scaling.original_context_length", "rope.freq_base", "rope.scaling.factor"),
    *("attention.sliding_window", "attention.key_length", "attention.value_length", "attention.head_count"),
    *("attention.head_count_kv", "attention.sliding_window_pattern", "feed_forward_length", "full_attention_interval"),
    *("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count"),
    *("expert_feed_forward_length", "expert_shared_count", "expert_group_count", "expert_group_used_count"),
    *("shortconv.l_cache", "wkv.head_size", "pooling_type", "attention.causal", "embedding_length_out", "vocab_size"),
    *("attention.group_norm_groups", "attention.key_length_mla", "attention.value_length_mla"),
    *("attention.kv_lora_rank", "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"),
    *("attention.clamp_kqv", "logit_scale"),
    *("final_logit_softcapping", "attn_logit_softcapping", "block_count", "context_length", "embedding_length"),
]
LISTS: Final = ["attention.head_count", "attention.head_count_kv", "feed_forward_length", "rope.dimension_sections"]
PLAIN_KEYS: Final = [
    *("general.alignment", "general.file_type", "general.quantization_version", "split.count", "split.no"),
    *("split.tensors.count", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.bos_token_id"),
    "tokenizer.ggml.fim_pre_token_id",
    *("tokenizer.ggml.unknown_token_id", "tokenizer.ggml.padding_token_id", "tokenizer.ggml.eos_token_id"),
    *("tokenizer.ggml.add_bos_token", "tokenizer.ggml.token_type_count", "tokenizer.ggml.mask_token_id"),
]
ALL_NUMBERS: Final = [U32, I32, F32, BOOL, U64, 0, 1, 2, 3, 11, 12]


def _number(model: RawModel, key: str, dice: random.Random) -> None:
    kind = dice.choice([U32] * 6 + [F32] * 2 + ALL_NUMBERS)
    if kind in (F32, 12):
        model.pairs[key] = (kind, struct.pack("<" + CODES[kind], dice.choice(REALS)) if kind == 12 else _f32(dice))
        return
    size = struct.calcsize(CODES[kind])
    model.pairs[key] = (kind, (dice.choice(INTEGERS) & (256**size - 1)).to_bytes(size, "little"))


def _f32(dice: random.Random) -> bytes:
    return struct.pack("<f", dice.choice(REALS))


def _prefix(model: RawModel) -> str:
    return model.pairs.get("general.architecture", (STRING, b""))[1][8:].decode("utf-8", "replace")


def _bend_value(model: RawModel, dice: random.Random) -> None:
    key = dice.choice(sorted(model.pairs))
    kind, value = model.pairs[key]
    if kind == U32:
        model.number(key, dice.choice(INTEGERS))
    elif kind == F32:
        model.real(key, dice.choice(REALS))
    elif kind == STRING:
        model.text(key, dice.choice(TEXTS))
    elif kind == ARRAY:
        element, count = struct.unpack_from("<IQ", value)
        narrow, none = struct.pack("<IQ", 0, count) + bytes(count), struct.pack("<IQ", element, 0)
        texts = struct.pack("<IQ", 8, count) + (struct.pack("<Q", 6) + b"<0x-1>") * count
        model.pairs[key] = (kind, dice.choice([narrow, none, texts, value[:-1], value + b"\0"]))
    else:
        _number(model, key, dice)


def _drop(model: RawModel, dice: random.Random) -> None:
    model.drop(dice.choice(sorted(model.pairs)))


def _add(model: RawModel, dice: random.Random) -> None:
    _number(model, f"{_prefix(model)}.{dice.choice(EXTRA)}", dice)


def _add_list(model: RawModel, dice: random.Random) -> None:
    count, kind = dice.choice([0, 1, 3, 4, 5, 512, 600]), dice.choice([U32, U32, I32, F32, BOOL])
    key = f"{_prefix(model)}.{dice.choice(LISTS)}"
    model.array(key, kind, [dice.choice([0, 0, 1, 1, 2, 4, 16, 64]) % (2 if kind == BOOL else 99)] * count)


def _add_plain(model: RawModel, dice: random.Random) -> None:
    _number(model, dice.choice(PLAIN_KEYS), dice)


def _retype(model: RawModel, dice: random.Random) -> None:
    key = dice.choice(sorted(model.pairs))
    match dice.randrange(4):
        case 0:
            model.text(key, dice.choice(TEXTS))
        case 1:
            model.array(key, dice.choice([U32, F32, I32]), [1, 2, 3])
        case 2:
            model.array(key, STRING, ["a", "b"])
        case _:
            _number(model, key, dice)


def _architecture(model: RawModel, dice: random.Random) -> None:
    """Another architecture, with the keys renamed or not."""
    old, new = _prefix(model), dice.choice(ARCHITECTURES)
    model.text("general.architecture", new)
    if dice.random() < 0.8:
        model.pairs = {
            (new + key[len(old) :] if key.startswith(f"{old}.") else key): pair for key, pair in model.pairs.items()
        }


def _tokens(model: RawModel, dice: random.Random) -> None:
    key = "tokenizer.ggml.tokens"
    if model.pairs.get(key, (0, b""))[0] != ARRAY or struct.unpack_from("<I", model.pairs[key][1])[0] != STRING:
        return
    tokens = strings(model.pairs[key][1])
    match dice.randrange(5):
        case 0 if tokens:
            tokens[dice.randrange(len(tokens))] = dice.choice(TOKENS)
        case 1 if tokens:
            tokens[dice.randrange(len(tokens))] = dice.choice(tokens)
        case 2:
            tokens = tokens[: dice.choice([0, 1, 2, 5, max(0, len(tokens) - 1)])]
        case 3:
            tokens = [*tokens, *(f"more {n}" for n in range(dice.choice([1, 40, 300])))]
        case _:
            dice.shuffle(tokens)
    model.array(key, STRING, list(tokens))


def _token_types(model: RawModel, dice: random.Random) -> None:
    key = "tokenizer.ggml.token_type"
    if model.pairs.get(key, (0, b""))[0] != ARRAY:
        return
    packed = model.pairs[key][1]
    kind, count = struct.unpack_from("<IQ", packed)
    if kind == I32:
        count = min(count, (len(packed) - 12) // 4)  # an earlier bend may have cut it short
        types = list(struct.unpack_from(f"<{count}i", packed, 12))
        for _ in range(dice.choice([1, 5, count])):
            types[dice.randrange(count) if count else 0 :][:1] = []
            if count:
                types[dice.randrange(count)] = dice.choice([0, 1, 2, 3, 4, 5, 6, 7, 99, -1, 2**31 - 1])
        model.array(key, I32, list(types))


def _merges(model: RawModel, dice: random.Random) -> None:
    merges = [dice.choice(MERGES) for _ in range(dice.choice([0, 1, 30]))]
    model.array("tokenizer.ggml.merges", STRING, list(merges))


def _tokenizer(model: RawModel, dice: random.Random) -> None:
    model.text("tokenizer.ggml.model", dice.choice(TOKENIZERS))
    if dice.random() < 0.7:
        model.text("tokenizer.ggml.pre", dice.choice(PRE))
    if dice.random() < 0.5:
        _merges(model, dice)
    if dice.random() < 0.2:
        charsmap: list[object] = [dice.randrange(256) for _ in range(dice.choice([0, 4, 9, 99]))]
        model.array("tokenizer.ggml.precompiled_charsmap", 0, charsmap)


def _shape(model: RawModel, dice: random.Random) -> None:
    at = dice.randrange(len(model.tensors))
    name, shape, kind, offset = model.tensors[at]
    new = list(shape)
    place = dice.randrange(len(new))
    match dice.randrange(6):
        case 0:
            new[place] = dice.choice([*INTEGERS, *LONGS])
        case 1:
            new[place] = max(1, new[place] + dice.choice([-32, -1, 1, 32]))
        case 2:
            new[place] = max(32, new[place] // 2)
        case 3:
            new.reverse()
        case 4:
            new.append(dice.choice([1, 2]))
        case _:
            new = new[:-1] or [1]
    model.tensors[at] = (name, tuple(new), kind, offset)


def _tensor_type(model: RawModel, dice: random.Random) -> None:
    at = dice.randrange(len(model.tensors))
    name, shape, _, offset = model.tensors[at]
    model.tensors[at] = (name, shape, dice.choice([*TENSOR_TYPES, 4, 5, 31, 43, 2**31, 2**32 - 1]), offset)


def _offset(model: RawModel, dice: random.Random) -> None:
    at = dice.randrange(len(model.tensors))
    name, shape, kind, offset = model.tensors[at]
    other = dice.choice(model.tensors)[3]
    model.tensors[at] = (name, shape, kind, dice.choice([0, 1, other, offset + 1, offset + 32, 2**63, 2**64 - 32]))


def _tensor_name(model: RawModel, dice: random.Random) -> None:
    at, other = dice.randrange(len(model.tensors)), dice.randrange(len(model.tensors))
    one, two = model.tensors[at], model.tensors[other]
    match dice.randrange(5):
        case 0:
            model.tensors[at] = (two[0], *one[1:])
        case 1:
            model.tensors[at], model.tensors[other] = (two[0], *one[1:]), (one[0], *two[1:])
        case 2:
            names = ["", "a" * 64, "blk.-1.attn_q.weight", "blk.999.attn_q.weight", "output.bias"]
            model.tensors[at] = (dice.choice(names), *one[1:])
        case 3 if len(model.tensors) > 1:
            del model.tensors[at]
        case _:
            names = ["rope_freqs.weight", "output.weight", "blk.0.attn_q.bias", "blk.0.ffn_gate_inp.weight"]
            model.tensors.append((dice.choice(names), dice.choice([(8,), (32,), (16, 4), one[1]]), 0, one[3]))


BENDS: Final[Sequence[tuple[Callable[[RawModel, random.Random], None], int]]] = (
    (_bend_value, 4), (_drop, 3), (_add, 8), (_add_list, 3), (_add_plain, 2), (_retype, 3), (_architecture, 3),
    (_tokens, 3), (_token_types, 2), (_merges, 1), (_tokenizer, 3), (_shape, 4), (_tensor_type, 2), (_offset, 1),
    (_tensor_name, 3),
)  # fmt: skip


def strings(packed: bytes) -> list[str]:
    """The texts of a packed array, those that are there whole."""
    found, at = [], 12
    for _ in range(struct.unpack_from("<Q", packed, 4)[0]):
        if at + 8 > len(packed):
            break
        length = struct.unpack_from("<Q", packed, at)[0]
        found.append(packed[at + 8 : at + 8 + length].decode("utf-8", "replace"))
        at += 8 + length
    return found
