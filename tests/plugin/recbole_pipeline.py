"""RecBole's own functions with these models in place of its own: a program, so that it runs beside a bare wheel too.

    python recbole_pipeline.py MODEL ...

It works in the folder where it stands, on the data set `tiny` there, and stops at the first figure that differs.
"""

import multiprocessing
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.utils import ModelType, get_model, get_trainer, init_seed

import recbole_lisa
from recbole_lisa.config.registry import model_class
from recbole_lisa.saved import load_data_and_model as our_load

SMALL: dict[str, Any] = {
    **{"data_path": ".", "epochs": 2, "use_gpu": False, "show_progress": False, "state": "ERROR"},
    **{"hidden_size": 16, "inner_size": 16, "MAX_ITEM_LIST_LENGTH": 8, "n_codebooks": 2},
    **{"train_batch_size": 32, "eval_batch_size": 16, "learning_rate": 0.02, "topk": [5], "valid_metric": "NDCG@5"},
}
PRESPLIT: dict[str, Any] = {
    "benchmark_filename": ["train", "valid", "test"],
    "alias_of_item_id": ["item_id_list"],
    "load_col": {"inter": ["user_id", "item_id_list", "item_id"]},
}


def step_by_step(model: str | type[Any], dataset: str = "tiny", **settings: Any) -> tuple[Any, Any, dict[str, float]]:
    """The steps that RecBole shows for a run of one's own: trainer, test loader, test metrics."""
    config = Config(model=model, dataset=dataset, config_dict={**SMALL, **settings})
    init_seed(config["seed"], config["reproducibility"])
    train, valid, test = data_preparation(config, create_dataset(config))
    init_seed(config["seed"], config["reproducibility"])
    network = config.model_class(config, train.dataset).to(config["device"])
    trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, network)
    trainer.fit(train, valid, show_progress=False)
    return trainer, test, dict(trainer.evaluate(test))


def scores(model: torch.nn.Module, loader: Any) -> torch.Tensor:
    """Scores of all items for every history of a loader."""
    model.eval()
    with torch.no_grad():
        return torch.cat([model.full_sort_predict(batch[0]) for batch in loader])  # type: ignore[operator]


def check(name: str, workers: Any) -> None:
    """Every function of RecBole, by name and by class, gives one and the same result."""
    from recbole.quick_start import load_data_and_model, objective_function, run_recbole  # after register()

    assert get_model(name) is model_class(name)
    assert get_trainer(ModelType.SEQUENTIAL, name).__name__ == "Trainer"
    trainer, test, metrics = step_by_step(name)
    _, _, by_class = step_by_step(model_class(name))
    assert by_class == metrics, f"{name} by class: {by_class}, by name: {metrics}"

    for given in (name, model_class(name)):
        result = run_recbole(model=given, dataset="tiny", config_dict=dict(SMALL))
        assert result["test_result"] == metrics, f"run_recbole({given}): {result['test_result']}, not {metrics}"
    settings = {**SMALL, "model": name, "dataset": "tiny"}
    assert objective_function(settings)["test_result"] == metrics
    assert workers.apply(objective_function, (settings,))["test_result"] == metrics

    expected = scores(trainer.model, test)
    for load in (load_data_and_model, lambda path: our_load(path, trusted=True)):
        _, network, _, _, _, loader = load(trainer.saved_model_file)
        assert torch.equal(scores(network, loader), expected), f"{name}: other scores after loading"

    example = run_recbole(model=name, dataset="tiny", config_dict={**SMALL, "train_neg_sample_args": None})
    _, _, presplit = step_by_step(name, "presplit", **PRESPLIT)
    assert example["test_result"].keys() == presplit.keys() == metrics.keys()
    print(f"{name} ok: ndcg@5 {metrics['ndcg@5']}, without negatives {example['test_result']['ndcg@5']}", flush=True)


def write_presplit() -> None:
    """Write the data set `presplit`: each row brings its own history."""
    Path("presplit").mkdir(exist_ok=True)
    for part, target in {"train": 4, "valid": 5, "test": 6}.items():
        rows = [f"u{user}\t{' '.join(f'i{user + k}' for k in range(1, target))}\ti{user + target}" for user in range(9)]
        head = "user_id:token\titem_id_list:token_seq\titem_id:token"
        Path("presplit", f"presplit.{part}.inter").write_text("\n".join([head, *rows, ""]), encoding="utf-8")


def main(names: list[str]) -> None:
    """Check some models and undo the registration."""
    warnings.simplefilter("ignore")
    sys.argv = sys.argv[:1]  # RecBole's Config reads the arguments of the process
    write_presplit()
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
