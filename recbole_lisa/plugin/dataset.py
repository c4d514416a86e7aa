"""Training on every position inside RecBole's own pipeline: its loaders ask this data set for rows."""

from __future__ import annotations

import copy

import numpy as np
import torch
from recbole.data.interaction import Interaction

from recbole_lisa.config.fields import field_names
from recbole_lisa.data.dataloader import TrainLoader, gather_inputs
from recbole_lisa.data.dataset import WindowDataset
from recbole_lisa.data.histories import Index
from recbole_lisa.data.split import Part, check_held_out
from recbole_lisa.data.windows import Windows, preceding

Chosen = int | slice | list[int] | Index
_STOCK_STREAM = 3


class AllPositionsDataset(WindowDataset):
    """A `WindowDataset` for RecBole's `data_preparation`, loaders and `Trainer`.

    A row of the training part is a window, with a target and its negatives at every position; a row of another
    part is one held-out item behind the end of its history, as RecBole has it. Rows are cut when a batch asks for
    them, so the memory does not grow with `MAX_ITEM_LIST_LENGTH` as that of RecBole's data set does.

    Differences from the loaders of this package: batches are mixed of all lengths; RecBole's sampled evaluation
    (`uniN`) draws its negatives anew each time, and not against the whole history; with
    `train_neg_sample_args.sample_num` R > 1 RecBole repeats every row R times, which costs time and changes nothing.

    Args:
        config: RecBole's configuration; `MAX_ITEM_LIST_LENGTH` is the longest window.

    Raises:
        UsageError: Something in the configuration or in the files is wrong.
    """

    def build(self) -> list[WindowDataset]:
        """Split by `eval_args`; see `WindowDataset.build`, and `check_held_out` for a part without items."""
        train, valid, test = super().build()
        check_held_out(self.config["eval_args"], self.config["eval_step"], self.histories.lengths)
        return [_TrainRows.of(train), _HeldOutRows.of(valid), _HeldOutRows.of(test)]

    def __getitem__(self, index: Chosen) -> Interaction:
        """Rows of all phases together: RecBole's `run_recbole` counts operations with one."""
        if "histories" not in vars(self):  # with loaders from a file nobody has called build
            self.build()
        every = copy.copy(self)
        lengths = self.histories.lengths
        every.part = Part(np.ones_like(lengths), np.maximum(lengths - 1, 0))
        return _HeldOutRows.of(every)[index]


class _Rows(AllPositionsDataset):
    """One part as a list of rows: what RecBole's loaders use of a data set."""

    windows: Windows

    @classmethod
    def of(cls, part: WindowDataset) -> _Rows:
        """View a part; nothing is copied."""
        view = cls.__new__(cls)
        view.__dict__.update(part.__dict__)
        view.windows = view._cut()
        store, windows = view.histories, view.windows
        view.inter_feat = Interaction(
            {
                view.uid_field: torch.from_numpy(store.users[windows.history]),
                view.iid_field: torch.from_numpy(store.items[windows.end].astype(np.int64)),
            }
        )
        return view

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.windows)

    def __getitem__(self, index: Chosen) -> Interaction:
        """The rows of a batch."""
        chosen = np.atleast_1d(np.arange(len(self))[index])
        columns, _, _ = gather_inputs(self.histories, self.windows, field_names(self.config), chosen)
        return Interaction({**columns, self.iid_field: self.inter_feat[self.iid_field][chosen]})

    def _cut(self) -> Windows:
        raise NotImplementedError


class _TrainRows(_Rows):
    """Windows with a target at every position."""

    def __getitem__(self, index: Chosen) -> Interaction:
        chosen = np.atleast_1d(np.arange(len(self))[index])
        batch = self._loader.batch(chosen, self._rng)
        # RecBole draws a negative for this column; the model reads those of every position.
        batch.update(Interaction({self.iid_field: self.inter_feat[self.iid_field][chosen]}))
        return batch

    def _cut(self) -> Windows:
        self._loader = TrainLoader(self.config, self)
        self._rng = np.random.default_rng([_STOCK_STREAM, self.config["seed"]])
        return self._loader.windows


class _HeldOutRows(_Rows):
    """Held-out items, each behind its history, padded to the longest window: RecBole joins rows of a batch."""

    def __getitem__(self, index: Chosen) -> Interaction:
        rows = super().__getitem__(index)
        fields, longest = field_names(self.config), self.config["MAX_ITEM_LIST_LENGTH"]
        for name in (fields.item_list, fields.time_gap_list):
            column = rows[name]
            rows.interaction[name] = torch.nn.functional.pad(column, (0, longest - column.shape[1]))
        return rows

    def sort(self, by: str, ascending: bool = True) -> None:
        """RecBole's sampled evaluation wants rows by user, ascending, which they are."""

    def _cut(self) -> Windows:
        offsets = self.histories.offsets
        return preceding(offsets[:-1], *self.part.targets(offsets), self.config["MAX_ITEM_LIST_LENGTH"])
