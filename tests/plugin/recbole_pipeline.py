"""RecBole's own functions with these models in place of its own: a program, so that it runs beside a bare wheel too.

    python recbole_pipeline.py MODEL ...

It works in the folder where it stands, on the data set `tiny` there, and stops at the first figure that differs.
"""

import multiprocessing
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.trainer import Trainer
from recbole.utils import get_model, get_trainer, init_seed

import recbole_lisa
from recbole_lisa.config.registry import model_class
from recbole_lisa.saved import load_data_and_model as our_load

SMALL: dict[str, Any] = {
    **{"data_path": ".", "epochs": 2, "use_gpu": False, "show_progress": False, "state": "ERROR"},
    **{"hidden_size": 16, "inner_size": 16, "MAX_ITEM_LIST_LENGTH": 8, "n_codebooks": 2},
    **{"train_batch_size": 32, "eval_batch_size": 16, "learning_rate": 0.02, "topk": [5], "valid_metric": "NDCG@5"},
    "metrics": ["Hit", "NDCG"],
    "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "group_by": "user", "mode": "full"},
}


def small(model: str | type[Any], dataset: str = "tiny", **settings: Any) -> Config:
    """A configuration of RecBole for a run of seconds."""
    return Config(model=model, dataset=dataset, config_dict={**SMALL, **settings})


def trained(config: Config, dataset: Callable[[Config], Any] = create_dataset) -> tuple[Trainer, tuple[Any, Any, Any]]:
    """The steps that RecBole shows for a run of one's own: the trainer, and the loaders of training and evaluation."""
    init_seed(config["seed"], config["reproducibility"])
    loaders = data_preparation(config, dataset(config))
    init_seed(config["seed"], config["reproducibility"])
    network = config.model_class(config, loaders[0].dataset).to(config["device"])
    trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, network)
    trainer.fit(*loaders[:2], show_progress=False)
    return trainer, loaders


def scores(model: torch.nn.Module, loader: Any) -> torch.Tensor:
    """Scores of all items for every history of a loader."""
    model.eval()
    with torch.no_grad():
        return torch.cat([model.full_sort_predict(batch[0]) for batch in loader])  # type: ignore[operator]


def check_steps(name: str) -> dict[str, float]:
    """By name, by class, and from the file of the run: one and the same result; its metrics."""
    from recbole.quick_start import load_data_and_model  # after register()

    assert get_model(name) is model_class(name)
    trainer, (_, _, test) = trained(small(name))
    assert type(trainer) is Trainer
    assert trainer.train_loss_dict[1] < trainer.train_loss_dict[0]
    metrics = dict(trainer.evaluate(test))
    by_class, (_, _, same) = trained(small(model_class(name)))
    assert by_class.evaluate(same) == metrics, f"{name}: other metrics by class"
    expected = scores(trainer.model, test)
    for load in (load_data_and_model, lambda path: our_load(path, trusted=True)):
        _, network, _, _, _, loader = load(trainer.saved_model_file)
        assert torch.equal(scores(network, loader), expected), f"{name}: other scores after loading"
        assert trainer.evaluate(loader) == metrics
    return metrics


def check(name: str, workers: Any) -> None:
    """Every function of RecBole gives one and the same result."""
    from recbole.quick_start import objective_function, run_recbole  # after register()

    metrics = check_steps(name)
    for given in (name, model_class(name)):
        result = run_recbole(model=given, dataset="tiny", config_dict=dict(SMALL))
        assert result["test_result"] == metrics, f"run_recbole({given}): {result['test_result']}, not {metrics}"
    settings = {**SMALL, "model": name, "dataset": "tiny"}
    assert objective_function(settings)["test_result"] == metrics
    assert workers.apply(objective_function, (settings,))["test_result"] == metrics
    example = run_recbole(model=name, dataset="tiny", config_dict={**SMALL, "train_neg_sample_args": None})
    assert example["test_result"].keys() == metrics.keys()
    print(f"{name} ok: ndcg@5 {metrics['ndcg@5']}, without negatives {example['test_result']['ndcg@5']}", flush=True)


def main(names: list[str]) -> None:
    """Check some models and undo the registration."""
    warnings.simplefilter("ignore")
    sys.argv = sys.argv[:1]  # RecBole's Config reads the arguments of the process
    recbole_lisa.register()  # twice is as good as once
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        for name in names:
            check(name, workers)
    recbole_lisa.unregister()
    for name in names:
        try:
            get_model(name)
        except (ValueError, ModuleNotFoundError):  # the latter without lightgbm, which RecBole then looks at
            continue
        raise AssertionError(f"{name} is still known to RecBole")
    print(Path(recbole_lisa.__file__).parent, flush=True)


if __name__ in ("__main__", "__mp_main__"):  # the second is this file's name in spawned children
    recbole_lisa.register()
if __name__ == "__main__":
    main(sys.argv[1:])
