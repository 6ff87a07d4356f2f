"""Widens a small model to a large one's dimensions: it costs as much as the large one and writes the small one's text.

This serves measurements where no large model is available. The small model is a corner of the large one, and the added
weights change no output:

- The residual stream has zeros in the added places. An RMS norm over D places of which d are not zero divides by
  sqrt(d / D) of what it did, so its weights are multiplied by that, and its epsilon by d / D. Both are exact in binary
  where D / d is a power of 4. Then outputs are those of the small model in the same quantization, to the last bit,
  if its own widths are multiples of the kernels' steps (64 numbers, or a block); else up to rounding.
- Heads keep their size, and with it their rotation and the scale of attention: a shape published with larger heads
  gets more of them, so that every matrix and the KV cache keep the published sizes. The values of added heads are zero.
- An added feed-forward unit is a product of which one factor is zero.
- Added layers are made of added heads and units only: they add zero to the stream.
- Rows added to the vocabulary matrix copy the row of a token that the model does not use. Their logits are that
  token's, so none exceeds all of the small model's own, and they follow it. The metadata key ``REAL_TOKENS`` of
  ``slipstream.models.gguf.reader`` counts the rows that are tokens; the logits of the others are not returned.

Zeros could be cheaper than weights: a file of zeros may be stored as a hole or compressed, memory too, and on a GPU
sums of zeros draw less power. So weights are zero only where needed (``tensor.Layout``): in 2 of 100 weights of a
13b, 6 of a 1b; the others are random, most of them multiplied by an activation that is zero.
"""
