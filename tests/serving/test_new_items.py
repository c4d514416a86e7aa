"""Items that are added to an export without training."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pytest import CaptureFixture

from recbole_lisa.cli.main import main
from recbole_lisa.errors import UsageError
from recbole_lisa.serving import Recommender
from recbole_lisa.serving.export import write_export
from recbole_lisa.serving.ids import IdMap
from recbole_lisa.serving.inputs import Numbers
from recbole_lisa.serving.new_items import add_items, nearest_codes, neighbours_in_histories
from tests.serving.build import IDS, N_ITEMS, small_bundle

NEW = [f"new {i}" for i in range(50)]
HISTORY = [IDS[1:8]]
OLD = len(IDS) - 1


def old_scores(recommender: Recommender) -> dict[str, float]:
    answer = recommender.recommend(HISTORY, len(recommender.ids), filter_seen=False)[0]
    return {item: score for item, score in zip(answer.items, answer.scores, strict=True) if item in IDS}


@pytest.mark.parametrize("model", ["LISABase", "LISAMini", "LISASoft", "LISASoft of embeddings", "Transformer"])
def test_new_items_are_recommended_and_old_scores_keep_their_bits(model: str) -> None:
    settings = {"item_input": "embeddings"} if model.endswith("embeddings") else {}
    bundle = small_bundle(model.partition(" ")[0], **settings)[1]
    near = {item: np.array([n % OLD, n % OLD, (n + 1) % OLD]) for n, item in enumerate(NEW)}
    before, after = Recommender(bundle), Recommender(add_items(bundle, near))
    assert [after.ids.raw(n) for n in range(len(after.ids))] == [*IDS[1:], *NEW]
    assert all(after.ids.number(item) == OLD + n for n, item in enumerate(NEW))
    expected, actual = old_scores(before), old_scores(after)
    if model in ("LISABase", "LISAMini"):
        assert actual == expected
    assert actual == pytest.approx(expected, rel=1e-12)
    assert set(NEW) & set(after.recommend([NEW[:3]], 20)[0].items)


def test_an_item_beside_one_old_item_has_its_codes_and_score() -> None:
    bundle = small_bundle("LISABase")[1]
    after = Recommender(add_items(bundle, {"new": np.array([4])}))
    answer = after.recommend(HISTORY, len(after.ids), filter_seen=False)[0]
    scores = dict(zip(answer.items, answer.scores, strict=True))
    assert scores["new"] == scores[IDS[5]]


def test_nearest_codes_find_sums_of_codewords() -> None:
    generator = torch.Generator().manual_seed(0)
    books = torch.randn(4, 16, 32, generator=generator)
    codes = torch.randint(16, (100, 4), generator=generator)
    x = sum(book[code] for book, code in zip(books, codes.t(), strict=True))
    assert (nearest_codes(x, books) == codes).all(dim=1).float().mean() > 0.95


def test_neighbours_are_the_old_items_at_most_five_places_away() -> None:
    bundle = small_bundle("LISABase")[1]
    near = neighbours_in_histories(bundle, [[*IDS[1:8], "a", "b", IDS[9]], ["c"]])
    expected = {"a": [2, 3, 4, 5, 6, 8], "b": [3, 4, 5, 6, 8], "c": []}
    assert {item: numbers.tolist() for item, numbers in near.items()} == expected


@pytest.mark.parametrize("near", [{}, {IDS[3]: np.array([1])}, {"x": np.array([], dtype=np.int64)}], ids=str)
def test_wrong_neighbours_are_refused(near: dict[str, Numbers]) -> None:
    with pytest.raises(UsageError, match="new items must have neighbours in the model, and no place in it"):
        add_items(small_bundle("LISABase")[1], near)


def test_id_map_with_new_ids_equals_one_of_all_ids() -> None:
    old, new = [f"id {n}" for n in range(100)], ["", "new", "id 100"]
    grown, whole = IdMap.from_ids(old).with_new(new).arrays(), IdMap.from_ids([*old, *new]).arrays()
    assert all((grown[name] == whole[name]).all() and grown[name].dtype == whole[name].dtype for name in whole)


@pytest.fixture
def export(tmp_path: Path) -> Path:
    write_export(small_bundle("LISABase", hidden_size=16)[1], tmp_path / "export")
    return tmp_path / "export"


TABLES = {
    "--input": f"user_id,item_id\nu,{IDS[1]}\nu,fresh\nu,{IDS[2]}\nv,lonely\n",
    "--vectors": f"item_id,a,b\n{IDS[1]},1,0\nfresh,1,0.1\n{IDS[2]},0,1\n",
}


@pytest.mark.parametrize("option", TABLES)
def test_add_items_writes_an_export(export: Path, tmp_path: Path, option: str, capsys: CaptureFixture[str]) -> None:
    (tmp_path / "in.csv").write_text(TABLES[option])
    command = ["add-items", f"--export={export}", f"--output={tmp_path / 'more'}", f"{option}={tmp_path / 'in.csv'}"]
    assert main(command) == 0
    assert f"added: 1 items to {N_ITEMS - 1}" in capsys.readouterr().out
    recommender = Recommender.load(tmp_path / "more")
    assert "fresh" in recommender.recommend(HISTORY, N_ITEMS)[0].items
    assert main(command) == 2
    assert "add --overwrite to replace it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "table", "message"),
    [
        ("in.csv", "item_id,a\nfresh,1\n", "none of the 1 new items of"),
        ("in.csv", f"item_id,a\n{IDS[1]},1\n", "has no new item: give old and new items together"),
        ("in.csv", "item_id,a,a\nfresh,1,2\n", "the first line names the column a twice: rename one of them"),
        ("in.csv", "item_id,a\nfresh,x\n", "the numbers of item 'fresh' must be finite float32 and not all 0"),
        ("in.csv", "item,a\nfresh,1\n", "is not a table of item_id and numbers, separated by ',':"),
        ("in.csv", f"item_id,a\n{IDS[1]},True\nfresh,False\n", "the column a holds True and False"),
        ("in.csv", "item_id,a\nfresh,nan\n", "the numbers of item 'fresh' must be finite float32 and not all 0"),
        ("in.csv", f"item_id,a\n{IDS[1]},1\nfresh,1e308\n", "the numbers of item 'fresh' must be finite float32"),
        ("in.csv", f"item_id,a\n{IDS[1]},1\nfresh,0\n", "the numbers of item 'fresh' must be finite float32 and not"),
        ("in.csv", "item_id,a\nfresh,1\nfresh,1\n", "has item 'fresh' twice: keep one of the lines"),
        ("in.csv", "item_id,a\nfresh,1\n,2\n", "must hold an item_id and at least one number in each line"),
        ("in.csv", "item_id\nfresh\n", "must hold an item_id and at least one number in each line"),
        ("gone.csv", None, "No such file or directory"),
        ("in.txt", "", "must end in .csv or .tsv"),
    ],
)
def test_wrong_tables_of_vectors_are_named(
    export: Path, tmp_path: Path, name: str, table: str | None, message: str, capsys: CaptureFixture[str]
) -> None:
    if table is not None:
        (tmp_path / name).write_text(table)
    arguments = [f"--export={export}", f"--output={tmp_path / 'more'}", f"--vectors={tmp_path / name}"]
    assert main(["add-items", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "more").exists()


def test_an_export_is_not_its_own_output(export: Path, tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    (tmp_path / "in.csv").write_text(TABLES["--input"])
    command = ["add-items", f"--export={export}", f"--output={export}", f"--input={tmp_path / 'in.csv'}"]
    assert main([*command, "--overwrite"]) == 2
    assert "is the input, too: name another folder for the output" in capsys.readouterr().err
