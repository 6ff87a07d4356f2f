"""The draft model learns the target's distribution, not only the text (Hinton et al., arXiv 1503.02531)."""

import torch
from torch import Tensor
from torch.nn import functional

from slipstream.drafters.training.loop import BatchLoss
from slipstream.drafters.training.model import Decoder

TEXT_SHARE = 0.1  # share of the plain cross-entropy in the loss


def distillation_loss(teacher: Decoder) -> BatchLoss:
    """Cross-entropy against the teacher's distribution, with a little of that against the text."""

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
