"""RecBole's trainer where it is wrong or silent: resumable runs, checked losses, one-pass evaluation.

What people read (log lines, error messages, curves) counts epochs from 1. What programs share with RecBole
(`checkpoint["epoch"]`, `callback_fn`, TensorBoard steps) counts from 0 as RecBole does. Losses are means over
the batches of an epoch.
"""

import math
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from recbole.config import Config
from recbole.trainer import Trainer
from recbole.utils import calculate_valid_score, dict2str, early_stopping, set_color

from recbole_lisa.attention import Attention
from recbole_lisa.config.fields import field_names
from recbole_lisa.data.dataloader import EvalLoader
from recbole_lisa.distributed.processes import is_first, rank, sum_in_place, wait_for_all
from recbole_lisa.errors import UsageError
from recbole_lisa.files import unique_run_name
from recbole_lisa.training import evaluation
from recbole_lisa.training.checkpoint import check_checkpoint_dir, last_file, save_checkpoint
from recbole_lisa.training.codebook_usage import watch_codebooks
from recbole_lisa.training.progress import progress_bar
from recbole_lisa.training.reporting import first_one_reports
from recbole_lisa.training.resume import adopt_data, fingerprint_of, restore_run, restore_weights, run_state
from recbole_lisa.training.step import OptimizerStep, amp_of


class LISATrainer(Trainer):
    """Trains, validates, stops early, saves and continues one run.

    Several processes (`processes.py`) run the same trainer on the same loaders and share every batch; the first one
    saves and reports.

    Args:
        config: The configuration of the run.
        model: The model, already on `config["device"]`.
        run_name: Stem of the checkpoint files; None makes a new unique one.
        data_fingerprint: `WindowDataset.data_fingerprint`; None takes that of the first training data.

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
        """Build the optimizer and name the files; see the class."""
        if not config["single_spec"]:
            raise UsageError(
                f"nproc={config['nproc']}: RecBole's way to several processes is not supported; run recbole-lisa "
                f"--nproc={config['nproc']} instead"
            )
        check_checkpoint_dir(config["checkpoint_dir"])
        with first_one_reports(config):
            super().__init__(config, model)
        self.data_fingerprint = data_fingerprint
        run_name = run_name or unique_run_name(config["model"], config["dataset"])
        self.saved_model_file = str(Path(self.checkpoint_dir) / f"{run_name}.pth")
        self.best_valid_score = -math.inf if self.valid_metric_bigger else math.inf
        self.best_epoch: int | None = None
        self.history: list[dict[str, Any]] = []
        self.curve: list[dict[str, float]] = []
        self.n_sequences = 0
        self.step = OptimizerStep(
            model,
            self.optimizer,
            device=self.device,
            amp=amp_of(config),
            clip_grad_norm=self.clip_grad_norm,
            fields=field_names(config),
        )

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
        """Train until `epochs` or early stopping. Without validation the last epoch is the result.

        Args:
            train_data: Loader of training batches.
            valid_data: Loader of the validation phase, or None.
            verbose: Write losses and metrics to the log.
            saved: Write checkpoints.
            show_progress: Show bars on a terminal.
            callback_fn: Called after each validation with (epoch from 0, valid score); may raise to stop.
            test_data: Loader of the test phase, for the curve every `test_step` epochs: it chooses nothing.

        Returns:
            Best validation score and metrics; (-inf or inf, None) without validation.

        Raises:
            TrainingDivergedError: A loss is NaN or infinite.
            UsageError: The run began on another data set.
        """
        adopt_data(self, train_data)
        for module in self.model.modules():
            if isinstance(module, Attention):
                module.sum_over_processes = sum_in_place
        # Importing RecBole's sequential models switches anomaly detection on for the whole process (its SINE does).
        with torch.autograd.set_detect_anomaly(bool(self.config["detect_anomaly"])):
            self._fit(train_data, valid_data, verbose, saved, show_progress, callback_fn, test_data)
        return self.best_valid_score, self.best_valid_result

    def _fit(
        self,
        train_data: Any,
        valid_data: Any,
        verbose: bool,
        saved: bool,
        show_progress: bool,
        callback_fn: Callable[[int, float], None] | None,
        test_data: EvalLoader | None,
    ) -> None:
        """The epochs of fit."""
        self.eval_collector.data_collect(train_data)
        validates = bool(valid_data) and self.eval_step > 0
        log = self.logger.info if verbose else self.logger.debug
        for epoch in range(self.start_epoch, self.epochs):
            if validates and self.cur_step > self.stopping_step:
                break
            log(self._train_and_record(train_data, epoch, show_progress))
            for line in watch_codebooks(self, train_data, epoch):
                log(line)
            score = None
            if validates and (epoch + 1) % self.eval_step == 0:
                score, message = self._validate_and_record(valid_data, epoch, show_progress)
                log(message)
            if test_data and self.config["test_step"] and (epoch + 1) % self.config["test_step"] == 0:
                log(self._add_to_curve(test_data, epoch, show_progress))
            if saved:
                self._save_epoch(epoch, verbose)
            if callback_fn and score is not None:
                callback_fn(epoch, score)
        self._finish(saved)

    def evaluate(
        self,
        eval_data: Any,
        load_best_model: bool = True,
        model_file: str | None = None,
        show_progress: bool = False,
    ) -> dict[str, float] | None:
        """Ranking metrics of the model on a loader; RecBole's own loaders take RecBole's path.

        Args:
            eval_data: An `EvalLoader`, a RecBole evaluation loader, or None.
            load_best_model: First load `model_file`, or the best file of this run.
            model_file: A checkpoint of this package.
            show_progress: Show a bar on a terminal.

        Returns:
            Metric name to value, or None when there is no data.

        Raises:
            UsageError: See `recbole_lisa.training.resume.restore_weights`.
        """
        if not eval_data:
            return None
        if load_best_model:
            wait_for_all()  # the first process has written the file then
            restore_weights(self, model_file or self.saved_model_file, fingerprint_of(eval_data))
        if not isinstance(eval_data, EvalLoader):
            return super().evaluate(eval_data, load_best_model=False, show_progress=show_progress)
        metrics = evaluation.evaluate(self.model, eval_data, self.config, show_progress=show_progress)
        self.wandblogger.log_eval_metrics(metrics, head="eval")
        return metrics

    def resume_checkpoint(self, resume_file: str | os.PathLike[str]) -> None:
        """Continue the run of `resume_file` under its old file names, as if it had not been interrupted.

        Args:
            resume_file: See `recbole_lisa.training.resume.restore_run`.
        """
        restore_run(self, resume_file)
        self.logger.info(f"Resuming {resume_file} after epoch {self.start_epoch}")

    def _build_optimizer(self, **kwargs: Any) -> torch.optim.Optimizer:
        """RecBole's optimizer with the betas of the configuration."""
        optimizer = super()._build_optimizer(**kwargs)
        for group in optimizer.param_groups:
            if "betas" in group and self.config["adam_betas"]:
                group["betas"] = tuple(float(beta) for beta in self.config["adam_betas"])
        return optimizer

    def _train_epoch(
        self,
        train_data: Any,
        epoch_idx: int,
        loss_func: Callable[[Any], Any] | None = None,
        show_progress: bool = False,
    ) -> float | tuple[float, ...]:
        """One pass over the training batches.

        Args:
            train_data: Loader of training batches; its order depends on (seed, epoch) only.
            epoch_idx: Epoch, from 0.
            loss_func: Replaces `model.calculate_loss`.
            show_progress: Show a bar on a terminal.

        Returns:
            Mean loss over the batches; a tuple of means when the loss has parts.

        Raises:
            TrainingDivergedError: A loss is NaN or infinite.
            UsageError: There is no training batch.
        """
        self.model.train()
        self._draw_apart(epoch_idx)
        if hasattr(train_data, "set_epoch"):
            train_data.set_epoch(epoch_idx)
        totals: list[float] = []
        n_batches = 0
        for interaction in progress_bar(train_data, len(train_data), f"Train {epoch_idx + 1:>5}", show_progress):
            n_batches += 1
            self.n_sequences += len(interaction)
            where = f"epoch {epoch_idx + 1}, batch {n_batches} of {len(train_data)}"
            parts = self.step(interaction, loss_func or self.model.calculate_loss, where)
            totals = [total + part for total, part in zip(totals or [0.0] * len(parts), parts, strict=True)]
        if not n_batches:
            raise UsageError("there is nothing to train on: no user has two training interactions or more")
        means = tuple(total / n_batches for total in totals)
        return means if len(means) > 1 else means[0]

    def _draw_apart(self, epoch: int) -> None:
        """Let every process but the first draw dropout of its own, by (seed, epoch, process) alone."""
        if not is_first():
            words = np.random.SeedSequence([self.config["seed"], epoch, rank()]).generate_state(2)
            torch.manual_seed(int(words[0]) << 31 | int(words[1]) >> 1)

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
        report = {"epoch": epoch, "train_loss": losses, "train_step": epoch}
        self.wandblogger.log_metrics(report, head="train")
        return self._generate_train_loss_output(epoch + 1, 0.0, seconds, losses)

    def _validate_and_record(self, valid_data: Any, epoch: int, show_progress: bool) -> tuple[float, str]:
        """Validate after `epoch` and move the early stopping; the score and the log message."""
        started = perf_counter()
        metrics = self.evaluate(valid_data, load_best_model=False, show_progress=show_progress)
        score = calculate_valid_score(metrics, self.valid_metric)
        self.best_valid_score, self.cur_step, stopped, improved = early_stopping(
            score, self.best_valid_score, self.cur_step, self.stopping_step, self.valid_metric_bigger
        )
        if improved:
            self.best_epoch, self.best_valid_result = epoch, metrics
        self.history[-1]["valid"] = metrics
        # RecBole's spelling of the tag, so that its curves and ours share one plot.
        self.tensorboard.add_scalar("Vaild_score", score, epoch)
        self.wandblogger.log_metrics({**metrics, "valid_step": epoch}, head="valid")
        seconds = perf_counter() - started
        message = set_color(f"epoch {epoch + 1} evaluating", "green")
        message += f" [time: {seconds:.2f}s, valid_score: {score:f}]\n{dict2str(metrics)}"
        if stopped:
            message += f"\nFinished training, best eval result in epoch {self.best_epoch + 1}"
        return score, message

    def _add_to_curve(self, test_data: EvalLoader, epoch: int, show_progress: bool) -> str:
        """Evaluate the test set after `epoch`, for the record only; the log message."""
        metrics = self.evaluate(test_data, load_best_model=False, show_progress=show_progress)
        self.curve.append({"epoch": epoch + 1, **metrics})
        for name, value in metrics.items():
            self.tensorboard.add_scalar(f"Test/{name}", value, epoch)
        return f"epoch {epoch + 1} on the test set, for the curve only: {dict2str(metrics)}"

    def _save_epoch(self, epoch: int, verbose: bool) -> None:
        if self.best_epoch == epoch:
            self._save_checkpoint(epoch, verbose=verbose)
        self._save_checkpoint(epoch, verbose=False, saved_model_file=last_file(self.saved_model_file))

    def _save_checkpoint(self, epoch: int, verbose: bool = True, **kwargs: Any) -> None:
        """Write the complete state after `epoch` (from 0; -1 is before the first) to `saved_model_file`."""
        if not is_first():
            return
        path = kwargs.pop("saved_model_file", self.saved_model_file)
        save_checkpoint(run_state(self, epoch), path)
        if verbose:
            self.logger.info(set_color("Saving current", "blue") + f": {path}")

    def _finish(self, saved: bool) -> None:
        """Without a validated epoch the newest state is the best one; close the TensorBoard file."""
        if saved and self.best_epoch is None:
            self._save_checkpoint(len(self.history) - 1, verbose=False)
        if self.best_epoch is not None:
            self._add_hparam_to_tensorboard(self.best_valid_score)
        self.tensorboard.close()
