"""SPACE: mask tokens after the text guess the tokens after the next one, in the same pass that verifies a draft.

Yi et al., arXiv 2402.13740 (Findings of ACL 2024); github.com/cteant/SPACE. Semi-autoregressive tuning appends mask
tokens to a prefix and trains them to predict the tokens that were cut off. Here one window has several groups of masks,
each after another cut and hidden from everything else (the paper's efficient variant). The target stays frozen and only
the masks' embeddings are trained (as in PPD, arXiv 2405.18628), so that the target's text does not change; the paper
tunes the whole target with them.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from slipstream.drafters.training.acceptance import Acceptance, mean, of_guesses
from slipstream.drafters.training.corpus import TrainingText, WindowSampler
from slipstream.drafters.training.decoder import Decoder, chat_mask
from slipstream.drafters.training.loop import BatchLoss

GROUPS = 24  # groups of masks in one window


class Masks(nn.Module):
    """The embeddings of k mask tokens."""

    def __init__(self, count: int, embedding: Tensor, seed: int) -> None:
        """Starts at the mean embedding with a little noise.

        Args:
            embedding: (vocabulary, width) of the target.
        """
        super().__init__()
        noise = torch.randn(count, embedding.shape[1], generator=torch.Generator().manual_seed(seed))
        self.masks = nn.Parameter(
            embedding.float().mean(0) + 0.3 * embedding.float().std() * noise.to(embedding.device)
        )


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


def _mask_loss(
    target: Decoder, states: Tensor, wanted: Tensor, *, weights: Tensor, chats: Tensor, cuts: Tensor
) -> Tensor:
    """Cross-entropy of the masks against the target's distributions (rows, length, vocabulary) at the same places."""
    count = states.shape[2]
    behind = cuts[:, :, None] + torch.arange(1, count + 1, device=cuts.device)
    flat = behind.flatten(1)
    there = flat.clamp(max=wanted.shape[1] - 1)
    soft = torch.gather(wanted, 1, there[:, :, None].expand(-1, -1, wanted.shape[2]))
    guessed = target.logits(states).float().flatten(1, 2)
    losses = functional.cross_entropy(guessed.flatten(0, 1), soft.flatten(0, 1), reduction="none").view_as(flat)
    same = torch.gather(chats, 1, there) == torch.gather(chats, 1, cuts).repeat_interleave(count, 1)
    weight = torch.gather(weights, 1, there + 1) * same * (flat == there)
    return (losses * weight).sum() / weight.sum().clamp(min=1)


def loss(target: Decoder) -> BatchLoss:
    """The loss of masks that learn the distributions of a frozen target."""

    def of_batch(model: Masks, ids: Tensor, weights: Tensor, chats: Tensor, cuts: Tensor) -> Tensor:
        with torch.autocast(ids.device.type, torch.bfloat16):
            text, states = hidden_states(target, model.masks, ids[:, :-1], chats[:, :-1], cuts)
            with torch.no_grad():
                wanted = target.logits(text).float().softmax(-1)
            return _mask_loss(target, states, wanted, weights=weights, chats=chats[:, :-1], cuts=cuts)

    return of_batch


@torch.no_grad()
def acceptance(model: Masks, target: Decoder, text: TrainingText, windows: int, length: int) -> Acceptance:
    """Acceptance by depth on up to so many windows of a text, with guesses after each of its tokens."""
    sampler, masks = WindowSampler(text, seed=0), model.masks
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


def tensors(model: Masks) -> dict[str, NDArray[Any]]:
    """The arrays for a heads file, see ``slipstream.models.heads.file``."""
    return {"masks": model.masks.detach().float().cpu().numpy()}
