"""Widens a small model to a large shape: it costs as much as a large model, and generates the small model's text.

This allows measurements if no large model is available. The small model's matrices are corners of the large ones, and
the added weights do not change its outputs:

- The residual stream grows from d to D dimensions; the added ones are zero. So the mean square in an RMS norm is d / D
  of the small model's. The norm's weights are multiplied by sqrt(d / D), its epsilon by d / D; both factors are exact
  in binary if D / d is a power of 4. Then the outputs equal the small model's in the same quantization to the last
  bit if its widths are multiples of the kernels' steps (64 numbers, or a block), and otherwise up to rounding.
- Heads keep their size, so RoPE and the scale of attention do not change. For a shape with larger heads, the widened
  model has more heads, so that matrices and KV cache have the published sizes. The values of added heads are zero.
- The output of an added feed-forward unit is a product with a zero factor.
- Added layers have only added heads and units, so they add zero to the stream.
- Rows added to the vocabulary matrix copy the row of a token that the model does not use. Their logits equal that
  token's, so they never exceed the small model's best logit. The metadata key ``REAL_TOKENS`` of
  ``slipstream.models.gguf.reader`` is the number of rows that are tokens; logits of other rows are not returned.

Zeros could be cheaper than weights: files and memory may store them as holes or compress them, and GPUs draw less power
on them. So added weights are zero only where needed (``tensor.Layout``): 2 % of the weights of a 13b, 6 % of a 1b. The
others are random; most of them are multiplied by a zero activation.
"""
