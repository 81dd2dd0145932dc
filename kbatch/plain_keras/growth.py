"""The sizes of batches that grow within a training."""

from kbatch.rules.batch_schedule import at


def growing_sizes(kind, factor, last, multiple, examples):
    """Return the size of each batch of a training, which together hold all its examples."""
    sizes, before = [], 0
    while before < examples:
        sizes.append(at(kind, before / examples, last, factor, multiple))
        before += sizes[-1]
    return sizes
