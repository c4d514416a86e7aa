"""query_time through the life of a model: batches, training, result, export, recommendations, sessions, service."""

import json
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytest import CaptureFixture, MonkeyPatch

from recbole_lisa.cli.main import main
from recbole_lisa.cli.serve_command import warm_up
from recbole_lisa.config.config import LISAConfig
from recbole_lisa.config.query_time import protocol_name
from recbole_lisa.errors import UsageError
from recbole_lisa.model.attentive_recommender import AttentiveRecommender
from recbole_lisa.quick_start import run
from recbole_lisa.saved import bundle_of, load_data_and_model
from recbole_lisa.serving import Recommender, SessionBatch, scorer
from tests.helpers import assert_close, write_interactions
from tests.model.build import build_model, last_position_batch, loss_value, random_batch
from tests.serving.build import IDS, N_ITEMS, assert_equal, raw, scores_of, small_recommender
from tests.serving.http.build import running
from tests.tiny import SMALL, tiny_config, tiny_loaders, tiny_settings

ON = {"query_time": "gap_hour_weekday"}
START = 1_767_225_600  # the first of January 2026, a Thursday


def learnt(model: AttentiveRecommender) -> AttentiveRecommender:
    assert model.encoder.query_time is not None
    for table in model.encoder.query_time.parameters():
        torch.nn.init.normal_(table, std=0.5)
    return model.double().eval()


def write_timed(folder: Path, start: float = START) -> None:
    """The data set `tiny` with hours to days between the interactions."""
    rng = np.random.default_rng(5)
    steps = start + rng.exponential(40_000, (24, 12)).cumsum(axis=1).round()
    rows = [(f"u{u}", f"i{rng.integers(30)}", time) for u, times in enumerate(steps) for time in times]
    write_interactions(folder, "tiny", rows)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("settings", [{}, {"supervision": "last_position"}, {"windows": "overlapping"}], ids=str)
def test_batches_have_the_time_of_the_next_item(tmp_path: Path, settings: dict[str, Any], mapped: bool) -> None:
    write_timed(tmp_path)
    config = tiny_config(tmp_path, model="LISASoft", memory_map=mapped, **ON, **settings)
    train, valid, test = tiny_loaders(config)
    lines = [line.split("\t") for line in (tmp_path / "tiny" / "tiny.inter").read_text().splitlines()[1:]]
    assert valid is not None
    for batch in [*train, *(one.interaction for loader in (valid, test) for one in loader)]:
        for n, user in enumerate(train.dataset.id2token("user_id", batch["user_id"].numpy())):
            times = [float(time) for name, _, time in lines if name == user]
            items = [train.dataset.token2id("item_id", item) for name, item, _ in lines if name == user]
            length = int(batch["item_length"][n])
            found = batch["query_time_list"][n, :length].tolist()
            first = times.index(found[0]) - 1
            assert batch["item_id_list"][n, :length].tolist() == items[first : first + length]
            assert found == times[first + 1 : first + 1 + length]
            gaps = np.diff(times)[first : first + length]
            assert batch["query_gap_list"][n, :length].tolist() == gaps.astype(np.float32).tolist()
            assert not batch["query_time_list"][n, length:].any()
    assert "query_gap_list" not in next(iter(tiny_loaders(tiny_config(tmp_path, model="LISASoft"))[0]))


@pytest.mark.parametrize("name", ["LISABase", "LISASoft", "Transformer"])
def test_the_loss_of_a_position_reads_its_own_time_in_both_supervisions(name: str) -> None:
    torch.manual_seed(0)
    plain = build_model(name).state_dict()
    torch.manual_seed(0)
    model, batch = build_model(name, **ON), random_batch(6, 9, 30)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in plain.items())
    model.eval()
    for kind in (batch, last_position_batch(batch)):
        model.zero_grad()
        loss_value(model.calculate_loss(kind)).backward()
        assert all(table.grad.abs().sum() > 0 for table in model.encoder.query_time.parameters())
    learnt(model)
    with torch.no_grad():
        length, times = batch["item_length"] - 1, batch["query_time_list"]
        before = model.full_sort_predict(batch)
        assert not torch.allclose(before, model.full_sort_predict(batch | {"query_time_list": times + 4e4}))
        later = times + 4e4 * (torch.arange(9) != length.unsqueeze(1))
        assert_close(model.full_sort_predict(batch | {"query_time_list": later}), before)
    del batch["query_gap_list"]
    with pytest.raises(ValueError, match="query_time needs the times of the targets"):
        model.full_sort_predict(batch)


Asked = tuple[AttentiveRecommender, Recommender]


@pytest.fixture(params=[("LISABase", {}), ("LISASoft", {"block": "gated", "conv_width": 3, "local_window": 2})])
def asked(request: Any) -> Asked:
    model = learnt(build_model(request.param[0], n_items=N_ITEMS, **request.param[1], **ON))
    return model, Recommender(bundle_of(model, IDS[1:], "small"))


def test_lists_and_sessions_equal_the_model_at_any_time(asked: Asked, monkeypatch: MonkeyPatch) -> None:
    model, recommender = asked
    items, times = [3, 1, 4, 8], [START + 5.0, START + 9.5, START + 5e4, START + 6e5]
    batch = {"item_id_list": torch.tensor([items]), "item_length": torch.tensor([4])}
    session = recommender.start(raw(items[:2]), times[:2])
    for item, time in zip(raw(items[2:]), times[2:], strict=True):
        session = recommender.from_bytes(session.to_bytes())
        session.update(item, time)
    lists = []
    for wait in (0.0, 1.0, 3e3, 4e4, 1e7, 2.4e9):
        at = times[-1] + wait
        waits, ats = torch.full((1, 4), wait), torch.full((1, 4), at, dtype=torch.float64)
        query = {"query_gap_list": waits, "query_time_list": ats}
        with torch.no_grad():
            scores = model.full_sort_predict(batch | query)[0, 1:]
        found = recommender.recommend([raw(items)], 29, times=[times], at=at, filter_seen=False)[0]
        assert_close(scores_of(found), scores.sort(descending=True).values)
        assert_equal(session.recommend(29, at=at, filter_seen=False), found)
        monkeypatch.setattr(scorer.time, "time", lambda at=at: at)
        assert_equal(recommender.recommend([raw(items)], 29, times=[times], filter_seen=False)[0], found)
        lists.append(found.scores)
    assert len({*map(tuple, lists)}) == len(lists)
    monkeypatch.setattr(scorer.time, "time", lambda: times[-1] - 60)  # a clock that is behind
    assert session.recommend(29, filter_seen=False).scores == pytest.approx(lists[0])


def test_histories_have_one_time_or_their_own(asked: Asked) -> None:
    recommender = asked[1]
    histories, times = [raw([1, 2]), ["new"], raw([3])], [[START, START + 1.0], [START], [START]]
    ats = [START + 50.0, START, START + 9e5]
    each = recommender.recommend(histories, 5, times=times, at=ats, on_unknown="skip")
    for n in (0, 2):
        alone = recommender.recommend([histories[n]], 5, times=[times[n]], at=ats[n])[0]
        assert_equal(each[n], alone)
    assert each[1].items == []
    batch = SessionBatch.join([recommender.start(histories[n], times[n]) for n in (0, 2)])
    for answer, n in zip(batch.recommend(5, at=[ats[0], ats[2]]), (0, 2), strict=True):
        assert_equal(answer, each[n])
    wrong: tuple[tuple[Any, str], ...] = (
        ([START + 9.0, START], "at must be one number, or one for each of 3 histories, got 2"),
        (START - 5.0, "at is 1767225595, the newest item has 1767225601: both must be seconds since 1970"),
        (float("nan"), "at is nan, the newest item has 1767225601"),
        (START * 1e3, "at is 1767225600000, the newest item has 1767225601: .* from 1973 to 2103"),
        ("noon", "at must be numbers of seconds: could not convert"),
        (np.datetime64("NaT"), "at is nan, the newest item has 1767225601"),
    )
    newest, number = max(map(max, filter(None, times))), 1_767_830_400.0  # 2026-01-08 in UTC
    assert newest < number
    dates: list[Any] = [date(2026, 1, 8), datetime(2026, 1, 8), datetime.fromisoformat("2026-01-08T02:00+02:00")]
    for at in (*dates, *map(np.datetime64, dates[:2]), torch.tensor(number), np.array(number)):
        asked_at = recommender.recommend(histories, 5, times=times, at=at, on_unknown="skip")
        expected = recommender.recommend(histories, 5, times=times, at=number, on_unknown="skip")
        for one, other in zip(asked_at, expected, strict=True):
            assert_equal(one, other)
    for at, message in wrong:
        with pytest.raises(UsageError, match=message):
            recommender.recommend(histories, 5, times=times, at=at, on_unknown="skip")
    with pytest.raises(UsageError, match=r"reads the times of items \(query_time\): give the times"):
        recommender.recommend(histories[:1], 5)
    with pytest.raises(UsageError, match="at is 5.0, but this model reads no time of a question"):
        small_recommender().recommend(histories[:1], 5, at=5.0)


def test_the_service_takes_the_time_of_a_question(asked: Asked) -> None:
    recommender, times = asked[1], [float(START), START + 7.0]
    warm_up(recommender)
    with running(recommender) as service:
        assert service.get("/health").json["needs_times"] is True
        service.post("/sessions", {"id": "t", "history": raw([1, 2]), "times": times})
        for at in (START + 8.0, START + 1e6):
            expected = recommender.recommend([raw([1, 2])], 3, times=[times], at=at)[0]
            body = {"histories": [raw([1, 2])], "times": [times], "k": 3, "at": at}
            assert service.post("/recommend", body).json["recommendations"][0]["items"] == expected.items
            found = service.post("/sessions/t/recommend", {"k": 3, "at": at}).json
            assert found["items"] == expected.items
        assert service.post("/sessions/t/recommend", {"at": 5}).error == (422, "invalid")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("run")
    write_timed(folder)
    with MonkeyPatch.context() as patch:
        patch.chdir(folder)
        files = {"result_file": "r.json", "per_user_file": "r.csv"}
        yield run("LISASoft", "tiny", config_dict=tiny_settings(folder, **SMALL, **ON, **files)) | {"folder": folder}


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "full_ranking"),
        ({"eval_args": {"split": {"LS": "valid_and_test"}, "mode": "full"}}, "full_ranking"),
        ({"eval_args": {"mode": "uni9"}}, "full_ranking, eval_args changed: mode {'valid': 'uni9', 'test': 'uni9'}"),
        ({"eval_args": {"split": {"TS": [8, 1, 1]}}}, "full_ranking, eval_args changed: split {'TS': [8, 1, 1]}"),
        ({"protocol": "paper", **ON, "eval_args": {"split": {"LS": "valid_and_test"}}},
         "paper, eval_args changed: split {'LS': 'valid_and_test'}, query_time gap_hour_weekday"),
        ({"benchmark_filename": ["a", "b", "c"], "eval_args": {"split": {"LS": "test_only"}}},
         "full_ranking, split by files"),
    ],
)  # fmt: skip
def test_the_name_of_a_protocol_has_the_settings_that_change_its_figures(settings: dict[str, Any], name: str) -> None:
    config = LISAConfig("LISASoft", "ml-100k", config_dict=settings)
    assert protocol_name(config) == name
    assert protocol_name(LISAConfig.from_plain(config.plain())) == name  # of a checkpoint


def test_a_run_names_its_protocol_and_is_evaluated(result: dict[str, Any], capsys: CaptureFixture[str]) -> None:
    folder = result["folder"]
    assert result["protocol"] == "full_ranking, query_time gap_hour_weekday"
    log = Path(result["log"]).read_text()
    assert "protocol full_ranking, query_time gap_hour_weekday (CPU" in log
    assert "the time of each target is read, in validation and test as well" in log
    checkpoint = folder / result["checkpoint"]
    assert main(["evaluate", f"--checkpoint={checkpoint}"]) == 0
    printed = capsys.readouterr().out
    assert "protocol full_ranking, query_time gap_hour_weekday, eval_seen rank" in printed
    assert f"{result['test']['ndcg@10']:.4f}" in printed
    _, model, *_ = load_data_and_model(checkpoint)
    assert model.encoder.query_time is not None
    other = json.loads((folder / "r.json").read_text()) | {"protocol": "full_ranking"}
    (folder / "other.json").write_text(json.dumps(other))
    assert main(["compare", str(folder / "other.json"), str(folder / "r.json")]) == 0
    warned = "warning: A has the protocol full_ranking, B has full_ranking, query_time gap_hour_weekday"
    assert warned in capsys.readouterr().err


def test_recommend_asks_at_a_time(result: dict[str, Any], capsys: CaptureFixture[str]) -> None:
    folder = result["folder"]
    checkpoint, export = folder / result["checkpoint"], folder / "export"
    assert main(["export", f"--checkpoint={checkpoint}", f"--output={export}"]) == 0
    recommender = Recommender.load(export)
    for table in recommender.network.query_time.parameters():  # one epoch teaches too little
        assert table.abs().sum() > 0
    command = ["recommend", f"--output={folder / 'top.csv'}", "--overwrite", "--k=3"]
    (folder / "in.csv").write_text(f"user_id,item_id,timestamp\na,i3,{START}\na,i1,{START + 60}\n")
    capsys.readouterr()
    for arguments, at in ((["--at=2026-01-02"], START + 86_400), ([f"--at={START + 61}"], START + 61), ([], None)):
        assert main([*command, f"--export={export}", f"--input={folder / 'in.csv'}", *arguments]) == 0
        expected = recommender.recommend([["i3", "i1"]], 3, times=[[START, START + 60]], at=at)[0]
        rows = (folder / "top.csv").read_text().splitlines()[1:]
        assert [row.split(",")[2] for row in rows] == expected.items
        assert ("query time: now, 20" in capsys.readouterr().out) == (at is None)
    (folder / "later.csv").write_text(f"user_id,item_id,timestamp\na,i3,{START + 2e9:.0f}\n")  # later than now
    assert main([*command, f"--export={export}", f"--input={folder / 'later.csv'}"]) == 0
    (folder / "wrong.csv").write_text(f"user_id,item_id,timestamp\na,i3,{START}000\n")  # milliseconds
    assert main([*command, f"--export={export}", f"--input={folder / 'wrong.csv'}"]) == 2
    assert "both must be seconds since 1970, from 1973 to 2103" in capsys.readouterr().err
    (folder / "ranks.csv").write_text("user_id,item_id,timestamp\na,i3,1\na,i1,2\n")
    assert main([*command, f"--export={export}", f"--input={folder / 'ranks.csv'}"]) == 2
    assert "the newest item has 2: both must be seconds since 1970" in capsys.readouterr().err
    assert main([*command, f"--export={export}", f"--input={folder / 'in.csv'}", f"--at={START}"]) == 2
    assert f"--at {START} is before the newest item of user 'a', {START + 60} (seconds" in capsys.readouterr().err
    assert main([*command, f"--checkpoint={checkpoint}", "--at=2027-01-01T12:00"]) == 0
    capsys.readouterr()
    assert main([*command, f"--export={export}", f"--input={folder / 'in.csv'}", "--at=noon"]) == 2
    assert "must be seconds since 1970 or a date such as 2026-03-01T18:00, got noon" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("start", "kind"), [(0, "are ranks, or count from another start"), (1.7e12, "have another unit")]
)
def test_times_that_are_no_seconds_since_1970_are_refused(tmp_path: Path, start: float, kind: str) -> None:
    write_timed(tmp_path, start)
    with pytest.raises(UsageError, match=f"the latest time of tiny is .*: its times {kind}; set query_time to none"):
        tiny_loaders(tiny_config(tmp_path, model="LISASoft", **ON))
