"""RecBole's trainer with resumable runs, checked losses and one-pass evaluation.

What people read (log lines, error messages, curves) counts epochs from 1. What programs share with RecBole
(`checkpoint["epoch"]`, `callback_fn`, TensorBoard steps) counts from 0 as RecBole does. Losses are means over
the batches of an epoch.
"""

import io
import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from recbole.config import Config
from recbole.trainer import Trainer
from recbole.utils import calculate_valid_score, early_stopping, set_color
from torch.optim import Adam, AdamW

from recbole_lisa.attention import Attention
from recbole_lisa.config.fields import FieldNames
from recbole_lisa.data.dataloader import EvalLoader
from recbole_lisa.distributed.processes import from_first, is_first, rank, sum_in_place
from recbole_lisa.errors import UsageError
from recbole_lisa.files import check_output, locked, unique_run_name
from recbole_lisa.progress import progress_bar
from recbole_lisa.training import evaluation
from recbole_lisa.training.checkpoint import Checkpoint, check_contents
from recbole_lisa.training.checkpoint_file import Saver, last_file
from recbole_lisa.training.codebook_usage import watch_codebooks
from recbole_lisa.training.logging import curves_of_first_process, metric_rows, metric_text, training_line
from recbole_lisa.training.resuming import fingerprint_of
from recbole_lisa.training.schedule import LearningRate, WeightAverage
from recbole_lisa.training.step import LossFunction, OptimizerStep, RowAdam, amp_of


class LISATrainer(Trainer):  # type: ignore[misc]  # RecBole has no annotations
    """Trains, validates, stops early, saves and continues one run; several processes share it (`step.py`).

    The model is on `config["device"]`. `run_name` is the stem of the checkpoint files, by default a unique one;
    `data_fingerprint` that of the `WindowDataset`, by default of the first training data.

    Raises:
        UsageError: RecBole's configuration of several processes, or a `checkpoint_dir` that cannot hold checkpoints.
    """

    def __init__(
        self,
        config: Config,
        model: torch.nn.Module,
        *,
        run_name: str | None = None,
        data_fingerprint: str | None = None,
    ) -> None:
        if not config["single_spec"]:
            n = config["nproc"]
            raise UsageError(f"nproc={n}: RecBole's processes are not supported; run recbole-lisa --nproc={n} instead")
        check_output(config["checkpoint_dir"] or "", overwrite=True, folder=True)
        with curves_of_first_process(config):
            super().__init__(config, model)
        self.data_fingerprint = data_fingerprint
        self.item_ids: torch.Tensor | None = None
        self.latest_time: float | None = None
        run_name = run_name or unique_run_name(config["model"], config["dataset"])
        self.saved_model_file = str(Path(self.checkpoint_dir) / f"{run_name}.pth")
        self.worst_score = -math.inf if self.valid_metric_bigger else math.inf
        self.best_valid_score = self.worst_score
        self.best_valid_result: dict[str, float] | None = None
        self.saver = Saver()
        self.best_epoch: int | None = None
        self.cur_step: int = 0
        self.history: list[dict[str, Any]] = []
        self.curve: list[dict[str, float]] = []
        self.n_sequences = 0
        self.tied_targets = 0.0  # of the last evaluation, see `evaluation.Evaluation`
        self.collected: dict[str, Any] = {}
        self.step = OptimizerStep(
            model,
            self.optimizer,
            device=self.device,
            amp=amp_of(config),
            clip_grad_norm=self.clip_grad_norm,
            fields=FieldNames(config),
        )
        warmup, decay = config["learning_rate_warmup"] or 0, config["learning_rate_decay"] or "none"
        scheduled = warmup > 0 or decay != "none"
        self.schedule = LearningRate(self.optimizer, warmup=warmup, decay=decay) if scheduled else None
        self.average = WeightAverage(model, config["ema_decay"]) if config["ema_decay"] else None
        for module in model.modules():
            if isinstance(module, Attention):
                module.sum_over_processes = sum_in_place

    def fit(
        self,
        train_data: Any,
        valid_data: Any = None,
        verbose: bool = True,
        saved: bool = True,
        show_progress: bool = False,
        callback_fn: Callable[[int, float], None] | None = None,
        test_data: EvalLoader | None = None,
    ) -> tuple[float, dict[str, float] | None]:
        """Train until `epochs` or early stopping; best validation score and metrics, (-inf or inf, None) without.

        Without `valid_data` the last epoch is the result. `verbose` writes losses and metrics to the log, `saved` the
        checkpoints: one that cannot be written stops nothing, `saver.check()` raises its error. `callback_fn` is called
        after each validation with (epoch from 0, valid score); it may raise to stop. `test_data` is for the curve every
        `test_step` epochs: it chooses nothing.

        Raises:
            TrainingDivergedError: A loss is NaN or infinite.
            UsageError: The run began on another data set, another process is training it, or the model holds what a
                checkpoint cannot.
        """
        Checkpoint(self).adopt_data(train_data)
        self.eval_collector.data_collect(train_data)
        log = self.logger.info if verbose else self.logger.debug
        for part in [part for part in (self.schedule, self.average) if part is not None]:
            part.set_steps(self.epochs * len(train_data), log)
        valid_data = valid_data if valid_data and self.eval_step > 0 else None
        # Importing RecBole's sequential models switches anomaly detection on for the process (its SINE does).
        anomaly = torch.autograd.set_detect_anomaly(bool(self.config["detect_anomaly"]))
        if self.start_epoch >= self.epochs:
            log(f"no epoch is left to train (epochs: {self.epochs})")
        with anomaly, self._files_of_the_run() if saved else nullcontext():
            for epoch in range(self.start_epoch, self.epochs):
                if valid_data and self.cur_step > self.stopping_step:
                    break
                log(self._train_and_record(train_data, epoch, show_progress))
                for line in watch_codebooks(self, train_data, epoch):
                    log(line)
                score = self._evaluate_epoch(valid_data, test_data, epoch, show_progress, log)
                if saved:
                    self._save_epoch(epoch, verbose)
                if callback_fn and score is not None:
                    self.saver.check()  # a callback needs the files
                    callback_fn(epoch, score)
            if saved:
                self._save_newest_without_best()
        if self.best_epoch is not None:
            self._add_hparam_to_tensorboard(self.best_valid_score)
        self.tensorboard.close()
        return self.best_valid_score, self.best_valid_result

    def evaluate(
        self, eval_data: Any, load_best_model: bool = True, model_file: str | None = None, show_progress: bool = False
    ) -> dict[str, float] | None:
        """Metric name to value on a loader, or None without a loader; RecBole's own loaders take RecBole's path.

        With `load_best_model` the parameters come from `model_file`, or from the best file of this run.
        """
        if not eval_data:
            return None
        if load_best_model:
            unsaved = from_first(self.saver.best)  # the first process has written the file then
            if unsaved is not None and model_file is None:
                Checkpoint(self).load_model(torch.load(io.BytesIO(unsaved), map_location="cpu", weights_only=True))
            else:
                Checkpoint(self).load_weights(model_file or self.saved_model_file, fingerprint_of(eval_data))
        if not isinstance(eval_data, EvalLoader):
            metrics: dict[str, float] = super().evaluate(eval_data, load_best_model=False, show_progress=show_progress)
            return metrics
        with nullcontext() if load_best_model else self._averaged():
            metrics, self.tied_targets, self.collected = evaluation.evaluate_targets(
                self.model, eval_data, self.config, show_progress=show_progress
            )
        self.wandblogger.log_eval_metrics(metrics, head="eval")
        return metrics

    def resume_checkpoint(self, resume_file: str | os.PathLike[str]) -> None:
        """See `Checkpoint.resume`."""
        Checkpoint(self).resume(resume_file)

    def _build_optimizer(self, **kwargs: Any) -> torch.optim.Optimizer:
        """RecBole's optimizer with the betas of the configuration, Adam in one pass; or RowAdam."""
        optimizer: torch.optim.Optimizer = super()._build_optimizer(**kwargs)
        if self.config["sparse_item_updates"]:
            optimizer = RowAdam(self.model.parameters(), lr=self.learning_rate)
            if isinstance(table := getattr(self.model, "item_embedding", None), torch.nn.Embedding):
                table.sparse = True
        for group in optimizer.param_groups:
            if "betas" in group and self.config["adam_betas"]:
                group["betas"] = tuple(float(beta) for beta in self.config["adam_betas"])
            # torch takes seven passes over the parameters by default, on a GPU many kernels.
            if isinstance(optimizer, Adam | AdamW) and self.device.type in ("cpu", "cuda"):
                group["fused"] = all(p.is_floating_point() for p in group["params"])
        return optimizer

    def _train_epoch(
        self, train_data: Any, epoch_idx: int, loss_func: LossFunction | None = None, show_progress: bool = False
    ) -> float | tuple[float, ...]:
        """One pass over the training batches, epochs from 0: the mean loss, or a tuple of the means of its parts."""
        self.model.train()
        if not is_first():  # every process draws its own dropout, by (seed, epoch, rank) alone
            high, low = np.random.SeedSequence([self.config["seed"], epoch_idx, rank()]).generate_state(2)
            torch.manual_seed(int(high) << 31 | int(low) >> 1)
        if hasattr(train_data, "set_epoch"):
            train_data.set_epoch(epoch_idx)
        totals: list[float] = []
        n_batches = 0
        name = f"Train {epoch_idx + 1:>5}"
        for batch in progress_bar(train_data, name, total=len(train_data), show_progress=show_progress, keep=True):
            n_batches += 1
            self.n_sequences += len(batch)
            where = f"epoch {epoch_idx + 1}, batch {n_batches} of {len(train_data)}"
            parts = self.step(batch, loss_func or self.model.calculate_loss, where, is_first=epoch_idx + n_batches == 1)
            if self.schedule is not None:
                self.schedule.step()
            if self.average is not None:
                self.average.update()
            totals = [total + part for total, part in zip(totals or [0.0] * len(parts), parts, strict=True)]
        if not n_batches:
            raise UsageError("nothing to train on: no user has two training interactions or more")
        self.step.check_parameters(where)
        means = tuple(total / n_batches for total in totals)
        return means if len(means) > 1 else means[0]

    def _train_and_record(self, train_data: Any, epoch: int, show_progress: bool) -> str:
        """Train one epoch; the log message about it."""
        self.n_sequences, started = 0, perf_counter()
        losses = self._train_epoch(train_data, epoch, show_progress=show_progress)
        seconds = perf_counter() - started
        parts = list(losses) if isinstance(losses, tuple) else [losses]
        self.train_loss_dict[epoch] = sum(parts)
        entry = {"epoch": epoch + 1, "loss": sum(parts), "parts": parts, "seconds": seconds}
        self.history.append({**entry, "sequences": self.n_sequences})
        self._add_train_loss_to_tensorboard(epoch, losses)
        self.wandblogger.log_metrics({"epoch": epoch, "train_loss": losses, "train_step": epoch}, head="train")
        names = getattr(self.model, "loss_parts", ())
        return training_line(epoch + 1, seconds, parts, names, self.config["loss_decimal_place"] or 4)

    def _evaluate_epoch(
        self, valid_data: Any, test_data: Any, epoch: int, show_progress: bool, log: Callable[[str], None]
    ) -> float | None:
        """Validate and test in the epochs that have it; the validation score."""
        self._forget_removed_best()
        score = None
        if valid_data and (epoch + 1) % self.eval_step == 0:
            score, message = self._validate_and_record(valid_data, epoch, show_progress)
            log(message)
        if test_data and self.config["test_step"] and (epoch + 1) % self.config["test_step"] == 0:
            metrics = self.evaluate(test_data, load_best_model=False, show_progress=show_progress) or {}
            self.curve.append({"epoch": epoch + 1, **metrics})
            for name, value in metrics.items():
                self.tensorboard.add_scalar(f"Test/{name}", value, epoch)
            log(f"epoch {epoch + 1} on the test set, for the curve only\n{metric_rows(metrics, self.config)}")
        return score

    def _validate_and_record(self, valid_data: Any, epoch: int, show_progress: bool) -> tuple[float, str]:
        """Validate after `epoch` and update early stopping; the score and the log message."""
        started = perf_counter()
        metrics = self.evaluate(valid_data, load_best_model=False, show_progress=show_progress) or {}
        if self.valid_metric not in metrics:  # a metric of the user, whose names are known now
            raise UsageError(f"valid_metric {self.valid_metric} is not reported: choose one of {', '.join(metrics)}")
        score: float = calculate_valid_score(metrics, self.valid_metric)
        if math.isnan(score):
            raise UsageError(f"valid_metric {self.valid_metric} is no number in epoch {epoch + 1}: choose another")
        self.best_valid_score, self.cur_step, stopped, improved = early_stopping(
            score, self.best_valid_score, self.cur_step, self.stopping_step, self.valid_metric_bigger
        )
        if improved:
            self.best_epoch, self.best_valid_result = epoch, metrics
        self.history[-1]["valid"] = metrics
        # RecBole's spelling of the tag, so that its curves and ours share one plot.
        self.tensorboard.add_scalar("Vaild_score", score, epoch)
        self.wandblogger.log_metrics({**metrics, "valid_step": epoch}, head="valid")
        best = "the best so far" if improved else f"best {metric_text(self.best_valid_score, self.config)}"
        figures = f"{perf_counter() - started:.2f} s, {self.valid_metric} {metric_text(score, self.config)}, {best}"
        message = (
            set_color(f"epoch {epoch + 1} evaluating", "green") + f" [{figures}]\n{metric_rows(metrics, self.config)}"
        )
        if stopped and self.best_epoch is not None:
            message += f"\nstopped early, the best epoch is {self.best_epoch + 1}"
        return score, message

    def _files_of_the_run(self) -> AbstractContextManager[None]:
        """Check that checkpoints of the model can be read again; inside, no other process writes those of the run."""
        check_contents(self.model)
        path = Path(self.saved_model_file)
        refusal = f"another process is training the run of '{path}': wait for its end, or leave resume out"
        return locked(path.with_suffix(".lock"), refusal) if is_first() else nullcontext()

    def _save_epoch(self, epoch: int, verbose: bool) -> None:
        if self.best_epoch == epoch:
            self._save_checkpoint(epoch, verbose=verbose)
        self._save_checkpoint(epoch, verbose=False, saved_model_file=last_file(self.saved_model_file))

    def _save_newest_without_best(self) -> None:
        """Without a validated epoch the newest state is the best one."""
        self._forget_removed_best()
        if self.best_epoch is None:
            self._save_checkpoint(len(self.history) - 1, verbose=False)

    def _forget_removed_best(self) -> None:
        """Go on without the best epoch where its file was removed: the best of the later ones takes its place."""
        path = self.saved_model_file
        if from_first(self.best_epoch is not None and self.saver.is_removed(path)):
            self.logger.warning(f"'{path}', the best epoch so far, was removed: the best of the later ones replaces it")
            self.best_epoch, self.best_valid_result, self.best_valid_score = None, None, self.worst_score

    def _averaged(self) -> AbstractContextManager[None]:
        """Inside, the model has the averages of its weights, where `ema_decay` keeps them."""
        return nullcontext() if self.average is None else self.average.applied()

    def _save_checkpoint(self, epoch: int, verbose: bool = True, **kwargs: Any) -> None:
        """Write the complete state after `epoch` (from 0; -1 is before the first) to `saved_model_file`."""
        if not is_first():
            return
        path = kwargs.pop("saved_model_file", self.saved_model_file)
        with self._averaged():
            state = Checkpoint(self).state_dict(epoch)
            self.saver.save(state, path, is_best=str(path) == str(self.saved_model_file))
        if verbose and str(path) not in self.saver.unsaved:
            self.logger.info(set_color("Saving current", "blue") + f": {path}")
