# %% [markdown]
# # Train and recommend
# LISA-Base on the MovieLens 100K that comes with RecBole, its curve, and the best items for a new history.

# %%
from matplotlib import pyplot as plt

import recbole_lisa

settings = {"epochs": 6, "learning_rate": 0.01, "test_step": 1, "show_progress": False, "state": "ERROR"}
result = recbole_lisa.run("LISABase", "ml-100k", config_dict=settings)

# %% [markdown]
# `result` holds metrics, times and the configuration. `test_step` has drawn the curve; nothing is chosen by it.

# %%
epochs = [point["epoch"] for point in result["curve"]]
figure, axes = plt.subplots(figsize=(6, 3))
axes.plot(epochs, [point["ndcg@10"] for point in result["curve"]], marker="o")
axes.set(xlabel="epoch", ylabel="NDCG@10, all items ranked", ylim=(0, None), title="LISABase on ml-100k")

# %% [markdown]
# The export needs neither RecBole nor the data. A session takes one item after the other in constant time.

# %%
recbole_lisa.export(result["checkpoint"], "served", overwrite=True)
recommender = recbole_lisa.Recommender.load("served")
[answer] = recommender.recommend([["50", "181", "174"]], k=5)
print("for a history:", answer.items)

session = recommender.start(["50", "181"])
session.update("174")
print("in a session: ", session.recommend(5).items)
