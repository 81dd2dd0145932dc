"""Gradient noise scale: the batch size above which more examples save few updates."""

from __future__ import annotations

from dataclasses import dataclass

# About a hundred updates. Chosen by hand, not tuned.
DECAY = 0.99


@dataclass(frozen=True)
class NoiseEstimate:
    """What one update says of the gradient and of its noise."""

    # Of the true gradient, `|G|^2`. It has no bias, so it falls below 0 where noise hides the
    # gradient.
    squared_norm: float
    trace: float  # of the covariance of single examples' gradients


def estimate(
    pass_squared_norm: float, batch_squared_norm: float, examples_per_pass: float, passes: int
) -> NoiseEstimate:
    """Return the estimate of one update whose gradient was accumulated over equal passes.

    The squared norm of a mean gradient over `n` examples is `|G|^2 + trace / n` on average. Two
    sizes give two equations (McCandlish et al. 2018, appendix A.1): `pass_squared_norm` is the mean
    over the passes of the squared norm of their gradients, `batch_squared_norm` the squared norm of
    the mean of these gradients.

    Example:
    >>> estimate(pass_squared_norm=4 + 80 / 8, batch_squared_norm=4 + 80 / 32,
    ...          examples_per_pass=8, passes=4)
    NoiseEstimate(squared_norm=4.0, trace=80.0)
    """
    examples = passes * examples_per_pass
    noise = pass_squared_norm - batch_squared_norm
    return NoiseEstimate(
        (passes * batch_squared_norm - pass_squared_norm) / (passes - 1),
        noise * examples / (passes - 1),
    )


@dataclass(frozen=True)
class Smoothed:
    """Estimates smoothed over updates: the moving average of each part, with bias correction.

    The averages are divided, since the average of ratios is biased and has no variance.

    Example:
    >>> smoothed = Smoothed().updated(NoiseEstimate(4.0, 80.0)).updated(NoiseEstimate(2.0, 80.0))
    >>> round(smoothed.critical_batch, 1)
    26.7
    """

    decay: float = DECAY  # the weight that an average keeps in each update
    weight: float = 0.0  # the sum of all weights so far, later near 1
    squared_norm: float = 0.0  # the averages without bias correction
    trace: float = 0.0

    def updated(self, new: NoiseEstimate) -> Smoothed:
        """Return the averages after one more update."""
        kept, taken = self.decay, 1 - self.decay
        return Smoothed(
            kept,
            kept * self.weight + taken,
            kept * self.squared_norm + taken * new.squared_norm,
            kept * self.trace + taken * new.trace,
        )

    @property
    def estimate(self) -> NoiseEstimate | None:
        """The averages with bias correction; `None` before the first update."""
        if not self.weight:
            return None
        return NoiseEstimate(self.squared_norm / self.weight, self.trace / self.weight)

    @property
    def critical_batch(self) -> float | None:
        """Float, examples; see `critical_batch`. `None` before the first update."""
        found = self.estimate
        return None if found is None else critical_batch(found)


def critical_batch(found: NoiseEstimate) -> float | None:
    """Return the critical batch size, in examples: the simple noise scale, `trace / |G|^2`.

    At this batch a training takes twice the fewest possible updates, and twice the fewest possible
    examples (McCandlish et al. 2018, sections 2.2 and 2.3). Smaller batches waste time, larger ones
    waste examples. `None` where the gradient cannot be told from its noise.

    Example:
    >>> critical_batch(NoiseEstimate(4.0, 80.0)), critical_batch(NoiseEstimate(-0.1, 80.0))
    (20.0, None)
    """
    if not found.squared_norm > 0:
        return None
    return max(found.trace, 0.0) / found.squared_norm


def gain(batch_size: float, noise_scale: float, reference: float) -> float:
    """Return AdaScale's gain over a reference batch: by how much the learning rate may rise.

    An update of a batch of `n` examples is worth `|G|^2 / (|G|^2 + trace / n)` of a noiseless one.
    The gain is this worth over that of the reference batch (Johnson et al. 2020). It is linear
    in the batch where noise rules, and flat above the noise scale.

    Example:
    >>> gain(320, noise_scale=320, reference=32)
    5.5
    >>> gain(32, 320, 32), gain(320, 0, 32), round(gain(320, 1e9, 32), 3)
    (1.0, 1.0, 10.0)
    """
    return (noise_scale / reference + 1) / (noise_scale / batch_size + 1)
