import json
import threading
from pathlib import Path
from typing import Any

import pytest

from benchmarks import main, serving
from tests.serving.http.build import running

pytest.importorskip("uvicorn")
from benchmarks.service import Client, growth_of, summary

SIZES = serving.Sizes(n_items=90, width=8, n_codebooks=2, n_codewords=4, k=5, length=3)


def test_a_service_under_load_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--items=90", "--width=8", "--codebooks=2", "--codewords=4", "--clients=2"]
    assert main(["service", *sizes, "--minutes=0.02", f"--output={tmp_path / 'r'}"]) == 0
    document = json.loads((tmp_path / "r.json").read_text())
    assert "command: python -m benchmarks service --items=90" in document["header"]
    assert document["errors"] == []
    assert sum(record["requests"] for record in document["requests"]) > 10
    assert all(0 < r["median"] <= r["percentile_99"] <= r["slowest"] for r in document["requests"])
    assert all(megabytes > 10 for _, megabytes in document["memory"])
    printed = capsys.readouterr().out
    assert "| session: update" in printed and "| wrong answers " in printed and " a second: ms" in printed


def test_services_with_and_without_batches_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--items=90", "--width=8", "--codebooks=2", "--codewords=4", "--clients=3"]
    output = [f"--output={tmp_path / 'r'}"]
    assert main(["service", "--case=batches", *sizes, "--minutes=0.02", *output]) == 0
    services = json.loads((tmp_path / "r.json").read_text())["services"]
    assert [one["service"] for one in services] == ["without micro-batches", "with micro-batches"]
    for one in services:
        assert one["errors"] == [] and one["requests"] > 3
        assert 0 < one["median"] <= one["percentile_99"] <= one["slowest"] and one["cpu_seconds"] >= 0
    assert "| with micro-batches " in capsys.readouterr().out


def test_requests_are_answered_as_they_must_be_and_wrong_answers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    recommender, end = serving.build(SIZES), threading.Event()
    recommend = recommender.recommend

    def recommend_seen(histories: Any, k: int, **arguments: Any) -> Any:
        return recommend(histories, k, **{**arguments, "candidates": histories[0], "filter_seen": False})

    def ask_once() -> None:
        end.set()
        client.recommend(1)

    with running(recommender) as service:
        client = Client(f"127.0.0.1:{service.port}", 90, seed=1)
        for _ in range(30):
            for _, ask in client.kinds.values():
                ask()
        assert b'status="500"' not in service.call("GET", "/metrics").body
        monkeypatch.setattr(recommender, "recommend", recommend_seen)
        client.kinds = {"recommend": (1, ask_once)}
        client.run(end)
    (error,) = client.errors
    assert error.startswith("recommend: CheckError: expected 10 items that are not in the history")
    assert summary([client]) == []


def test_memory_grows_only_after_it_has_settled() -> None:
    settling = [(float(n), 100.0 + min(n, 20)) for n in range(100)]
    assert growth_of(settling) == 0
    leaking = [(float(n), 100.0 + n) for n in range(100)]
    assert growth_of(leaking) == 60
    assert growth_of([(0.0, 5.0)]) == 0
