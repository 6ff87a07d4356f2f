"""SPACE: mask tokens after the text guess the tokens after the next one, in the same pass that verifies a draft.

Yi et al., arXiv 2402.13740 (Findings of ACL 2024); github.com/cteant/SPACE. Semi-autoregressive tuning appends mask
tokens to a prefix and trains them to predict the tokens that were cut off. Here one window has several groups of masks,
each after another cut and hidden from everything else (the paper's efficient variant). The target stays frozen and only
the masks' embeddings are trained (as in PPD, arXiv 2405.18628), so that the target's text does not change; the paper
tunes the whole target with them. Here a LoRA adapter can be tuned with them, which also learns to keep the target's
own distributions.
"""

from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from slipstream.drafters.training.acceptance import Acceptance, mean, of_guesses
from slipstream.drafters.training.corpus import TrainingText, WindowSampler
from slipstream.drafters.training.decoder import Decoder, chat_mask
from slipstream.drafters.training.loop import weighted
from slipstream.models.gguf.parse import F32, STRING, Value
from slipstream.models.gguf.reader import Header
from slipstream.models.gguf.tensors import NewTensor, write_gguf

GROUPS = 24  # groups of masks in one window
_RANK = 32  # of the adapter's matrices
_TUNED = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


class LowRank(nn.Module):
    """Low-rank additions to the matrices of all layers of a frozen decoder (Hu et al., arXiv 2106.09685)."""

    def __init__(self, target: Decoder) -> None:
        """Begins as no change."""
        super().__init__()
        matrices = {f"blk.{n}.{part}": getattr(layer, part) for n, layer in enumerate(target.blk) for part in _TUNED}
        self.on = True  # whether the decoder computes with them
        self._names, device = list(matrices), target.token_embd.weight.device
        sizes = [(each.out_features, each.in_features) for each in matrices.values()]
        self.a = nn.ParameterList(torch.randn(_RANK, reads, device=device) / reads**0.5 for _, reads in sizes)
        self.b = nn.ParameterList(torch.zeros(writes, _RANK, device=device) for writes, _ in sizes)
        for number, matrix in enumerate(matrices.values()):
            matrix.register_forward_hook(partial(self._added, number))

    def _added(self, number: int, matrix: nn.Module, given: tuple[Tensor], out: Tensor) -> Tensor:
        if not self.on:
            return out
        low = functional.linear(given[0].to(self.a[number].dtype), self.a[number])
        return out + functional.linear(low, self.b[number]).to(out.dtype)

    def write(self, path: Path, target: Header) -> None:
        """Writes a LoRA adapter as llama.cpp reads it, in float32."""
        both = zip(self._names, self.a, self.b, strict=True)
        parts = {f"{name}.weight.lora_{kind}": p for name, a, b in both for kind, p in (("a", a), ("b", b))}
        metadata: dict[str, tuple[int, Value]] = {
            "general.type": (STRING, "adapter"),
            "adapter.type": (STRING, "lora"),
            "adapter.lora.alpha": (F32, float(_RANK)),
            "general.name": (STRING, f"{target.title} SPACE"),
        }
        arrays = {name: p.detach().float().cpu().numpy() for name, p in parts.items()}
        kind = gguf.GGMLQuantizationType.F32
        tensors = [NewTensor(name, v.shape, kind, partial(np.asarray, v)) for name, v in arrays.items()]
        write_gguf(path, target.architecture, metadata, tensors)


class Masks(nn.Module):
    """The embeddings of k mask tokens, and the adapter that is tuned with them, if any."""

    def __init__(self, count: int, target: Decoder, seed: int, lora: LowRank | None = None) -> None:
        """Starts at the mean embedding with a little noise."""
        super().__init__()
        self.lora, self._target = lora, (target,)  # in a tuple: the target is no part of the masks
        embedding = target.token_embd.weight.detach()
        noise = torch.randn(count, embedding.shape[1], generator=torch.Generator().manual_seed(seed))
        self.masks = nn.Parameter(
            embedding.float().mean(0) + 0.3 * embedding.float().std() * noise.to(embedding.device)
        )

    def loss(self, ids: Tensor, weights: Tensor, chats: Tensor, cuts: Tensor) -> Tensor:
        """Cross-entropy of the masks, and of an adapter's text, against the distributions of the frozen target."""
        (target,), lora, count, read = self._target, self.lora, len(self.masks), (ids[:, :-1], chats[:, :-1])
        with torch.autocast(ids.device.type, torch.bfloat16):
            text, states = hidden_states(target, self.masks, *read, cuts)
            with torch.no_grad():
                if lora:
                    lora.on = False
                wanted = target.logits(target.hidden(*read) if lora else text).float().softmax(-1)
            flat = (cuts[:, :, None] + torch.arange(1, count + 1, device=cuts.device)).flatten(1)
            there = flat.clamp(max=wanted.shape[1] - 1)  # a mask beyond the window weighs nothing
            soft = torch.gather(wanted, 1, there[:, :, None].expand(-1, -1, wanted.shape[2]))
            guessed = target.logits(states).float().flatten(0, 2)
            losses = functional.cross_entropy(guessed, soft.flatten(0, 1), reduction="none").view_as(flat)
            same = torch.gather(chats, 1, there) == torch.gather(chats, 1, cuts).repeat_interleave(count, 1)
            found = weighted(losses, torch.gather(weights, 1, there + 1) * same * (flat == there))
            if lora:
                lora.on = True
                own = target.logits(text).float().flatten(0, 1)
                losses = functional.cross_entropy(own, wanted.flatten(0, 1), reduction="none")
                found = found + weighted(losses, weights[:, 1:].flatten())
            return found

    @torch.no_grad()
    def acceptance(self, text: TrainingText, windows: int, length: int) -> Acceptance:
        """Acceptance by depth on up to so many windows of a text, with guesses after each of its tokens."""
        sampler, masks, (target,) = WindowSampler(text, seed=0), self.masks, self._target
        parts: list[Acceptance] = []
        for _ in range(max(1, min(windows, len(text.ids) // length))):
            ids, weights, chats = sampler.batch(1, length)
            guesses = np.full((1, length, len(masks)), -1, np.int64)
            tokens, numbers = (torch.from_numpy(part).to(masks.device)[:, :-1] for part in (ids, chats))
            for start in range(0, length - 1, GROUPS):
                cuts = torch.arange(start, min(start + GROUPS, length - 1), device=masks.device)[None]
                _, states = hidden_states(target, masks, tokens, numbers, cuts)
                best = target.logits(states).argmax(-1).cpu().numpy()
                guesses[:, start + 1 : start + 1 + best.shape[1]] = best  # masks after id c guess below the root c + 1
            parts.append(of_guesses(guesses, ids, weights))
        return mean(parts)


class CutDraws:
    """Windows of text with the places after which masks are put; a ``Draws`` for the training loop."""

    def __init__(self, sampler: WindowSampler, seed: int, masks: int) -> None:
        """Args: sampler: the text. seed: of the cuts. masks: in a group."""
        self._sampler, self._masks = sampler, masks
        self._rng = np.random.default_rng(seed)

    def batch(self, rows: int, length: int) -> tuple[NDArray[Any], ...]:
        """Ids, weights and chat numbers (rows, length + 1), and cuts (rows, GROUPS): the last id that a group sees."""
        ids, weights, chats = self._sampler.batch(rows, length)
        cuts = np.zeros((rows, GROUPS), np.int64)
        for row in range(rows):
            inside = np.flatnonzero(weights[row, 2 : length - self._masks] >= 1)
            fit = inside if len(inside) else np.arange(length - self._masks - 2)
            cuts[row] = np.sort(self._rng.choice(fit, GROUPS, replace=len(fit) < GROUPS))
        return ids, weights, chats, cuts

    def state(self) -> dict[str, Any]:
        return {"text": self._sampler.state(), "cuts": self._rng.bit_generator.state}

    def restore(self, state: dict[str, Any]) -> None:
        self._sampler.restore(state["text"])
        self._rng.bit_generator.state = state["cuts"]


def hidden_states(target: Decoder, masks: Tensor, ids: Tensor, chats: Tensor, cuts: Tensor) -> tuple[Tensor, Tensor]:
    """Last hidden states of a text and of groups of masks in it, which the text does not see.

    Args:
        masks: (k, width) embeddings.
        ids: (rows, length).
        chats: (rows, length), number of the chat that each id belongs to.
        cuts: (rows, groups), index of the last id that a group sees.

    Returns:
        (rows, length, width) of the text and (rows, groups, k, width) of the masks.
    """
    rows, length = ids.shape
    count, groups = masks.shape[0], cuts.shape[1]
    behind = torch.arange(1, count + 1, device=ids.device)
    x = torch.cat(
        (target.token_embd(ids), masks.expand(rows, groups, -1, -1).flatten(1, 2).to(target.token_embd.weight.dtype)), 1
    )
    places = torch.arange(length, device=ids.device).expand(rows, -1)
    positions = torch.cat((places, (cuts[:, :, None] + behind).flatten(1)), 1)
    own = torch.gather(chats, 1, cuts)
    sees_text = (places[:, None, :] <= cuts[:, :, None]) & (chats[:, None, :] == own[:, :, None])
    mask = torch.zeros(rows, 1, x.shape[1], x.shape[1], dtype=torch.bool, device=ids.device)
    mask[:, :, :length, :length] = chat_mask(chats)
    mask[:, 0, length:, :length] = sees_text.repeat_interleave(count, 1)
    among = torch.ones(count, count, dtype=torch.bool, device=ids.device).tril()
    mask[:, 0, length:, length:] = torch.block_diag(*[among] * groups)
    states = target.run(x, positions, mask)
    return states[:, :length], states[:, length:].unflatten(1, (groups, count))


def tensors(model: Masks) -> dict[str, NDArray[Any]]:
    """The arrays for a heads file, see ``slipstream.models.heads.file``."""
    return {"masks": model.masks.detach().float().cpu().numpy()}
