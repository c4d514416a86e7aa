"""Batches for training and evaluation, gathered from the flat store one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from logging import getLogger
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from recbole.config import Config
from recbole.data.interaction import Interaction

from recbole_lisa.config.fields import FieldNames
from recbole_lisa.config.registry import has_loss_of_recbole
from recbole_lisa.data.dataset import WindowDataset
from recbole_lisa.data.histories import Histories, Index, Items, runs
from recbole_lisa.data.sampler import TrainingNegatives, evaluation_negatives, item_weights
from recbole_lisa.data.windows import WINDOWS, Windows, batch_starts, preceding, prefixes, width_groups
from recbole_lisa.errors import UsageError, did_you_mean

Inputs = tuple[dict[str, torch.Tensor], Index, npt.NDArray[np.bool_]]
"""Columns of a batch by name, the rows (N, L) of its inputs and the valid mask (N, L)."""

SUPERVISIONS = ("all_positions", "last_position")
_TRAIN_STREAM, _EVAL_STREAM, _OFFSET_STREAM = 1, 2, 3
_LENGTH_GROUPS = 16
_MAX_SCORES, _MAX_CANDIDATES = 2**25, 2**27


def create_loaders(config: Config, dataset: WindowDataset) -> tuple[TrainLoader, EvalLoader | None, EvalLoader | None]:
    """Split a data set by `eval_args` and make the loaders of its phases, None for a phase without targets.

    A UsageError says what is wrong in the configuration or in the data.
    """
    train, valid, test = dataset.build()
    return (
        TrainLoader(config, train),
        EvalLoader(config, valid, "valid") if valid.part.count.any() else None,
        EvalLoader(config, test, "test") if test.part.count.any() else None,
    )


class _Loader:
    """What both loaders share: the store, the field names, and gathering the inputs of a batch."""

    def __init__(self, config: Config, dataset: WindowDataset, windows: Windows, batch_size: int) -> None:
        self.config = config
        self.dataset = self._dataset = dataset
        self.windows = windows
        self.batch_size = batch_size
        self.fields = FieldNames(config)
        # RecBole's own models, which train on last positions, count on as many columns as in RecBole.
        padded = config["supervision"] == "last_position" and has_loss_of_recbole(config.model_class)
        self.width: int = config["MAX_ITEM_LIST_LENGTH"] if padded else 0
        self._starts: Index | None = None  # of the batches, where they hold a number of items
        if config["windows"] == "whole" and len(windows):
            by_length = np.sort(windows.length)
            self._starts = batch_starts(by_length, batch_size * config["MAX_ITEM_LIST_LENGTH"])

    def __len__(self) -> int:
        """Number of batches."""
        return -(-len(self.windows) // self.batch_size) if self._starts is None else len(self._starts)

    def _inputs(self, chosen: Index) -> Inputs:
        return gather_inputs(self.dataset.histories, self.windows, self.fields, chosen, self.width)


def gather_inputs(store: Histories, windows: Windows, fields: FieldNames, chosen: Index, width: int = 0) -> Inputs:
    """Columns that training and evaluation share, of the windows `chosen` (N,), with at least `width` positions."""
    rows, valid = windows.rows(chosen, width)
    columns = {
        fields.user: store.users[windows.history[chosen]],
        fields.item_list: store.items[rows] * valid.astype(np.int64),
        fields.item_length: windows.length[chosen].astype(np.int64),
        fields.time_gap_list: store.gaps[rows] * valid,
    }
    if store.times is not None:
        columns |= {fields.query_gap_list: store.gaps[rows + 1] * valid}
        columns |= {fields.query_time_list: store.times[rows + 1] * valid}
    return {name: torch.from_numpy(column) for name, column in columns.items()}, rows, valid


class TrainLoader(_Loader):
    """Training batches of windows of similar length, in an order that depends on (seed, epoch) only.

    With `supervision: all_positions` an Interaction holds, for N windows padded to the longest of them (L):
    user_id (N,), item_id_list (N, L), item_length (N,), target_id_list (N, L), neg_target_id_list (N, L, R) and
    time_gap_list (N, L) in seconds. With `last_position` the targets are item_id (N,) and the negatives
    neg_item_id (N, R). With `shared_negatives` the negatives are neg_item_id (N, K), all rows equal. Without
    `train_neg_sample_args` (loss CE) there are no negatives. A target that another window trains is 0, as in padding.
    Names follow the configuration (`fields.py`); ids are int64, gaps float32; padding is 0, on the right.

    With `windows: whole` a window is a history of any length, and N L is at most train_batch_size times
    MAX_ITEM_LIST_LENGTH where N > 1. `dataset` is the training view of a data set.

    Raises:
        UsageError: The supervision is unknown, or no history has two training items.
    """

    def __init__(self, config: Config, dataset: WindowDataset) -> None:
        supervision = config["supervision"] or "all_positions"
        if supervision not in SUPERVISIONS:
            known = " or ".join(SUPERVISIONS)
            hint = did_you_mean(str(supervision), SUPERVISIONS)
            raise UsageError(f"supervision must be {known}, got {supervision!r}.{hint}")
        lengths, longest = dataset.part.count + 1, config["MAX_ITEM_LIST_LENGTH"]
        self.every_position = supervision == "all_positions"
        self._kind: str = config["windows"] or "disjoint"
        self._histories = dataset.histories.offsets[:-1], lengths, longest
        windows = self._cut(config["seed"], 0) if self.every_position else prefixes(*self._histories)
        super().__init__(config, dataset, windows, config["train_batch_size"])
        self._n_shared: int = config["shared_negatives"] or 0
        self.shuffle = config["shuffle"] is not False
        self.epoch = 0
        self.skipped_users = int((lengths < 2).sum())
        self._group_width = max(1, longest // _LENGTH_GROUPS)
        sampling, self._negatives = config["train_neg_sample_args"], None
        if sampling["distribution"] != "none":
            weights = item_weights(dataset.item_counts, sampling["distribution"], sampling["alpha"])
            if "TS" in config["eval_args"]["split"]:  # training does not know the items of the future
                weights *= dataset.item_counts > 0
            self._negatives = TrainingNegatives(weights, sampling["sample_num"])
        getLogger().info(
            f"training: {len(windows)} windows of at most {windows.length.max(initial=0)} items ({supervision}), "
            f"{self.skipped_users} users skipped (fewer than 2 training items)"
        )
        if not len(windows):
            raise UsageError(
                f"nothing to train on: the training part of a history has at most {int(lengths.max(initial=0))} "
                "interactions, and 2 are needed: loosen the filters or take another split in eval_args"
            )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch (from 0) whose batches the next iteration gives."""
        self.epoch = epoch
        if self._kind == "random_offset" and self.every_position:
            self.windows = self._cut(self.config["seed"], epoch)

    def _cut(self, seed: int, epoch: int) -> Windows:
        return WINDOWS[self._kind](*self._histories, np.random.default_rng([_OFFSET_STREAM, seed, epoch]))

    def __iter__(self) -> Iterator[Interaction]:
        """The batches of the chosen epoch; the same ones at every call."""
        rng = np.random.default_rng([_TRAIN_STREAM, self.config["seed"], self.epoch])
        for chosen in self._batches(rng):
            yield self.batch(chosen, rng)

    def _batches(self, rng: np.random.Generator) -> list[Index]:
        """Window indices batch by batch: shuffled, then grouped by length, then the batches shuffled."""
        total = len(self.windows)
        order = rng.permutation(total) if self.shuffle else np.arange(total)
        starts: Index = np.arange(0, total, self.batch_size)
        if self._starts is not None:
            order = order[np.argsort(width_groups(self.windows.length)[order], kind="stable")]
            starts = self._starts
        elif self.shuffle:
            order = order[np.argsort(self.windows.length[order] // self._group_width, kind="stable")]
            sizes = np.full(len(self), self.batch_size)
            # The one smaller batch is not always that of the longest windows.
            sizes[rng.integers(len(sizes))] -= len(sizes) * self.batch_size - total
            starts = np.cumsum(sizes) - sizes
        batches = np.split(order, starts[1:])
        return [batches[number] for number in rng.permutation(len(batches))] if self.shuffle else batches

    def sample(self, most: int) -> Interaction:
        """The input columns of at most so many windows, spread evenly, the same ones at every call."""
        step = -(-len(self.windows) // most)
        return Interaction(self._inputs(np.arange(0, len(self.windows), step))[0])

    def shortest_batch(self) -> Interaction:
        """Two of the shortest windows, the same ones at every call."""
        return self.batch(np.argsort(self.windows.length, kind="stable")[:2], np.random.default_rng(0))

    def batch(self, chosen: Index, rng: np.random.Generator) -> Interaction:
        """The batch of the windows `chosen` (N,), as described at the class; `rng` draws the negatives."""
        columns, rows, valid = self._inputs(chosen)
        items = self.dataset.histories.items
        if self.every_position:
            # A padded row is row 0, and row 1 exists: every window has an item after it.
            supervised, context = valid, self.windows.context
            if context is not None:
                supervised = valid & (np.arange(valid.shape[1]) >= context[chosen][:, None])
            targets = items[rows + 1] * supervised.astype(np.int64)
            target_name, negative_name = self.fields.target_list, self.fields.negative_list
        else:
            targets = items[self.windows.end[chosen]].astype(np.int64)
            target_name, negative_name = self.fields.item, self.fields.negative
        columns[target_name] = torch.from_numpy(targets)
        if self._negatives is not None and self._n_shared:
            shared = torch.from_numpy(self._negatives.draw_shared(self._n_shared, rng))
            columns[self.fields.negative] = shared.expand(len(chosen), -1)  # equal rows, one in memory
        elif self._negatives is not None:
            columns[negative_name] = torch.from_numpy(self._negatives.draw(targets, rng))
        return Interaction(columns)


@dataclass(frozen=True)
class EvalBatch:
    """Held-out targets with the history before each."""

    interaction: Interaction  # user, number of items, target (N,); items, time gaps (N, L); names as in TrainLoader
    candidates: torch.Tensor | None  # (N, 1 + K) item ids to rank, the target among them; None to rank every item
    positive_column: torch.Tensor | None  # (N,) the target's column in `candidates`; None to rank every item
    # Rows (P,) of the batch and item ids (P,): all items before the target in its whole history, each once and without
    # the target; None where `eval_seen` is `rank` or candidates are ranked.
    seen: tuple[torch.Tensor, torch.Tensor] | None = None
    number: torch.Tensor | None = None  # (N,) numbers of the targets in the phase, history by history, oldest first


class EvalLoader(_Loader):
    """Every held-out target of a phase once, each with the last MAX_ITEM_LIST_LENGTH items before it, or with all.

    Targets come ordered by the length of their input. The target's column among the candidates is drawn, so that
    equal scores favour neither side. Candidates depend on the seed, the phase and the data only. `dataset` is the
    validation or test view of a data set, `phase` is `valid` or `test`, a key of `eval_args.mode`.

    Raises:
        UsageError: A user has too few items that can be negatives.
    """

    def __init__(self, config: Config, dataset: WindowDataset, phase: str) -> None:
        offsets = dataset.histories.offsets
        longest = len(dataset.histories.items) if config["windows"] == "whole" else config["MAX_ITEM_LIST_LENGTH"]
        windows = preceding(offsets[:-1], *dataset.part.targets(offsets), longest)
        distribution, sample_num = _eval_mode(config["eval_args"]["mode"], phase)
        batch_size = config["eval_batch_size"]
        if not sample_num and not hasattr(config.model_class, "item_scorer"):  # it would score all items at once
            batch_size = max(1, min(batch_size, _MAX_SCORES // dataset.item_num))
        super().__init__(config, dataset, windows, batch_size)
        self.eval_seen = config["eval_seen"] or "rank"
        ranked = f"{sample_num or 'all'} items each, eval_seen: {self.eval_seen}"
        getLogger().info(f"{phase}: {len(windows)} targets, ranked among {ranked}")
        self.order = np.argsort(windows.length, kind="stable")
        self.targets = dataset.histories.items[windows.end]
        self.candidates: Items | _LateCandidates | None = None
        if sample_num:
            seed = [_EVAL_STREAM, config["seed"], ("valid", "test").index(phase)]
            rng, many = np.random.default_rng(seed), len(windows) * sample_num > _MAX_CANDIDATES
            weights = item_weights(dataset.item_counts, distribution)
            draw = partial(evaluation_negatives, dataset.histories, weights=weights, sample_num=sample_num)
            negatives = None if many else draw(owners=windows.history, rng=rng)
            self.positive_column = rng.integers(0, sample_num + 1, size=len(windows))
            if negatives is None:
                self.candidates = _LateCandidates(self, draw, seed)
            else:
                self.candidates = _place(negatives, self.targets, self.positive_column)

    @property
    def is_sequential(self) -> bool:
        """Refuse, as a UsageError, the functions of RecBole's case_study, which ask for it first."""
        raise UsageError(
            "the functions of recbole.utils.case_study read RecBole's own loaders, not those of recbole_lisa: export "
            "the model and use recbole_lisa.Recommender for lists, or evaluate with per_user_file for ranks and metrics"
        )

    def __iter__(self) -> Iterator[EvalBatch]:
        """The batches, the same ones at every call."""
        return self.batches(range(len(self)))

    def batches(self, numbers: Iterable[int]) -> Iterator[EvalBatch]:
        """Some of the batches, by their numbers."""
        starts = range(0, len(self.windows), self.batch_size) if self._starts is None else self._starts
        bounds = [*starts, len(self.windows)]
        for number in numbers:
            chosen = self.order[bounds[number] : bounds[number + 1]]
            columns, _, _ = self._inputs(chosen)
            columns[self.fields.item] = torch.from_numpy(self.targets[chosen].astype(np.int64))
            interaction = Interaction(columns)
            targets = torch.from_numpy(chosen)
            if self.candidates is None:
                seen = None if self.eval_seen == "rank" else self._seen(chosen)
                yield EvalBatch(interaction, None, None, seen, targets)
            else:
                candidates = torch.from_numpy(self.candidates[chosen].astype(np.int64))
                yield EvalBatch(interaction, candidates, torch.from_numpy(self.positive_column[chosen]), None, targets)

    def _seen(self, chosen: Index) -> tuple[torch.Tensor, torch.Tensor]:
        """See `EvalBatch.seen`."""
        start = self.dataset.histories.offsets[self.windows.history[chosen]]
        row, at = runs(start, self.windows.end[chosen] - start)
        items = self.dataset.histories.items[at]
        pairs = row.astype(np.int64) * self.dataset.item_num + items
        pairs = np.unique(pairs[items != self.targets[chosen][row]])
        row, items = np.divmod(pairs, self.dataset.item_num)
        return torch.from_numpy(row), torch.from_numpy(items)


@dataclass(frozen=True)
class _LateCandidates:
    """Candidates of each batch, drawn when it is read, where those of all targets take half a gigabyte or more."""

    loader: EvalLoader
    draw: Callable[..., Items]
    seed: list[int]

    def __getitem__(self, chosen: Index) -> Items:
        loader, rng = self.loader, np.random.default_rng([*self.seed, int(chosen[0])])
        negatives = self.draw(owners=loader.windows.history[chosen], rng=rng)
        return _place(negatives, loader.targets[chosen], loader.positive_column[chosen])


def _eval_mode(mode: str | dict[str, Any], phase: str) -> tuple[str, int]:
    """The distribution and number of sampled negatives of a phase; 0 of them means full ranking."""
    name = str(mode[phase] if isinstance(mode, dict) else mode)
    if name == "full":
        return "uniform", 0
    return {"uni": "uniform", "pop": "popularity"}[name[:3]], int(name[3:])


def _place(negatives: Items, targets: Items, column: Index) -> Items:
    """Put each target into its column; the negative that was there moves to the end. (N, K) -> (N, 1 + K)."""
    candidates: Items = np.concatenate([negatives, targets[:, None]], axis=1)
    row = np.arange(len(candidates))
    candidates[row, -1], candidates[row, column] = candidates[row, column], targets
    return candidates
