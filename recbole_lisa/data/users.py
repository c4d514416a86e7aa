"""All users of a data set with their whole histories."""

from typing import Any

import numpy as np

from recbole_lisa.serving.tables import UserHistory


def users_of(dataset: Any) -> list[UserHistory]:
    """Every user with all interactions, oldest first: training, validation and test items alike.

    Args:
        dataset: a `WindowDataset` that has been built.

    Returns:
        Users in the order of their ids; times are counted from each user's first interaction.
    """
    store = dataset.histories
    users, items = dataset.field2id_token[dataset.uid_field], dataset.field2id_token[dataset.iid_field]
    found = []
    for n, user in enumerate(store.users):
        rows = slice(store.offsets[n], store.offsets[n + 1])
        times = np.cumsum(store.gaps[rows], dtype=np.float64)
        found.append(UserHistory(str(users[user]), [str(items[i]) for i in store.items[rows]], times.tolist()))
    return found
