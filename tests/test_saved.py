import logging
import resource
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from benchmarks.standin import FIELDS, Catalogue, default_settings
from recbole_lisa import saved
from recbole_lisa.attention import Attention, FullAttention
from recbole_lisa.cli.main import main
from recbole_lisa.errors import UsageError
from recbole_lisa.layers.sequence_encoder import ItemView
from recbole_lisa.model.attentive_recommender import AttentiveRecommender
from recbole_lisa.model.sequential_recommender.lisabase import LISABase
from recbole_lisa.model.sequential_recommender.transformer import Transformer
from recbole_lisa.quick_start import run
from recbole_lisa.saved import bundle_of, bundle_of_checkpoint, check_scores, export, load_data_and_model
from recbole_lisa.serving import Recommender
from recbole_lisa.training.checkpoint_file import RUN_KEYS, load_checkpoint, save_checkpoint
from tests.helpers import assert_close
from tests.model.build import build_model
from tests.serving.build import IDS
from tests.tiny import SMALL, tiny_settings, train_tiny


class TwoHeads(Transformer):
    def build_layer(self, config: Any, index: int) -> FullAttention:
        return FullAttention(hidden_size=config["hidden_size"], n_heads=2)


class OtherTargets(LISABase):
    def target(self, x: Tensor, quantized: Any) -> Tensor:
        return 2 * quantized.reconstruction


class UnknownModel(Transformer):
    def build_layer(self, config: Any, index: int) -> FullAttention:
        return type("UnknownAttention", (FullAttention,), {})(hidden_size=config["hidden_size"])


def subclass_model(model: type[Any], base: str) -> Any:
    settings = FIELDS | default_settings(base) | {"hidden_size": 16, "inner_size": 16, "MAX_ITEM_LIST_LENGTH": 9}
    return model(settings, Catalogue(30))


def test_a_subclass_is_exported_when_its_scores_are_equal_and_else_refused() -> None:
    model = subclass_model(TwoHeads, "Transformer").double()
    bundle = bundle_of(model, IDS[1:], "small")
    assert check_scores(model, Recommender(bundle)) < 1e-9
    assert (bundle.model, bundle.encoder["layers"]) == ("TwoHeads", [["full", {"hidden_size": 16, "n_heads": 2}]])
    model = subclass_model(OtherTargets, "LISABase")
    with pytest.raises(UsageError, match="OtherTargets cannot be exported: its export scores items differently, by"):
        check_scores(model, Recommender(bundle_of(model, IDS[1:], "small")))
    with pytest.raises(UsageError, match="UnknownModel cannot be exported: UnknownAttention is not in MECHANISMS"):
        bundle_of(subclass_model(UnknownModel, "Transformer"), IDS[1:], "small")
    with pytest.raises(UsageError, match="Linear cannot be exported: only models of this package can"):
        bundle_of(torch.nn.Linear(1, 1), IDS[1:], "small")


@pytest.mark.parametrize("name", ["LISABase", "LISASoft", "LISAMini", "Transformer"])
def test_the_items_are_those_of_the_model_without_padding(name: str) -> None:
    model = build_model(name).eval()
    with torch.no_grad():
        expected, view = model.item_view(), model.item_store().view(torch.arange(29))
    store: ItemView = view
    assert_close(store.target, expected.target[1:])
    if model.item_store().view(torch.arange(1)).quantized is not None and name != "LISASoft":
        assert expected.quantized is not None and store.quantized is not None
        assert torch.equal(store.quantized.codes, expected.quantized.codes[1:].long())
        assert_close(store.stream, expected.stream[1:])


def test_the_bundle_does_not_follow_the_model() -> None:
    model = build_model("LISABase").double()
    recommender = Recommender(bundle_of(model, IDS[1:], "small"))
    before = recommender.recommend([["item 1"]], 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    assert recommender.recommend([["item 1"]], 3) == before


def test_a_checkpoint_is_exported_without_its_data(isolated_run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = train_tiny(isolated_run_dir)["checkpoint"]
    expected = Recommender(bundle_of_checkpoint(checkpoint)[0]).recommend([["i1", "i2"]], 5)
    state = load_checkpoint(checkpoint)
    del state["item_ids"]
    save_checkpoint(state, "old.pth")
    Path("moved").mkdir()
    Path("tiny").rename("moved/tiny")
    assert main(["export", f"--checkpoint={checkpoint}", "--output=export"]) == 0
    assert Recommender.load("export").recommend([["i1", "i2"]], 5) == expected
    old = ["export", "--checkpoint=old.pth", "--output=old"]
    for command in (["recommend", f"--checkpoint={checkpoint}", "--output=x.csv"], old):
        assert main(command) == 2
        assert f" {isolated_run_dir / 'tiny' / 'tiny.inter'} " in capsys.readouterr().err
    assert main([*old, "--data_path=moved"]) == 0


@pytest.mark.usefixtures("isolated_run_dir")
def test_a_class_outside_of_the_registry_is_named_and_exported(tmp_path: Path) -> None:
    path = run(TwoHeads, "tiny", config_dict=tiny_settings(tmp_path, epochs=1, hidden_size=16))["checkpoint"]
    with pytest.raises(UsageError, match="a model of the class TwoHeads, which is not in the registry: pass model=Two"):
        load_data_and_model(path)
    assert export(path, tmp_path / "export", model=TwoHeads)["model"] == "TwoHeads"
    loads: list[Any] = [load_data_and_model, partial(export, folder=tmp_path / "other")]
    for load in loads:
        with pytest.raises(UsageError, match="holds a model of the class TwoHeads, not LISABase: leave model out"):
            load(path, model=LISABase)
    content = bytearray(Path(path).read_bytes())
    content[200] ^= 255  # inside of data.pkl
    Path("damaged.pth").write_bytes(content)
    with pytest.raises(UsageError, match=r"'damaged\.pth' is damaged or is not a checkpoint"):
        load_data_and_model("damaged.pth")
    with pytest.raises(UsageError, match="a checkpoint must be a path, got None"):
        export(None, tmp_path / "other")  # type: ignore[arg-type]  # a user's mistake
    with pytest.raises(UsageError, match="the folder of an export must be a path, got None"):
        Recommender.load(None)  # type: ignore[arg-type]  # a user's mistake


def test_a_class_without_layers_is_named() -> None:
    def returns(layer: Any) -> dict[str, Any]:
        return {"build_layer": lambda *_: layer}

    for name, body in (
        ("must define build_layer.*, got None", {}),
        ("must define build_layer.*, got 5", {"mechanism": 5}),
        ("must define build_layer.*, got <class .*Linear", {"mechanism": torch.nn.Linear}),
        (r"NoForm must define everywhere\(x, valid\)", {"mechanism": type("NoForm", (Attention,), {})}),
        ("it returned int", returns(5)),
        ("hidden_size 16, it returned FullAttention of hidden_size 2", returns(FullAttention(hidden_size=2))),
        ("it returned None", returns(None)),
        ("it returned Linear", returns(torch.nn.Linear(2, 2))),
    ):
        with pytest.raises(TypeError, match=name):
            subclass_model(type("NoLayer", (AttentiveRecommender,), body), "Transformer")


@pytest.mark.parametrize(("name", "shown"), [("\udce6\udc97\udca5", "日"), ("a\x1bb", "a?b")], ids=["bytes", "control"])
def test_a_data_set_whose_name_the_locale_cannot_read_is_trained_and_exported(
    isolated_run_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str, shown: str
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest-xdist cannot send the lines that pytest keeps
    settings = tiny_settings(isolated_run_dir, epochs=1, hidden_size=16, result_file=f"{name}.json")
    (isolated_run_dir / "tiny").rename(isolated_run_dir / name)
    (isolated_run_dir / name / "tiny.inter").rename(isolated_run_dir / name / f"{name}.inter")
    result = run("Transformer", name, config_dict=settings)
    assert Path(result["log"]).is_file() and Path(f"{name}.json").is_file()
    assert load_checkpoint(result["checkpoint"], lazy=True)["epoch"] == 0  # torch maps no such path
    export(result["checkpoint"], "export")
    assert Recommender.load("export").bundle.dataset == shown


@pytest.mark.parametrize("memory_map", [False, True])
def test_times_of_another_unit_than_the_data_set_has_are_refused(isolated_run_dir: Path, memory_map: bool) -> None:
    settings = tiny_settings(isolated_run_dir, **SMALL, histogram_decay="time", memory_map=memory_map)
    file, now = isolated_run_dir / "tiny" / "tiny.inter", 1_700_000_000
    header, *rows = file.read_text().splitlines()
    file.write_text("\n".join([header, *(f"{row.rpartition(chr(9))[0]}\t{now + n}" for n, row in enumerate(rows))]))
    export(run("LISASoft", "tiny", config_dict=settings)["checkpoint"], "export")
    recommender = Recommender.load("export")
    assert recommender.bundle.latest_time == now + len(rows) - 1
    session = recommender.start(["i5"], [now])
    for times in ([0.0, 60.0], [now, now + 9e8]):
        recommender.recommend([["i5", "i6"]], times=[times])
    milliseconds = "the newest time is 1700000000000, the latest of the data set tiny is 17000002"
    with pytest.raises(UsageError, match=milliseconds):
        recommender.recommend([["i5", "i6"]], times=[[now * 1000 - 60, now * 1000]])
    with pytest.raises(UsageError, match=milliseconds):
        session.update("i6", now * 1000)
    later = Recommender(replace(recommender.bundle, latest_time=1000.0 * now))
    with pytest.raises(UsageError, match="the newest time is 1700000000, the latest of the data set tiny is 17"):
        later.start_many([["i5"]], [[now]])
    Recommender(replace(recommender.bundle, latest_time=None)).recommend([["i5"]], times=[[1e15]])  # an older export
    file.write_text("\n".join([header, *(f"{row.rpartition(chr(9))[0]}\t{now}000" for row in rows)]))
    with pytest.raises(UsageError, match="needs times in seconds, but the latest time of tiny is 1700000000000: "):
        run("LISASoft", "tiny", config_dict=settings)


@pytest.mark.usefixtures("isolated_run_dir")
def test_export_takes_titles_as_the_command_does(tmp_path: Path) -> None:
    path = run("Transformer", "tiny", config_dict=tiny_settings(tmp_path, epochs=1, hidden_size=16))["checkpoint"]
    Path("t.csv").write_text("item_id,title\ni5,Up\ngone,x\n")
    for titles in ("t.csv", Path("t.csv"), {"i5": "Up", "gone": "x"}):
        export(path, "export", titles=titles, overwrite=True)
        assert Recommender.load("export").bundle.titles == {"i5": "Up"}
    Path("t.csv").write_text("item_id,title\ni5,Up\ni5,Down\n")
    wrong: Any
    messages = ("title of the item 'i5' must be a text", "titles names no item .* as 1", "got a value of the type .*$")
    table = pd.DataFrame({"item_id": ["i5"], "title": ["Up"]})
    for wrong in ({"i5": None}, {"i5": "\ud800"}, {1: "One"}, table, path.encode() * 9, {"i5": "x\ud800" * 99}):
        with pytest.raises(UsageError, match="|".join(messages)):
            export(path, "export", titles=wrong, overwrite=True)
    with pytest.raises(UsageError, match="'t.csv' gives the item 'i5' two titles, 'Up' and 'Down'"):
        export(path, "export", titles="t.csv", overwrite=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The checkpoint of a small LISAMini."""
    sizes = {"hidden_size": 8, "inner_size": 8, "n_codewords": 4, "MAX_ITEM_LIST_LENGTH": 6}
    return load_checkpoint(train_tiny(tmp_path_factory.mktemp("trained"), "LISAMini", **sizes)["checkpoint"])


def refusal(path: Path, **settings: Any) -> str:
    """The line that refuses a checkpoint, of load_data_and_model and of export alike; neither takes memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError) as caught:
        load_data_and_model(path, config_dict=settings)
    if not settings:
        with pytest.raises(UsageError):
            export(path, path.parent / "export")
        assert not (path.parent / "export").exists()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB
    assert "\n" not in str(caught.value)
    return str(caught.value)


HUGE = 10**12
FORGED_SETTINGS = {
    "hidden_size": (HUGE, 16, "8x", None, 8.5),
    "inner_size": (HUGE, 16),
    "n_codewords": (10**9, 64),
    "n_codebooks": (10**9, 1),
    "n_layers": (10**9, 2, -1),
    "MAX_ITEM_LIST_LENGTH": (HUGE, 7, "x"),
    "positions": ("none",),
    "histogram_decay": ("learnable",),
    "model": ("Transformer", None),
    "dataset": ("nope", None, 5),
    "protocol": ("paper", None),
    "data_path": (None, 5),
    "train_neg_sample_args": ("x", None, {}),
    "valid_metric": (None,),
    "eval_args": (None, "x"),
    "unknown_key": (1,),
}


@pytest.mark.parametrize(("key", "value"), [(key, v) for key, values in FORGED_SETTINGS.items() for v in values])
def test_forged_settings_of_a_file_are_one_line(key: str, value: Any, trained: dict[str, Any], tmp_path: Path) -> None:
    save_checkpoint(trained | {"config": trained["config"] | {key: value}}, tmp_path / "forged.pth")
    message = refusal(tmp_path / "forged.pth")
    assert key in message or "is damaged or forged: " in message
    assert "(config_dict)" not in message and ("(checkpoint '" in message or key != "unknown_key")


@pytest.mark.parametrize("value", [5, [1]])
@pytest.mark.parametrize("key", [key for key in RUN_KEYS if key not in ("history", "curve")] + ["item_ids", "versions"])
def test_an_entry_of_another_type_is_named(key: str, value: Any, trained: dict[str, Any], tmp_path: Path) -> None:
    if type(value) is type(trained[key]) or (key == "best_valid_score" and value == 5):
        value = "text"
    save_checkpoint(trained | {key: value}, tmp_path / "forged.pth")
    assert f"forged.pth' is damaged or forged: {key}" in refusal(tmp_path / "forged.pth")


def test_a_changed_byte_in_the_directory_of_a_file_is_one_line(trained: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "run.pth"
    save_checkpoint(trained, path)
    content = path.read_bytes()
    start = int.from_bytes(content[-6:-2], "little")
    for place in (*range(start, start + 150), *range(len(content) - 100, len(content))):
        path.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
        assert not saved.is_recbole_file(path)
    path.write_bytes(content[: start + 46] + b"\xff" + content[start + 47 :])
    assert "run.pth' is damaged or is not a checkpoint of recbole-lisa" in refusal(path)


def test_forged_parts_are_one_line(trained: dict[str, Any], tmp_path: Path) -> None:
    weights, config = trained["state_dict"], trained["config"]
    for entry, message in (
        ({"item_ids": torch.zeros(3)}, "item_ids must be the bytes of a text"),
        ({"item_ids": torch.tensor([255], dtype=torch.uint8)}, "item_ids must be the bytes of a text"),
        ({"item_ids": trained["item_ids"][:-9]}, "the weight item_embedding.weight has the shape"),
        *(({"best_file": name}, "best_file: value error, ") for name in ("../x.pth", "/x.pth", "", "..", "a\0.pth")),
        (
            {"state_dict": {name: x.to_sparse() for name, x in weights.items()}},
            "torch.sparse_coo on cpu, it must be dense",
        ),
        (
            {"item_ids": torch.quantize_per_tensor(torch.zeros(3), 1, 0, torch.quint8)},
            "quint8 torch.strided on cpu, it must",
        ),
        (
            {"state_dict": {name: x.to("meta") for name, x in weights.items()}},
            "torch.strided on meta, it must be dense",
        ),
        (
            {"item_ids": torch.zeros(1, dtype=torch.uint8).expand(10**12)},
            "uint8 torch.strided on cpu, it must be dense",
        ),
        ({"rng": {"python": [torch.zeros(1).expand(10**9)]}}, "float32 torch.strided on cpu, it must be dense"),
        ({"epoch": -5}, "epoch: input should be greater than or equal to -1"),
        ({"best_valid_result": {"hit@5": "x"}}, "best_valid_result.hit@5: input should be a valid number"),
        ({"history": [{"epoch": 1, "loss": "x"}]}, "history.0.loss: input should be a valid number"),
        ({"other_parameter": {"forward": 1}}, "other_parameter has 'forward'"),
        ({"state_dict": weights | {"more": torch.zeros(1)}}, "the weight more has the shape"),
        ({"state_dict": {}}, "n_layers is 1, it has 0 weights"),
        *(
            ({"state_dict": weights | {"time_unit": torch.tensor(value)}}, f"damaged or forged: time_unit {message}")
            for value, message in ((float("nan"), "has a number that is not"), (0.0, "is not above 0"))
        ),
        ({"config": config | {"n_layers": 10**9}}, "n_layers is 1000000000, it has"),
        ({"config": config | {"hidden_size": HUGE}}, "overflowed"),
        ({"config": config | {"hidden_size": 18}}, "its settings give"),
        ({"config": config | {"n_target_codewords": 10**9}}, "its settings give"),
        ({"config": config | {"MAX_ITEM_LIST_LENGTH": HUGE}}, "its settings give"),
        ({"config": config | {"data_path": None}}, "config.data_path: input should be a valid string"),
        (
            {"config": config | {"train_neg_sample_args": "x"}},
            "config.train_neg_sample_args: input should be a valid dict",
        ),
    ):
        save_checkpoint(trained | entry, tmp_path / "forged.pth")
        assert message in refusal(tmp_path / "forged.pth")


@pytest.mark.parametrize("key", ["hidden_size", "MAX_ITEM_LIST_LENGTH", "n_codewords", "n_layers"])
def test_other_sizes_than_those_of_the_checkpoint_are_named(key: str, trained: dict[str, Any], tmp_path: Path) -> None:
    save_checkpoint(trained, tmp_path / "run.pth")
    message = refusal(tmp_path / "run.pth", **{key: 16})
    difference = f"{key} is {trained['config'][key]} there and 16 here: leave out what changes its weights"
    assert f"cannot be loaded by these settings: {difference}" in message
    with pytest.raises(UsageError, match=r"config_dict is \[1\], it must hold settings by key"):
        load_data_and_model(tmp_path / "run.pth", config_dict=[1])  # type: ignore[arg-type]  # a user's mistake
    assert load_data_and_model(tmp_path / "run.pth", config_dict={"eval_batch_size": 7})[0]["eval_batch_size"] == 7


def test_a_file_of_recboles_trainer_is_not_exported(tmp_path: Path, trained: dict[str, Any]) -> None:
    torch.save({"config": subclass_model(TwoHeads, "Transformer").fields}, tmp_path / "rb.pth")
    with zipfile.ZipFile(tmp_path / "rb.pth", "a") as archive:
        archive.writestr("more/data.pkl", b"recbole_lisa.model")
    with pytest.raises(UsageError, match="only checkpoints of recbole-lisa run can be exported"):
        export(tmp_path / "rb.pth", tmp_path / "export")


def test_recboles_case_study_names_what_to_use_instead(trained: dict[str, Any], tmp_path: Path) -> None:
    from recbole.utils.case_study import full_sort_topk

    save_checkpoint(trained, tmp_path / "run.pth")
    _, model, dataset, _, _, test = load_data_and_model(tmp_path / "run.pth")
    users = dataset.token2id(dataset.uid_field, [dataset.field2id_token[dataset.uid_field][1]])
    with pytest.raises(
        UsageError, match=r"case_study read RecBole's own loaders, .* use recbole_lisa\.Recommender for"
    ):
        full_sort_topk(users, model, test, k=5)
