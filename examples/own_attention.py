# %% [markdown]
# # Bring your own attention
# A mechanism implements `everywhere`; the base class checks shapes and padding. A model puts it into the encoder.

# %%
import torch
from matplotlib import pyplot as plt

from recbole_lisa import LISASoft, Transformer, run
from recbole_lisa.attention import Attention


class FadingMean(Attention):
    """The mean of the items so far, where each item counts e^-0.1 times as much as the next."""

    def everywhere(self, x, valid):
        age = torch.arange(x.shape[1]).unsqueeze(1) - torch.arange(x.shape[1])
        weights = torch.exp(-0.1 * age).tril()
        return (weights / weights.sum(dim=1, keepdim=True)) @ x


class FadingRec(Transformer):
    """The Transformer's encoder, settings and scores around it."""

    def build_layer(self, config, index):
        return FadingMean(config["hidden_size"])


# %%
settings = {"epochs": 4, "hidden_size": 32, "learning_rate": 0.01, "show_progress": False, "state": "ERROR"}
results = {model.__name__: run(model, "ml-100k", config_dict=settings) for model in (FadingRec, Transformer, LISASoft)}

# %%
figure, axes = plt.subplots(figsize=(6, 3))
for name, result in results.items():
    axes.plot(range(1, len(result["loss"]) + 1), result["loss"], marker="o", label=name)
axes.set(xlabel="epoch", ylabel="training loss", xticks=range(1, 5))
axes.legend()
