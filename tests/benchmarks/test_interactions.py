"""The generated file has the given sizes, no user or item is missing, and a seed gives one file."""

from pathlib import Path

import pandas as pd
import pytest

from benchmarks import interactions, main


def test_generated_interactions_have_their_sizes_and_power_laws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(interactions, "_BLOCK_ROWS", 999)
    sizes = ["--users", "300", "--items", "1000", "--rows", "5000"]
    paths = [tmp_path / name for name in ("first.inter", "second.inter")]
    for path in paths:
        assert main(["interactions", *sizes, "--output", str(path)]) == 0
    assert paths[0].read_bytes() == paths[1].read_bytes()
    frame = pd.read_csv(paths[0], sep="\t")
    assert list(frame) == ["user_id:token", "item_id:token", "timestamp:float"]
    lengths, popularity = (frame[name].value_counts() for name in frame.columns[:2])
    assert (len(frame), len(lengths), len(popularity)) == (5000, 300, 1000)
    assert lengths.min() >= 4
    assert popularity.iloc[:10].sum() > 500  # a hundredth of the items has more than a tenth of the rows
    assert frame["timestamp:float"].is_monotonic_increasing
    assert main(["interactions", "--users=9", "--items=9", "--rows=8", "--output", str(tmp_path / "third")]) == 2
    assert "--rows is 8: each user and each item needs a row" in capsys.readouterr().err
