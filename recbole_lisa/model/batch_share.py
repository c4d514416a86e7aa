"""One process's part of a training batch, and what its loss counts for in that of the batch."""

from recbole.data.interaction import Interaction
from torch import Tensor

from recbole_lisa.config.fields import FieldNames


def every_nth(number: int, size: int, total: int) -> tuple[slice, float]:
    """Which of `total` rows process `number` of `size` has, and their share; the first row and 0 where none is left.

    A process without a row computes one all the same: every process then takes part in all that they do together.
    """
    n_own = len(range(number, total, size))
    return (slice(number, None, size), n_own / total) if n_own else (slice(1), 0.0)


def split_batch(batch: Interaction, fields: FieldNames, number: int, size: int) -> tuple[Interaction, float]:
    """Rows of a batch for a model whose loss is a mean over the supervised positions.

    Args:
        batch: N rows, on any device.
        fields: Names of its columns.
        number: Of the process, from 0.
        size: How many processes there are.

    Returns:
        The rows, and their supervised positions as a share of those of the batch. Over the processes the losses of
        the rows, each times its share, add up to the loss of the batch.
    """
    rows, share = every_nth(number, size, len(batch))
    own = batch[rows]
    if share and fields.target_list in batch:
        share = positions_share(own, batch, fields)
    return own, share


def positions_share(own: Interaction, batch: Interaction, fields: FieldNames) -> float:
    """The real positions of some rows as a share of those of the batch."""
    lengths: tuple[Tensor, Tensor] = (own[fields.item_length], batch[fields.item_length])
    return float(lengths[0].sum()) / float(lengths[1].sum())
