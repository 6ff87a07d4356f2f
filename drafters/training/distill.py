"""The draft model learns the target's distribution, not only the text (Hinton et al., arXiv 1503.02531)."""

import torch
from torch import Tensor
from torch.nn import functional

from slipstream.drafters.training.corpus import Sampler, Source
from slipstream.drafters.training.loop import BatchLoss
from slipstream.drafters.training.model import Decoder

TEXT_SHARE = 0.1
"""Share of the plain cross-entropy in the loss."""


def distillation_loss(teacher: Decoder) -> BatchLoss:
    """Cross-entropy against the teacher's distribution, with a little of that against the text."""

    def loss(model: Decoder, ids: Tensor, weights: Tensor) -> Tensor:
        weight = weights[:, 1:].flatten()
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                soft = teacher(ids[:, :-1]).float().flatten(0, 1).softmax(-1)
            logits = model(ids[:, :-1]).float().flatten(0, 1)
        by_target = functional.cross_entropy(logits, soft, reduction="none")
        by_text = functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
        losses = (1 - TEXT_SHARE) * by_target + TEXT_SHARE * by_text
        return (losses * weight).sum() / weight.sum()

    return loss


@torch.no_grad()
def agreement(
    teacher: Decoder, model: Decoder, held_out: dict[str, Source], rows: int, window: int, seed: int
) -> tuple[float, float]:
    """How often the draft model's best id is the target's, and the mean overlap of the distributions.

    The overlap, the sum of the smaller probability over all ids, is the chance that a sampled draft is accepted
    (Leviathan et al., arXiv 2211.17192). Only reply tokens of held-out windows count.

    Returns:
        (share of equal best ids, mean overlap), both 0 to 1.
    """
    sampler = Sampler(held_out, seed)
    same = overlap = count = 0.0
    for _ in range(0, rows, 16):
        ids, weights = (torch.from_numpy(part) for part in sampler.batch(16, window))
        wanted = weights[:, 1:] >= 1
        theirs, ours = (m.logits(m.hidden(ids[:, :-1])[wanted]).float().softmax(-1) for m in (teacher, model))
        same += float((theirs.argmax(-1) == ours.argmax(-1)).sum())
        overlap += float(torch.minimum(theirs, ours).sum())
        count += float(wanted.sum())
    return same / max(count, 1.0), overlap / max(count, 1.0)
