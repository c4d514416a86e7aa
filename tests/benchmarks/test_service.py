import json
import threading
from pathlib import Path
from typing import Any

import pytest

from benchmarks import main, serving
from tests.serving.http.build import running

pytest.importorskip("uvicorn")
from benchmarks.load import Client
from benchmarks.service import growth_of, summary

N_ITEMS = 90
WORDS = [f"--items={N_ITEMS}", "--width=8", "--codebooks=2", "--codewords=4", "--clients=2"]


def test_a_service_under_load_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["service", *WORDS, "--minutes=0.02", f"--output={tmp_path / 'r.json'}"]) == 0
    found = json.loads((tmp_path / "r.json").read_text())
    assert "command: python -m benchmarks service --items=90" in found["header"]
    assert found["errors"] == []
    assert sum(record["requests"] for record in found["requests"]) > 10
    assert all(0 < r["median"] <= r["slowest"] for r in found["requests"])
    assert all(megabytes > 10 for _, megabytes in found["memory"])
    printed = capsys.readouterr().out
    assert "| session: update" in printed and "| wrong answers |" in printed


def test_every_kind_of_request_is_answered_as_it_must_be() -> None:
    sizes = serving.Sizes(n_items=N_ITEMS, width=8, n_codebooks=2, n_codewords=4, k=5, length=3)
    with running(serving.build(sizes)) as service:
        client = Client(f"127.0.0.1:{service.port}", N_ITEMS, seed=1)
        for _ in range(30):
            for _, ask in client.kinds.values():
                ask()
        client.close()
        assert b'status="500"' not in service.call("GET", "/metrics").body


def test_wrong_answers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = serving.Sizes(n_items=N_ITEMS, width=8, n_codebooks=2, n_codewords=4, k=5, length=3)
    recommender = serving.build(sizes)
    recommend = recommender.recommend

    def seen_ones_too(histories: Any, k: int, **arguments: Any) -> Any:
        return recommend(histories, k, **{**arguments, "candidates": histories[0], "filter_seen": False})

    monkeypatch.setattr(recommender, "recommend", seen_ones_too)
    end = threading.Event()
    with running(recommender) as service:
        client = Client(f"127.0.0.1:{service.port}", N_ITEMS, seed=1)
        client.kinds = {"recommend": (1, lambda: end.set() or client.recommend(1))}  # type: ignore[func-returns-value]
        client.run(end)
    client.close()
    assert len(client.outcome.errors) == 1
    assert client.outcome.errors[0].startswith(
        "recommend: WrongAnswerError: wanted 10 items that are not in the history"
    )
    assert summary([client.outcome]) == []


def test_memory_grows_only_after_it_has_settled() -> None:
    settling = [(float(n), 100.0 + min(n, 20)) for n in range(100)]
    assert growth_of(settling) == 0
    leaking = [(float(n), 100.0 + n) for n in range(100)]
    assert growth_of(leaking) == 60
    assert growth_of([(0.0, 5.0)]) == 0
