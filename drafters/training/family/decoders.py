"""Trains and measures whole decoders, for the target and the draft model."""

import ctypes
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from slipstream.drafters.training.corpus import Sampler, Source
from slipstream.drafters.training.loop import BatchLoss, Plan, Run
from slipstream.drafters.training.model import Decoder, Shape

_SURE = 1e-4  # nats; at a loss near 0, the unlikelihood would be infinite
_NEVER_MAP, _TRIM_ABOVE, _GROW_BY = -4, -1, -2  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD of glibc's malloc.h


def decoder_run(
    shape: Shape, plan: Plan, train: dict[str, Source], held_out: dict[str, Source], compiled: bool = True
) -> Run:
    """A run of a fresh decoder; equal seeds give equal runs.

    Args:
        compiled: fuse each layer's small operations; needs a C++ compiler and some seconds at the start.
    """
    torch.manual_seed(plan.seed)
    model = Decoder(shape)
    if compiled:
        torch._dynamo.config.recompile_limit = 32  # one per window length, with and without gradients
        for layer in model.blk:
            layer.compile(dynamic=False)
    check = lambda m: held_out_loss(m, held_out, plan.seed, rows=32)  # noqa: E731
    return Run(model, plan, Sampler(train, plan.seed), check, {"shape": vars(shape)})


def keep_memory() -> None:
    """Tells glibc to keep freed memory, which a training step soon allocates again.

    Returning it costs a page fault for each 4 KiB of every large tensor: measured 5,800 instead of 7,600 tokens/s.
    """
    mallopt = None if sys.platform == "win32" else getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        for option, value in ((_NEVER_MAP, 0), (_TRIM_ABOVE, 2**31 - 1), (_GROW_BY, 1 << 28)):
            mallopt(option, value)


def weighted_loss(model: nn.Module, ids: Tensor, weights: Tensor, chats: Tensor) -> Tensor:
    """Weighted mean loss in nats: cross-entropy of ids of positive weight, unlikelihood of ids of negative weight.

    Unlikelihood is -log(1 - p): the id becomes less likely (Welleck et al., arXiv 1908.04319).
    """
    with torch.autocast(ids.device.type, torch.bfloat16):
        # logits of all rows: a shape that changes with every batch would fill oneDNN's cache
        logits = model(ids[:, :-1], chats[:, :-1])
    weight = weights[:, 1:].flatten()
    losses = functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    avoided = -torch.log(-torch.expm1(-losses.clamp(min=_SURE)))
    return (torch.where(weight < 0, avoided, losses) * weight.abs()).sum() / weight.abs().sum()


@torch.no_grad()
def held_out_loss(model: nn.Module, held_out: dict[str, Source], seed: int, rows: int, length: int = 256) -> float:
    """Mean loss of the reply's own tokens on a fixed draw of held-out windows, in nats per token."""
    sampler = Sampler(held_out, seed)
    total = count = 0.0
    for _ in range(0, rows, 16):
        ids, weights, chats = (torch.from_numpy(part) for part in sampler.batch(16, length))
        replies = (weights >= 1).float()
        seen = float(replies[:, 1:].sum())
        if seen:
            total += float(weighted_loss(model, ids, replies, chats)) * seen
            count += seen
    return total / max(count, 1.0)


def load_decoder(path: Path) -> tuple[Decoder, dict[str, Any]]:
    """The decoder of a checkpoint, and the checkpoint's progress."""
    state = torch.load(path, weights_only=True)
    model = Decoder(Shape(**state["about"]["shape"]))
    model.load_state_dict(state["model"])
    return model.eval(), state["progress"]


TEXT_SHARE = 0.1  # share of the plain cross-entropy in the loss


def distillation_loss(teacher: Decoder) -> BatchLoss:
    """Cross-entropy against the teacher's distribution, plus a small share of that against the text.

    So the draft model learns the target's distribution, not only its text (Hinton et al., arXiv 1503.02531).
    """

    def loss(model: Decoder, ids: Tensor, weights: Tensor, chats: Tensor) -> Tensor:
        weight = weights[:, 1:].flatten()
        with torch.autocast(ids.device.type, torch.bfloat16):
            with torch.no_grad():
                soft = teacher(ids[:, :-1], chats[:, :-1]).float().flatten(0, 1).softmax(-1)
            logits = model(ids[:, :-1], chats[:, :-1]).float().flatten(0, 1)
        by_target = functional.cross_entropy(logits, soft, reduction="none")
        by_text = functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
        losses = (1 - TEXT_SHARE) * by_target + TEXT_SHARE * by_text
        return (losses * weight).sum() / weight.sum()

    return loss
