import copy
import hashlib
import pickle
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from recbole_lisa.errors import UsageError
from recbole_lisa.serving import SessionBatch
from recbole_lisa.serving.sessions import Session
from tests.helpers import assert_close
from tests.serving.build import N_ITEMS, assert_equal, raw, small_recommender, updated

every_form = pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in ("LISABase", "LISASoft", "LISAMini", "LinearTransformer")),
        *((name, {"n_layers": 2}) for name in ("LRURec", "Mamba2Rec", "RecGRELA")),
        *((name, {"n_layers": 2}) for name in ("LISABase", "LISASoft", "LISAMini")),
        ("LISABase", {"histogram_decay": 0}),
        ("LISASoft", {"histogram_decay": "spread"}),
        ("LISASoft", {"item_input": "embeddings", "n_layers": 2, "local_window": 5}),
        *((name, {"n_layers": 2, "local_window": 5}) for name in ("LISABase", "LISASoft")),
        *((name, {"n_layers": 2, "histogram_values": "exact", "n_codebooks": 4}) for name in ("LISABase", "LISASoft")),
        ("LISASoft", {"block": "pre_norm", "positions": "from_end", "attention_gate": True}),
        ("LISASoft", {"block": "pre_norm", "positions": "none", "conv_width": 3}),
        ("LISABase", {"block": "gated", "hidden_act": "swiglu", "n_layers": 2, "conv_width": 4}),
    ],
    ids=str,
)


def walk(length: int) -> list[str]:
    return raw(np.random.default_rng(3).integers(1, N_ITEMS, length).tolist())


@every_form
@pytest.mark.parametrize("length", [1, 10, 24])
def test_a_session_in_the_window_recommends_as_its_history(name: str, settings: dict[str, Any], length: int) -> None:
    recommender, history = small_recommender(name, **settings), walk(length)
    session = updated(recommender.start(), history)
    assert_equal(session.recommend(5), recommender.recommend([history], 5)[0])
    assert len(session) == length


@every_form
@pytest.mark.parametrize("length", [30, 1000])
def test_starting_with_a_history_equals_going_through_it(name: str, settings: dict[str, Any], length: int) -> None:
    recommender, history = small_recommender(name, **settings), walk(length)
    stepped, started = updated(recommender.start(history[:7]), history[7:]), recommender.start(history)
    assert len(stepped) == len(started) == length
    for left, right in zip(stepped.batch.kept.state.layers, started.batch.kept.state.layers, strict=True):
        for x, y in zip(left, right, strict=True):
            assert_close(x, y)
    assert_close(stepped.batch.hidden, started.batch.hidden)
    assert torch.equal(stepped.batch.kept.recent, started.batch.kept.recent)
    assert stepped.recommend(5).items == started.recommend(5).items


def test_one_layer_differs_from_the_window_only_by_what_has_left_it() -> None:
    recommender, history = small_recommender(histogram_decay=5.0), walk(200)
    best = recommender.start(history).recommend(5, filter_seen=False)
    assert_equal(best, recommender.recommend([history], 5, filter_seen=False)[0])


@every_form
def test_bytes_continue_to_the_bit_and_keep_their_size(name: str, settings: dict[str, Any]) -> None:
    recommender, history = small_recommender(name, **settings), walk(60)
    session = recommender.start(history[:30])
    data = session.to_bytes()
    again, sizes = recommender.from_bytes(data), {len(recommender.start().to_bytes())}
    assert again.to_bytes() == data
    for copied in (copy.deepcopy(session), pickle.loads(pickle.dumps(session))):
        for one in (again, copied):
            one.update(history[30])
        assert copied.to_bytes() == again.to_bytes() and copied.recommend(6) == again.recommend(6)
        again = recommender.from_bytes(data)
    for item in history[30:]:
        session.update(item)
        again.update(item)
        sizes.add(len(again.to_bytes()))
    assert again.to_bytes() == session.to_bytes()
    assert again.recommend(6) == session.recommend(6)
    assert sizes == {len(data)}


def test_batches_equal_single_sessions() -> None:
    recommender = small_recommender(n_layers=2)
    histories = [walk(n)[:n] for n in (3, 40, 1)]
    batch = recommender.start_many([*histories, []])
    singles = [recommender.start(history) for history in [*histories, []]]
    for step in range(3):
        items = [walk(50)[10 * n + step] for n in range(4)]
        batch.update(items)
        for session, item in zip(singles, items, strict=True):
            session.update(item)
    assert batch.lengths == [6, 43, 4, 3]
    answers = batch.recommend(4)
    assert [answer.items for answer in answers] == [session.recommend(4).items for session in singles]
    for one, session in zip(batch, singles, strict=True):
        assert_close(one.batch.hidden, session.batch.hidden)
    joined = SessionBatch.join(list(batch))
    assert joined.to_bytes() == batch.to_bytes()
    assert SessionBatch.from_bytes(recommender, batch.to_bytes()).recommend(4) == answers


def test_a_session_taken_out_of_a_batch_goes_on_alone() -> None:
    batch = small_recommender().start_many([raw([1]), raw([2])])
    alone = batch[0]
    alone.update("item 5")
    assert (batch.lengths, len(alone)) == ([1, 1], 2)
    with pytest.raises(IndexError, match="session 2 of 2"):
        batch[2]
    with pytest.raises(TypeError, match="session None of 2: give a whole number below 2, or a slice"):
        batch[None]  # type: ignore[call-overload]  # a user's mistake


@pytest.mark.parametrize("part", [slice(0, 1), slice(None, None, -1), slice(1, 9), slice(2, 2)], ids=str)
def test_a_slice_of_a_batch_is_that_of_a_list(part: slice) -> None:
    batch = small_recommender().start_many([raw([1]), raw([2, 3]), raw([4, 5, 6])])
    some = batch[part]
    assert (some.lengths, some.to_bytes()) == ([1, 2, 3][part], batch.to_bytes()[part])
    some.update(raw([7] * len(some)))
    assert batch.lengths == [1, 2, 3]


@pytest.mark.parametrize("copy_of", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_a_copy_of_a_session_goes_on_alone_with_the_same_recommender(copy_of: Callable[[Session], Session]) -> None:
    session = small_recommender().start(raw([1]))
    what_if = copy_of(session)
    what_if.update("item 5")
    assert (len(session), len(what_if), what_if.recommender) == (1, 2, session.recommender)
    assert SessionBatch.join(one for one in (session, what_if)).lengths == [1, 2]  # type: ignore[arg-type]  # any iterable


@pytest.mark.parametrize("wrong", [None, 5, "abc", {"item 1": 1}, {"item 1"}], ids=str)
def test_what_is_no_list_is_named(wrong: Any) -> None:
    recommender = small_recommender()
    batch, from_bytes = recommender.start_many([raw([1])]), partial(SessionBatch.from_bytes, recommender)
    for call in (batch.update, SessionBatch.join, from_bytes, recommender.start_many):
        with pytest.raises(UsageError, match=r"(items|sessions|data|histories) (must be a list of|is a set)"):
            call(wrong)
    with pytest.raises(UsageError, match="times (must be a list of|is a set)"):
        batch.update(raw([1]), {1.0} if isinstance(wrong, set) else wrong or 7)


def test_seen_items_are_the_newest_of_the_window() -> None:
    recommender = small_recommender(max_length=4)
    session = recommender.start(raw([1, 2, 3, 4, 5, 6]))
    assert set(raw([3, 4, 5, 6])) & set(session.recommend(29).items) == set()
    assert set(raw([1, 2])) <= set(session.recommend(29).items)
    session.update("item 7")
    assert set(session.recommend(29).items) == set(raw(list(range(1, N_ITEMS)))) - set(raw([4, 5, 6, 7]))
    assert len(session.recommend(29, filter_seen=False).items) == 29
    assert set(session.recommend(9, candidates=raw([7, 8, 9])).items) == set(raw([8, 9]))


def test_unknown_items_change_nothing() -> None:
    batch = small_recommender().start_many([raw([1]), raw([2]), raw([3])])
    before = batch.to_bytes()
    with pytest.raises(UsageError, match="update: 1 unknown item: 'new'"):
        batch.update(["item 5", "new", "item 6"])
    assert batch.to_bytes() == before
    batch.update(["item 5", "new", "item 6"], on_unknown="skip")
    assert batch.lengths == [2, 1, 2]
    after = batch.to_bytes()
    assert after[1] == before[1]
    for n, item in ((0, "item 5"), (2, "item 6")):
        session = batch.recommender.from_bytes(before[n])
        session.update(item)
        assert_close(session.batch.hidden[0], batch.hidden[n])
    batch.update(["new"] * 3, on_unknown="skip")
    assert batch.to_bytes() == after


def test_time_gaps_count_between_updates() -> None:
    recommender = small_recommender(histogram_decay="time")
    session = recommender.start(raw([3]), [100.0])
    session.update("item 1", 103.0)
    session = recommender.from_bytes(session.to_bytes())
    session.update("item 4", 110.0)
    assert_equal(session.recommend(5), recommender.recommend([raw([3, 1, 4])], 5, times=[[100.0, 103.0, 110.0]])[0])
    times: tuple[tuple[Any, str], ...] = (
        (None, "give the times"),
        (109.0, "times must be finite and never go back"),
        ("noon", "times must be numbers of seconds: could not convert"),
        ("2020", "times must be numbers of seconds: got .2020."),
    )
    for time, message in times:
        with pytest.raises(UsageError, match=message):
            session.update("item 1", time)


def test_mistakes_are_named() -> None:
    recommender = small_recommender()
    calls: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: recommender.start().recommend(3), "the session has no item yet"),
        (lambda: recommender.start().batch.update(raw([1, 2])), "one item, and one time where .* each of 1 session"),
        (small_recommender("Transformer").start, "Transformer has no sessions: FullAttention has no state of constant"),
        (small_recommender(positions="from_end", n_layers=2).start, "sessions: with positions from_end, a new item"),
        (lambda: SessionBatch.join([recommender.start(), small_recommender().start()]), "got those of 2"),
        (lambda: SessionBatch.join([recommender.start(), "x"]), "sessions can be joined, got str"),  # type: ignore[list-item]  # a user's mistake
    )
    for call, message in calls:
        with pytest.raises(UsageError, match=message):
            call()


def test_bytes_that_do_not_fit_are_named() -> None:
    recommender = small_recommender()
    data = recommender.start(raw([1, 2])).to_bytes()
    changed = data[:100] + bytes([data[100] ^ 1]) + data[101:]
    body, huge = data[:-16], struct.pack("<i", N_ITEMS)  # an item number that the model does not have
    forged = [body[:-8], body + bytes(8), body[:38] + struct.pack("<q", -1) + body[46:], body[:54] + huge + body[58:]]
    forged += [body[:-8] + struct.pack("<d", number) for number in (float("nan"), float("inf"))]
    forged += [body[:38] + struct.pack("<q", 2**63 - 1) + body[46:]]
    wrong: list[tuple[Any, str]] = [
        (b"abc", "these 3 bytes are no session"),
        (b"X" + data[1:], "these .* bytes are no session"),
        (data[:5] + struct.pack("B", 9) + data[6:], "the session has version 9, this program reads version 1"),
        *((value, "the session is damaged") for value in (data[:-1], data + b"0", changed)),
        *((value, "a session is bytes that to_bytes gave, got a (NoneType|str|list)") for value in (None, "", [data])),
        *((signed(body), "its checksum, length or numbers are wrong") for body in forged),
        (small_recommender(n_layers=2).start(raw([1, 2])).to_bytes(), "the session belongs to another model"),
    ]
    for value, message in wrong:
        with pytest.raises(UsageError, match=message):
            recommender.from_bytes(value)
    assert recommender.from_bytes(memoryview(data)).to_bytes() == data  # type: ignore[arg-type]


def signed(body: bytes) -> bytes:
    return body + hashlib.blake2b(body, digest_size=16).digest()
