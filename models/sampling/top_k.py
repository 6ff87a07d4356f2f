"""Finds the best tokens of a row of logits; fast on large rows."""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slipstream.models.errors import NotANumberError
from slipstream.models.types import Floats

Ids = NDArray[np.int64]
Doubles = NDArray[np.float64]
NONE: Final[Ids] = np.empty(0, np.int64)
NONE.setflags(write=False)

_BLOCK: Final = 64  # logits per block; at first only the maximum of each block is compared
_SMALL: Final = 2_048  # up to this size, copying the row costs less than using blocks


def best(row: Floats, k: int, penalised: Ids, adjusted: Floats, reach: float = math.inf) -> tuple[Ids, Doubles]:
    """Finds the k best ids, best first, lowest id first among equals, and their logits.

    The k-th largest of the maxima of disjoint blocks is a lower bound for the k-th largest logit, so only logits that
    reach it need sorting. The row is reshaped to 64 lines, and a block is a column: column maxima run at memory speed.

    Args:
        row: [n_vocab] logits before penalties; not copied if it is large.
        k: Number of ids; fewer are returned if fewer logits are finite.
        penalised: [m] ids, ascending, whose logits differ from ``row``.
        adjusted: [m] their logits.
        reach: If no other logit is within this distance of the largest one, only the largest may be returned. This is
            a fast path for the many tokens of which the model is sure.
    """
    size = row.size
    if k == 1 and not penalised.size:
        first = row.argmax()
        if -math.inf < row[first] < math.inf:  # else there may be a NaN, which argmax takes for the largest
            return np.array([first]), row[first : first + 1].astype(np.float64)
    height = min(_BLOCK, size // (4 * k))
    if size <= _SMALL or height < 2:
        return _best_of_few(with_penalties(cleaned(row), penalised, adjusted), k, reach)
    width = size // height
    folded = height * width
    lines = row[:folded].reshape(height, width)
    maxima = lines.max(axis=0)
    bounds = np.concatenate((maxima, row[folded:]))
    highest = float(bounds.max())
    if not highest < math.inf:  # a NaN makes its block's maximum NaN
        return best(cleaned(row), k, penalised, adjusted)
    near = NONE if penalised.size or reach == math.inf else (bounds >= _floor(highest, reach)).nonzero()[0]
    if len(near) == 1 and near[0] < width:
        ids = (lines[:, near[0]] >= _floor(highest, reach)).nonzero()[0] * width + near
        if len(ids) == 1:
            return ids, row[ids].astype(np.float64)
    if penalised.size:
        bounds[np.where(penalised < folded, penalised % width, penalised - folded + width)] = -np.inf
        bounds = np.concatenate((bounds, adjusted))
    bounds.partition(bounds.size - k)
    bound = bounds[bounds.size - k]
    if bound == -np.inf:  # as when a grammar allows few tokens: partitioning equal values takes 14 ms, a search 0.1
        row = with_penalties(row, penalised, adjusted)
        return _in_order(row, (row > -np.inf).nonzero()[0], k)
    columns = (maxima >= bound).nonzero()[0]  # avoids a second pass over the whole row
    line, place = (lines[:, columns] >= bound).nonzero()
    ids = np.concatenate((line * width + columns[place], (row[folded:] >= bound).nonzero()[0] + folded))
    values = row[ids]
    if penalised.size:
        nearest = np.minimum(np.searchsorted(penalised, ids), penalised.size - 1)
        untouched = penalised[nearest] != ids
        ids = np.concatenate((ids[untouched], penalised[adjusted >= bound]))
        values = np.concatenate((values[untouched], adjusted[adjusted >= bound]))
        order = np.lexsort((ids, -values))[:k]
    else:
        order = (-values).argsort(kind="stable")[:k]
    return ids[order], values[order].astype(np.float64)


def _best_of_few(row: Floats, k: int, reach: float = math.inf) -> tuple[Ids, Doubles]:
    ids = NONE if reach == math.inf else (row >= _floor(float(row.max()), reach)).nonzero()[0]
    if len(ids) != 1:
        kth = np.partition(row, row.size - k)[row.size - k] if k < row.size else -np.inf
        ids = (row >= kth if kth > -np.inf else row > -np.inf).nonzero()[0]
    return _in_order(row, ids, k)


def _in_order(row: Floats, ids: Ids, k: int) -> tuple[Ids, Doubles]:
    if not ids.size:
        raise _not_a_number()
    values = row[ids]
    order = (-values).argsort(kind="stable")[:k]
    return ids[order], values[order].astype(np.float64)


def _floor(highest: float, reach: float) -> float:
    """Lower bound of the logits within ``reach`` of the highest one, with a margin for single-precision rounding."""
    return highest - reach - 1e-3 - 1e-6 * abs(highest)


def with_penalties(row: Floats, penalised: Ids, adjusted: Floats) -> Floats:
    """Returns a copy of the row with the changed logits; the row itself if none is changed."""
    if not penalised.size:
        return row
    row = row.copy()
    row[penalised] = adjusted
    return row


def cleaned(row: Floats) -> Floats:
    """Replaces NaN by minus infinity; raises ``NotANumberError`` if no logit is finite, or one is infinity."""
    highest = row.max()
    if highest < math.inf and highest > -math.inf:
        return row
    row = np.where(np.isnan(row), np.float32(-np.inf), row)
    if not -math.inf < row.max() < math.inf:
        raise _not_a_number()
    return row


def _not_a_number() -> NotANumberError:
    return NotANumberError(
        "The model's output is not a number.",
        "The model file may be damaged, or its format not work on this device: verify it, or try another quantization.",
    )
