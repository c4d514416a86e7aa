"""The time of the question: the formula, what it may change, and how it learns."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import torch
from torch import Tensor

from recbole_lisa.layers.query_time import N_GAPS, Query, QueryTime
from recbole_lisa.layers.sequence_encoder import Sequences
from tests.helpers import all_valid, assert_close
from tests.layers.test_session_encoder import D, Encoder, U

FORMS: dict[str, dict[str, Any]] = {
    "post_norm": {},
    "gated": {"block": "gated", "positions": "none", "conv_width": 3},
    "window": {"local_window": 2},
}


def random_query(*shape: int) -> Query:
    """Gaps of 0 s to a month and times of 1990 to 2040, whole seconds."""
    gaps, times = (torch.rand(shape) * 15).exp(), 6.3e8 + 1.6e9 * torch.rand(shape, dtype=torch.float64)
    return Query(gaps.floor() - 1, times.floor())


def learnt(module: QueryTime) -> QueryTime:
    for table in module.tables.values():
        torch.nn.init.normal_(table)
    return module


def naive(module: QueryTime, hidden: Tensor, gap: float, time: float) -> Tensor:
    """One state (D,), by the calendar of Python."""
    moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=time)
    size = sum(gap >= 2 ** (k / 2) - 1 for k in range(1, N_GAPS))
    rows = {"gap": size, "hour": moment.hour, "weekday": moment.weekday()}
    scale, shift = sum(table[rows[name]] for name, table in module.tables.items()).chunk(2)
    return hidden * (1 + scale) + shift


@pytest.mark.parametrize("query_time", ["gap", "gap_hour_weekday"])
def test_query_time_equals_the_calendar(query_time: str) -> None:
    module = learnt(QueryTime(D, query_time)).double()
    gaps = [0.0, 0.5, 1.0, 3.0, 7.0, 59.0, 86400.0, 2.0**31.6, 1e12]
    times = [0.0, 3599.0, 3600.0, -1.0, -86401.0, 1e9 + 0.25, 951782399.0, 951782400.0, 4e9]
    hidden = torch.randn(len(gaps), D, dtype=torch.float64)
    expected = [naive(module, h, gap, time) for h, gap, time in zip(hidden, gaps, times, strict=True)]
    query = Query(torch.tensor(gaps), torch.tensor(times, dtype=torch.float64))
    assert_close(module(hidden, query), torch.stack(expected))
    assert_close(module(hidden[:0], Query(*(x[:0] for x in query))), hidden[:0])


@pytest.mark.parametrize("form", FORMS)
def test_a_time_changes_the_position_that_asks_and_no_other(form: str) -> None:
    own = dict(FORMS[form])
    local = {"local_window": own.pop("local_window")} if "local_window" in own else {}
    encoder = Encoder("hard", 2, 9, encoder={"query_time": "gap_hour_weekday", **own}, **local)
    learnt(encoder.query_time)
    view, rows, valid = encoder.view(torch.randn(U, D)), torch.randint(U, (2, 9)), all_valid(2, 9)
    query = random_query(2, 9)
    before = encoder.encode_non_padding(Sequences(rows, valid, None, query), view).hidden.view(2, 9, D)
    untimed = encoder.encode_non_padding(Sequences(rows, valid), view).hidden.view(2, 9, D)
    assert not torch.allclose(before, untimed)
    for t in range(9):
        later = Query(query.gap.clone(), query.time.clone())
        later.gap[:, t] = later.gap[:, t] * 100 + 1e4
        later.time[:, t] += 5e5
        after = encoder.encode_non_padding(Sequences(rows, valid, None, later), view).hidden.view(2, 9, D)
        others = torch.arange(9) != t
        assert torch.equal(after[:, others], before[:, others])
        assert not torch.allclose(after[:, t], before[:, t])
    last = encoder.encode_last(Sequences(rows, valid, None, query), view).hidden
    assert_close(last, before[:, -1])
    # A state knows no time, and is asked at any.
    state = encoder.state_of(Sequences(rows, valid), view)
    assert_close(encoder.at(state.hidden, Query(*(x[:, -1] for x in query))), last)


def test_an_untrained_table_adds_nothing_and_learns() -> None:
    before = torch.get_rng_state()
    module = QueryTime(D, "gap_hour_weekday")
    assert torch.equal(torch.get_rng_state(), before)  # other weights are those of query_time none
    hidden, query = torch.randn(2, 5, D), random_query(2, 5)
    assert torch.equal(module(hidden, query), hidden)
    (module(hidden, query) * torch.randn(2, 5, D)).sum().backward()
    for name, table in module.tables.items():
        assert table.grad is not None and torch.isfinite(table.grad).all(), name
        met = table.grad.abs().sum(dim=1) > 0
        assert met.any() and not met.all(), name


def test_a_form_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="query_time must be one of none, gap, gap_hour_weekday, got 'day'"):
        Encoder("hard", encoder={"query_time": "day"})
