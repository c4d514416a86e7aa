"""The time of the question as an input, added to hidden states h of a history after the causal encoder.

    h' = h * (1 + s) + b,    [s, b] = gap[size of t - t_newest] + hour[t] + weekday[t],    t the time of the question

Each table has a row of 2 D numbers for each size, hour or weekday (UTC); size k begins at 2**(k / 2) - 1 seconds.
h does not depend on t, so a session keeps h and is asked at any time. The tables start as 0: what training never meets
adds nothing.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

QUERY_TIMES = ("none", "gap", "gap_hour_weekday")
TIMES = (1e8, 4.2e9)  # seconds of 1973 and of 2103: other numbers are ranks, or have another unit
N_GAPS = 64  # the largest size begins at 2**31.5 seconds, 96 years
_ROWS = {"gap": N_GAPS, "hour": 24, "weekday": 7}
_FIRST_WEEKDAY = 3  # 1970 began on a Thursday; row 0 is Monday


class Query(NamedTuple):
    """When histories are asked: gap (...) seconds since the newest item, and time (...) float64 seconds since 1970."""

    gap: Tensor
    time: Tensor


class QueryTime(nn.Module):
    """The tables of query_time `gap` or `gap_hour_weekday`; hidden_size is D."""

    def __init__(self, hidden_size: int, query_time: str) -> None:
        super().__init__()
        names = query_time.split("_")
        self.tables = nn.ParameterDict({name: torch.zeros(_ROWS[name], 2 * hidden_size) for name in names})
        self.sizes: Tensor
        # No draw of random numbers, here or above: a run begins with the same weights as one with query_time none.
        self.register_buffer("sizes", 2 ** (torch.arange(1, N_GAPS) / 2) - 1, persistent=False)

    def forward(self, hidden: Tensor, query: Query) -> Tensor:
        """Hidden states (..., D) and questions (...) -> (..., D)."""
        gaps, hours = query.gap.to(self.sizes.dtype), torch.div(query.time, 3600, rounding_mode="floor").long()
        rows = {"hour": hours % 24, "weekday": (hours // 24 + _FIRST_WEEKDAY) % 7}
        rows["gap"] = torch.bucketize(gaps.contiguous(), self.sizes, right=True)
        parts = [nn.functional.embedding(rows[name], table) for name, table in self.tables.items()]
        scale, shift = torch.stack(parts).sum(dim=0).chunk(2, dim=-1)  # (..., D) each
        return hidden * (1 + scale) + shift
