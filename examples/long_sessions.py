# %% [markdown]
# # Very long histories and sessions
# A session of LISA has the same size and the same time for the next item after 10 items and after 30,000.

# %%
import random
import time

from matplotlib import pyplot as plt

import recbole_lisa

settings = {"epochs": 1, "hidden_size": 64, "inner_size": 64, "show_progress": False, "state": "ERROR"}
result = recbole_lisa.run("LISASoft", "ml-100k", config_dict=settings)
recbole_lisa.export(result["checkpoint"], "served", overwrite=True)
recommender = recbole_lisa.Recommender.load("served")

# %% [markdown]
# A user who looks at random items. `start` reads a whole history at once, `update` appends one item.

# %%
items = recommender.recommend([["50"]], k=500)[0].items
choose, points = random.Random(1), []
for length in (10, 100, 1_000, 10_000, 30_000):
    session = recommender.start(choose.choices(items, k=length))
    begun = time.perf_counter()
    for item in choose.choices(items, k=200):
        session.update(item)
    points.append((length, (time.perf_counter() - begun) / 200 * 1000, len(session.to_bytes()) / 1000))

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
left.semilogx([n for n, _, _ in points], [ms for _, ms, _ in points], "o-")
left.set(xlabel="items in the session", ylabel="ms for the next item", ylim=(0, None))
right.semilogx([n for n, _, _ in points], [kb for _, _, kb in points], "o-")
right.set(xlabel="items in the session", ylabel="KB of the session", ylim=(0, None))
figure.tight_layout()
