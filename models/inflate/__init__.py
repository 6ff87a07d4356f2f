"""Widens a small model to a large one's measures: the cost of the large one, the outputs of the small one.

For measurements of a system where no large model can be had. The small model stands in a corner of the large one, and
whatever is added changes no output:

- The residual stream has zeros in the added places. An RMS norm over D places of which d are not zero divides by
  sqrt(d / D) of what it did, so its weights are multiplied by that, and its epsilon by d / D. Both are exact in binary
  where D / d is a power of 4. Then outputs are those of the small model in the same quantization, to the last bit,
  if its own widths are whole steps of the kernels (64 numbers, or a block); else they are to rounding.
- Heads keep their size, and with it their rotation and the scale of attention: a shape published with larger heads
  gets more of them, so that every matrix and the KV cache keep the published sizes. The values of added heads are zero.
- An added feed-forward unit is a product of which one factor is zero.
- Added layers are made of added heads and units only: they add zero to the stream.
- Rows added to the vocabulary matrix copy the row of a token that the model does not use. Their logits are that
  token's, so that none is ever above all of the small model's own, and they stand after it. ``gguf.REAL_TOKENS`` says
  how many rows are tokens; no logits of the others are handed out.

Zeros could be cheaper than weights: a file of zeros may be stored as a hole or compressed, memory too, and on a GPU
sums of zeros draw less power. So zeros stand only where they are needed (``layout.Layout``): in 2 of 100 weights of a
13b, 6 of a 1b; all else is random, most of it multiplied by an activation that is zero.
"""
