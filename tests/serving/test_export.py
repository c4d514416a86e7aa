import hashlib
import json
import math
import os
import resource
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from pytest import MonkeyPatch

from recbole_lisa.errors import UsageError
from recbole_lisa.files import locked
from recbole_lisa.ops.packing import packed_size
from recbole_lisa.saved import check_scores
from recbole_lisa.serving import Recommender
from recbole_lisa.serving.export import ENCODER, ITEM_IDS, ITEMS, MANIFEST, TITLES, read_export, write_export
from tests.helpers import assert_close, run_python
from tests.model.build import MODEL_NAMES
from tests.serving.build import assert_equal, raw, scores_of, scores_of_model, small_bundle, updated

FILES = (MANIFEST, ITEMS, ENCODER, ITEM_IDS)


@pytest.fixture
def manifest(tmp_path: Path) -> dict[str, Any]:
    """The manifest of a LISABase whose export is in tmp_path."""
    return write_export(small_bundle("LISABase")[1], tmp_path)


ENCODERS: dict[str, dict[str, Any]] = {
    "paper": {},
    "gated": {"block": "gated", "hidden_act": "swiglu", "inner_size": "4x", "positions": "from_end"},
    "pre-norm": {"block": "pre_norm", "positions": "none", "conv_width": 4, "attention_gate": True},
}


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_what_is_read_recommends_as_what_was_written(name: str, encoder: str, tmp_path: Path) -> None:
    try:
        _, bundle = small_bundle(name, n_layers=2, **ENCODERS[encoder])
    except ValueError as error:
        pytest.skip(f"{name} cannot run here: {error}")
    write_export(bundle, tmp_path / "export")
    before, after = Recommender(bundle), Recommender.load(tmp_path / "export")
    histories = [raw([1, 2, 3]), raw([7])]
    assert after.recommend(histories, 5) == before.recommend(histories, 5)
    assert after.fingerprint == before.fingerprint


@pytest.mark.parametrize("name", ["LISABase", "LISASoft", "LISAMini", "LinearTransformer"])
def test_cosine_scores_survive_the_export_and_hold_in_sessions(name: str, tmp_path: Path) -> None:
    model, bundle = small_bundle(name, score="cosine", score_temperature=0.3)
    manifest = write_export(bundle, tmp_path / "export")
    assert manifest["items"]["temperature"] == 0.3
    recommender, items = Recommender.load(tmp_path / "export"), [3, 1, 4, 15, 9]
    assert check_scores(model, recommender) < 1e-9
    (answer,) = recommender.recommend([raw(items)], 5, filter_seen=False)
    assert_close(scores_of(answer), scores_of_model(model, [items])[0, 1:].topk(5).values)
    session = updated(recommender.start(raw(items[:3])), raw(items[3:]))
    assert_equal(session.recommend(5, filter_seen=False), answer)
    others = [i for i in range(1, 30) if i % 3]
    (answer,) = recommender.recommend([raw(items)], 5, filter_seen=False, candidates=raw(others))
    assert_close(scores_of(answer), scores_of_model(model, [items])[0, others].topk(5).values)


def test_embeddings_that_enter_the_first_layer_do_so_in_an_export(tmp_path: Path) -> None:
    model, bundle = small_bundle("LISASoft", item_input="embeddings")
    manifest = write_export(bundle, tmp_path / "export")
    assert manifest["items"] == {"kind": "vectors", "n_items": 29, "input": "embeddings"}
    assert check_scores(model, Recommender.load(tmp_path / "export")) < 1e-9


def test_equal_models_give_equal_bytes(tmp_path: Path) -> None:
    _, bundle = small_bundle("LISAMini")
    one, other = (write_export(bundle, tmp_path / name) for name in ("a", "b"))
    assert one == other
    assert one["fingerprint"] == Recommender(bundle).fingerprint
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in FILES)


def test_codes_take_log2_bits_and_nothing_is_a_pickle(tmp_path: Path) -> None:
    manifest = write_export(small_bundle("LISAMini", n_codewords=5, n_target_codewords=6)[1], tmp_path / "export")
    sizes = {"history": 5, "target": 6}
    with np.load(tmp_path / "export" / ITEMS, allow_pickle=False) as items:
        codes = {name: items[name].nbytes for name in items.files if name.endswith("_codes")}
    assert codes == {f"{name}_codes": packed_size(29 * 3, n) for name, n in sizes.items()}
    sets = {name: {"n_codebooks": 3, "n_codewords": n} for name, n in sizes.items()}
    assert manifest["items"] == {"kind": "codes", "n_items": 29, **sets}
    for name in (ITEMS, ENCODER, ITEM_IDS):
        with np.load(tmp_path / "export" / name, allow_pickle=False) as archive:
            assert all(archive[key].dtype != object for key in archive.files)


def test_other_models_keep_their_vectors_and_say_so(tmp_path: Path) -> None:
    manifest = write_export(small_bundle("LISASoft")[1], tmp_path / "export")
    assert manifest["items"] == {"kind": "vectors", "n_items": 29}
    assert manifest["item_table"]["compression_ratio"] == 1.0


@pytest.mark.usefixtures("manifest")
@pytest.mark.parametrize("name", FILES)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    whole = file.read_bytes()
    changed = whole.replace(b"1", b"2", 1) if name == MANIFEST else whole[:-200] + b"?" + whole[-199:]
    for damaged in (whole[:-40], changed):
        file.write_bytes(damaged)
        with pytest.raises(UsageError, match=rf"damaged: {name} (is not JSON|does not have its checksum)|version 2"):
            read_export(tmp_path)
    file.unlink()
    with pytest.raises(UsageError, match=rf"{name}: No such file"):
        read_export(tmp_path)


def test_an_export_that_fails_leaves_no_folder(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("recbole_lisa.serving.export.atomic_writer", full)
    with pytest.raises(UsageError, match="cannot write the export .*: No space left on device"):
        write_export(small_bundle("LISASoft")[1], tmp_path / "deep" / "export")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setattr("recbole_lisa.serving.export._manifest", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_export(small_bundle("LISASoft")[1], tmp_path / "export")
    assert list(tmp_path.iterdir()) == []


def test_other_manifests_are_named(manifest: dict[str, Any], tmp_path: Path) -> None:
    for other, message in (
        ({"version": 2}, "has version 2, this program reads version 1: install the recbole-lisa that wrote it"),
        ({"format": "other"}, "is not the manifest of a recbole-lisa export"),
        ({"model": "LISAMini"}, "is damaged: manifest.json does not have its checksum"),
    ):
        (tmp_path / MANIFEST).write_text(json.dumps(manifest | other))
        with pytest.raises(UsageError, match=message):
            read_export(tmp_path)


def forge(folder: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest with the right checksums of itself and of the files."""
    for name in manifest["files"]:
        data = (folder / name).read_bytes()
        manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest.pop("checksum", None)
    manifest["checksum"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(manifest))


def reason_of_damage(folder: Path) -> str:
    """The one line that refuses an export."""
    with pytest.raises(UsageError, match="is damaged: .*write it again$") as caught:
        read_export(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def change(manifest: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        manifest = manifest[part]
    if value is None:
        del manifest[last]
    else:
        manifest[last] = value


NO_NAMES = ("", "a\n", "\x1b[31m", "\x9b", "a\ud800", 5, [])


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        *((key, None, f"{key}: field required") for key in ("model", "items", "encoder", "time_unit", "fingerprint")),
        ("items.n_items", 10**12, "manifest.json has 1000000000000 items, item_ids.npz has 29"),
        ("items.n_items", "many", "items.n_items: input should be a valid integer"),
        ("items.history.n_codewords", 10**12, "an array of items.npz has the shape"),
        ("items.history.n_codebooks", 10**12, "an array of items.npz has the shape"),
        ("items.kind", "vectors", "items.npz and the settings of the items in manifest.json differ in vectors"),
        ("items.history", None, "differ in history_codes"),
        ("items.dense_items", 3, "differ in dense_items"),
        ("encoder.hidden_size", 10**12, "an array of items.npz has the shape"),
        ("encoder.max_length", 10**6, "the weight position_embedding.weight has the shape"),
        ("encoder.max_length", 10**9, "encoder.max_length: input should be less than or equal to 16777216"),
        ("encoder.inner_size", 10**12, "its settings give"),
        ("encoder.inner_size", "wide", "its settings build no encoder"),
        ("encoder.inner_size", None, "its settings build no encoder"),
        ("encoder.hidden_act", "nothing", "nothing"),
        ("encoder.block", "nothing", "block must be one of post_norm, pre_norm, gated, got 'nothing'"),
        ("encoder.positions", "nothing", "positions must be one of absolute, from_end, none, got 'nothing'"),
        ("encoder.conv_width", 10**12, "its settings give"),
        ("encoder.conv_width", 1, "conv_width must be 0 for no convolution or at least 2, got 1"),
        ("encoder.surprise", 1, "its settings build no encoder"),
        ("encoder.layers", [], "its settings have 0 layers"),
        ("encoder.layers", [["lisa", {}]] * 10**5, "its settings have 100000 layers"),
        ("encoder.layers.0.0", "nothing", "unknown attention 'nothing'"),
        ("encoder.layers.0.1.n_codewords", 10**12, "its settings give"),
        ("encoder.layers.0.1.surprise", 1, "has no setting 'surprise'"),
        ("time_unit", 0, "time_unit: input should be greater than 0"),
        *(
            ("encoder.layer_norm_eps", eps, "encoder.layer_norm_eps: input should be")
            for eps in ("", "x", [], -1, 10**12, 10**40, math.inf, math.nan)
        ),
        *(("encoder.attention_gate", gate, "attention_gate: input should be a valid boolean") for gate in (0, "", [])),
        ("encoder.layers.0.1.hard", False, "its first layer reads soft assignments: hard must be true there"),
        *(("encoder.layers.0.1.hard", hard, "hard must be bool") for hard in (0, "", [], "x", math.nan)),
        *(("encoder.layers.0.1.bidirectional", value, "bidirectional must be bool") for value in (0, "", [])),
        *(("encoder.layers.0.1." + size, True, size + " must be") for size in ("n_codewords", "hidden_size")),
        ("encoder.layers.0.1.n_codebooks", 10**9, "its settings give"),
        ("encoder.layers.0.1.codebook", {}, "codebook must be Codebook or NoneType"),
        *((name, text, f"{name}: ") for name in ("model", "dataset") for text in NO_NAMES),
        ("written_by", 5, "written_by: input should be a valid string"),
        ("item_table", [], "item_table: input should be a valid dict"),
        ("encoder.\x1b[31m", 1, "its settings build no encoder"),
        ("files", {}, "items.npz does not have its checksum"),
        ("model", "../x", "model: value error, must be the name of a class"),
        *((f"{part}surprise", 1, f"{part}surprise: ") for part in ("", "items.", "items.history.")),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_forgery_is_one_line(path: str, value: Any, message: str, manifest: dict[str, Any], tmp_path: Path) -> None:
    change(manifest, path, value)
    forge(tmp_path, manifest)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reason = reason_of_damage(tmp_path)
    assert message in reason
    assert reason.isprintable()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KB


def test_an_export_from_before_the_forms_of_the_encoder_is_read(manifest: dict[str, Any], tmp_path: Path) -> None:
    before = Recommender.load(tmp_path).recommend([raw([1, 2, 3])], 5)
    for key in ("block", "positions", "conv_width", "attention_gate"):
        del manifest["encoder"][key]
    forge(tmp_path, manifest)
    assert Recommender.load(tmp_path).recommend([raw([1, 2, 3])], 5) == before


def npy(dtype: str, shape: str) -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({shape},), }}\n" if dtype else "nonsense"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


@pytest.mark.usefixtures("manifest")
@pytest.mark.parametrize("name", [ENCODER, ITEMS])
def test_an_unreadable_file_is_not_called_incomplete(name: str, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == name:
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UsageError, match=f"^'{tmp_path / name}' cannot be read: Permission denied$"):
        read_export(tmp_path)


def test_a_forged_array_is_one_line(manifest: dict[str, Any], tmp_path: Path) -> None:
    with np.load(tmp_path / ENCODER) as archive:
        weights = dict(archive)
    position = "position_embedding.weight"

    def store(data: bytes) -> None:
        with zipfile.ZipFile(tmp_path / ENCODER, "w") as archive:
            archive.writestr(f"{position}.npy", data)

    def save(**more: Any) -> None:
        np.savez(tmp_path / ENCODER, **(weights | more))

    def save_as(kind: str) -> None:
        save(**{position: weights[position].astype(kind)})

    for write, message in (
        (lambda: (tmp_path / ENCODER).write_bytes(b"no zip"), "encoder.npz: File is not a zip file"),
        (lambda: store(npy("<f4", "1000000000000")), "does not have the shape"),
        (lambda: store(npy("<f4", "-1")), "does not have the shape"),
        (lambda: store(npy("|O", "0")), "does not have the shape"),
        (lambda: store(npy("", "")), "encoder.npz: "),
        (lambda: store(npy("<f4", "1," * 9000 + "1")), "encoder.npz: "),
        (lambda: store(b""), "encoder.npz: "),
        (lambda: np.savez_compressed(tmp_path / ENCODER, **weights), "is compressed"),
        (lambda: save(more=np.zeros(3)), "the weight more has the shape"),
        (lambda: save(**{position: np.zeros((2, 16))}), f"the weight {position} has the shape"),
        *((partial(save_as, kind), f"the weight {position} is of torch.{kind}, its") for kind in ("int64", "bool")),
    ):
        write()
        forge(tmp_path, manifest)
        assert message in reason_of_damage(tmp_path)


ODD_ARRAYS: dict[str, Any] = {
    "text": lambda array: np.array(["a"] * max(array.size, 1)),
    "0-d": lambda array: array.ravel()[0],
    "other type": lambda array: array.astype({"f": "f4", "i": "i2", "u": "u4"}[array.dtype.kind]),
    "big endian": lambda array: array.astype(array.dtype.newbyteorder(">")) if array.itemsize > 1 else array[:-1],
    "complex": lambda array: array.astype(complex),
    "one dimension more": lambda array: array[None],
    "not finite": lambda array: np.full_like(array, np.nan) if array.dtype.kind == "f" else array[:-1],
}


@pytest.mark.parametrize("odd", ODD_ARRAYS)
@pytest.mark.parametrize("name", [ITEMS, ENCODER, ITEM_IDS])
def test_odd_arrays_are_one_line(name: str, odd: str, manifest: dict[str, Any], tmp_path: Path) -> None:
    with np.load(tmp_path / name) as archive:
        arrays = dict(archive)
    for key, array in arrays.items():
        if array.ndim and not (array.dtype.kind == "u" and odd == "other type" and key.endswith("codes")):
            np.savez(tmp_path / name, **(arrays | {key: ODD_ARRAYS[odd](array)}))
            forge(tmp_path, manifest)
            named = f"{name}: {key}.npy has a number that is not finite" in reason_of_damage(tmp_path)
            assert named == (odd == "not finite" and array.dtype.kind == "f")


@pytest.mark.usefixtures("manifest")
@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_place_of_a_file_is_named_at_once(name: str, tmp_path: Path) -> None:
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(UsageError, match=f"{name}: is not a regular file"):
        read_export(tmp_path)


def test_files_in_the_way_are_named(tmp_path: Path) -> None:
    _, bundle = small_bundle("LISABase")
    (tmp_path / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="holds files that are no part of an export: name another folder"):
            write_export(bundle, tmp_path, overwrite=overwrite)
    with pytest.raises(UsageError, match="is a file: name a folder"):
        write_export(bundle, tmp_path / "thesis.txt")
    write_export(bundle, tmp_path / "export")
    with pytest.raises(UsageError, match="has files in it: pass overwrite=True"):
        write_export(bundle, tmp_path / "export")
    lock = tmp_path / "export" / ".lock"
    with locked(lock, ""), pytest.raises(UsageError, match="another process writes the export '.*export': wait for"):
        write_export(bundle, tmp_path / "export", overwrite=True)
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / ".items.npz.7.0a.tmp").write_bytes(b"half")
    write_export(bundle, tmp_path / "killed", overwrite=True)
    write_export(small_bundle("LISASoft")[1], tmp_path / "export", overwrite=True)
    assert {file.name for file in (tmp_path / "export").iterdir()} == set(FILES)
    assert Recommender.load(tmp_path / "export").bundle.model == "LISASoft"


def test_it_serves_without_recbole_and_pandas(tmp_path: Path) -> None:
    write_export(small_bundle("LISABase")[1], tmp_path / "export")
    histories = tmp_path / "histories.csv"
    histories.write_text("user_id,item_id\nanna,item 1\nanna,item 2\n")
    code = f"""
import sys
for name in ("recbole", "pandas", "ray", "sklearn", "scipy"):
    sys.modules[name] = None
from recbole_lisa.serving import Recommender
recommender = Recommender.load({str(tmp_path / "export")!r})
session = recommender.start(["item 1"])
session.update("item 2")
[expected] = recommender.recommend([["item 1", "item 2"]], 3)
assert recommender.from_bytes(session.to_bytes()).recommend(3).items == expected.items
del sys.modules["pandas"]  # the command reads its table with pandas
from recbole_lisa.cli.main import main
sys.exit(main(["recommend", "--export", {str(tmp_path / "export")!r}, "--input", {str(histories)!r},
               "--output", {str(tmp_path / "top.csv")!r}, "--k", "2"]))
"""
    run_python(code)
    rows = [line.split(",")[:2] for line in (tmp_path / "top.csv").read_text().splitlines()]
    assert rows == [["user_id", "rank"], ["anna", "1"], ["anna", "2"]]


def test_titles_come_back_and_leave_the_fingerprint(manifest: dict[str, Any], tmp_path: Path) -> None:
    bundle = replace(read_export(tmp_path)[0], titles={"item 1": "Up", "item 2": 'é "\n'})
    titled = write_export(bundle, tmp_path / "titled")
    assert titled["fingerprint"] == manifest["fingerprint"] == Recommender(bundle).fingerprint
    assert read_export(tmp_path / "titled")[0].titles == bundle.titles
    (tmp_path / "titled" / TITLES).write_text('{"item 1": 3}')
    assert "titles.json does not have its checksum" in reason_of_damage(tmp_path / "titled")
    forge(tmp_path / "titled", titled)
    assert "titles.json must hold one text for each id" in reason_of_damage(tmp_path / "titled")


def test_zero_dimensional_weights_keep_their_shape(tmp_path: Path) -> None:
    _, bundle = small_bundle("LISABase", histogram_decay="learnable")
    write_export(bundle, tmp_path)
    again, _ = read_export(tmp_path)
    shapes, expected = ({name: w.shape for name, w in one.weights.items()} for one in (again, bundle))
    assert shapes == expected
    assert again.weights["attentions.0.raw_decay"].shape == torch.Size([])
