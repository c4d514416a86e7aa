# %% [markdown]
# # LISA inside a RecBole script
# `recbole_lisa.register()` makes the models known to RecBole's own functions: same data, trainer and metrics as SASRec.

# %%
import os

from matplotlib import pyplot as plt
from recbole.quick_start import run_recbole

import recbole_lisa

recbole_lisa.register()
os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # torch 2.6 and later refuse the checkpoint of RecBole's SASRec
data = {"user_inter_num_interval": "[200,inf)", "item_inter_num_interval": "[20,inf)", "MAX_ITEM_LIST_LENGTH": 20}
training = {"epochs": 2, "learning_rate": 0.005, "train_batch_size": 512, "train_neg_sample_args": None}
network = {"hidden_size": 32, "inner_size": 32, "n_layers": 1, "loss_type": "CE"}
settings = {**data, **training, **network, "show_progress": False, "state": "ERROR"}
results = {
    model: run_recbole(model=model, dataset="ml-100k", config_dict=settings)["test_result"]
    for model in ("SASRec", "LISASoft")
}

# %% [markdown]
# Two epochs on the most active users: this shows that it runs, not which model is best.

# %%
figure, axes = plt.subplots(figsize=(6, 3))
axes.bar(list(results), [metrics["ndcg@10"] for metrics in results.values()], width=0.5)
axes.set(ylabel="NDCG@10", title="one pipeline, two models")
print({model: metrics["ndcg@10"] for model, metrics in results.items()})
