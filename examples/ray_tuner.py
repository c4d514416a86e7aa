# %% [markdown]
# # Ray Tune with your own Tuner
# `recbole_lisa.tuning.trainable` trains a model and reports each validation. `recbole-lisa tune` is the command.

# %%
from pathlib import Path

import ray
from matplotlib import pyplot as plt
from ray import air, tune

from recbole_lisa.tuning import trainable

space = {
    "model": "LISASoft",
    "dataset": "ml-100k",
    "epochs": 3,
    "hidden_size": 32,
    "learning_rate": tune.grid_search([0.001, 0.003, 0.01]),
    "show_progress": False,
    "state": "ERROR",
}
run_config = getattr(tune, "RunConfig", air.RunConfig)  # its place since Ray 2.43, and before
ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
grid = tune.Tuner(
    trainable,
    param_space=space,
    tune_config=tune.TuneConfig(metric="score", mode="max"),
    run_config=run_config(storage_path=str(Path("searches").absolute()), verbose=0),
).fit()

# %%
rates = [trial.config["learning_rate"] for trial in grid]
figure, axes = plt.subplots(figsize=(6, 3))
axes.plot(rates, [trial.metrics["score"] for trial in grid], "o-")
axes.set(xscale="log", xlabel="learning rate", ylabel="best NDCG@10, validation", title="LISASoft, 3 epochs")
print("best:", grid.get_best_result().config["learning_rate"])
ray.shutdown()
