"""Models whose item codes are fixed before training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recbole_lisa import item_codes
from recbole_lisa.cli.main import main
from recbole_lisa.environment import free_memory
from recbole_lisa.errors import UsageError
from recbole_lisa.item_codes import set_item_codes, svd_vectors
from recbole_lisa.migration import migrate
from recbole_lisa.model.items import FixedCodes
from recbole_lisa.saved import export, load_bundle, load_data_and_model
from recbole_lisa.serving import Recommender
from recbole_lisa.training.evaluation import evaluate_targets
from recbole_lisa.training.memory import check_memory
from tests.helpers import assert_close, write_interactions
from tests.model.build import build_model
from tests.tiny import SMALL, tiny_config, tiny_loaders, train_tiny

QUANTIZED = {"LISABase": {}, "LISAMini": {"n_target_codewords": 12}, "Transformer": {"quantize_items": True}}
BATCH = {"item_id_list": torch.tensor([[3, 7, 2, 9], [5, 1, 0, 0]]), "item_length": torch.tensor([4, 2])}


def train(model: str, folder: Path, **settings: Any) -> Path:
    return Path(train_tiny(folder, model, **{"epochs": 2} | settings)["checkpoint"])


def fixed_as(learned: Any, model: str, **settings: Any) -> Any:
    """The model with fixed codes that has the codes and all other parameters of a learned one."""
    fixed = build_model(model, item_codes="svd", **settings).double().eval()
    weights = {name: value for name, value in learned.state_dict().items() if name in fixed.state_dict()}
    codes = [torch.nn.functional.pad(learned.item_codes(book), (0, 0, 1, 0)) for book in learned.codebooks().values()]
    fixed.load_state_dict(weights | {"item_embedding.weight": torch.cat(codes, dim=1)})
    return fixed


@pytest.mark.parametrize("score", ["dot", "cosine"])
@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("model", QUANTIZED)
def test_scores_and_loss_are_those_of_a_learned_model_of_equal_codes(model: str, n_layers: int, score: str) -> None:
    settings = {**QUANTIZED[model], "codebook_similarity": "dot", "n_layers": n_layers, "score": score}
    learned = build_model(model, hidden_dropout_prob=0, **settings).double().eval()
    fixed = fixed_as(learned, model, hidden_dropout_prob=0, **settings)
    some = torch.tensor([[4, 4, 2], [9, 1, 29]])
    assert_close(fixed.full_sort_predict(BATCH)[:, 1:], learned.full_sort_predict(BATCH)[:, 1:])
    assert_close(fixed.item_scorer(BATCH)(some[0]), learned.item_scorer(BATCH)(some[0]))
    assert_close(fixed.score_candidates(BATCH, some), learned.score_candidates(BATCH, some))
    assert all(torch.equal(*pair) for pair in zip(*(m.item_store().buffers() for m in (fixed, learned)), strict=True))
    for loss_type, negatives in (("CE", {}), ("SSM", {"neg_item_id": torch.tensor([6, 8])})):
        fixed.loss_type = learned.loss_type = loss_type
        batch = {**BATCH, "item_id": torch.tensor([4, 20]), **negatives}
        losses = [m.calculate_loss(batch) for m in (fixed, learned)]
        assert_close(*losses)
        losses[0].backward()
        assert fixed.codebook.codewords.grad.abs().sum() > 0


@pytest.mark.parametrize("loss_type", ["CE", "SSM"])
@pytest.mark.parametrize("score", ["dot", "cosine"])
@pytest.mark.parametrize("model", QUANTIZED)
def test_dense_items_add_their_vectors_to_the_sum_of_codewords(model: str, score: str, loss_type: str) -> None:
    network = build_model(model, item_codes="svd", dense_items=7, score=score, loss_type=loss_type, **QUANTIZED[model])
    items, network = network.item_embedding, network.double().eval()
    items.weight[1:] = torch.randint(4, items.weight[1:].shape)
    dense_ids = torch.tensor([1, 4, 5, 9, 20, 28, 29])
    items.slots[dense_ids] = torch.arange(7, dtype=torch.int32)
    torch.nn.init.normal_(items.dense)
    plain = torch.stack([book.codewords[:, :4] for book in network.codebooks().values()])  # (1 or 2, B, 4, D)
    codes = items.weight.long().view(30, len(plain), -1)
    sums = [sum(book[b, codes[:, i, b]] for b in range(len(book))) for i, book in enumerate(plain)]
    vectors = torch.zeros_like(sums[0]).index_copy(0, dense_ids, items.dense)
    stream, target = sums[0] + vectors, sums[-1] + vectors
    view = network.view(network.embed(torch.arange(30)))
    assert_close(view.stream, stream)
    unit = target if score == "dot" else torch.nn.functional.normalize(target, dim=1)
    assert_close(view.target, unit)
    expected = network.query(network.encoder.encode_last(network.history(BATCH), view).hidden) @ unit.t()
    some = torch.tensor([[4, 4, 2], [9, 1, 29]])
    assert_close(network.full_sort_predict(BATCH)[:, 1:], expected[:, 1:])
    assert_close(network.item_scorer(BATCH)(some[1]), expected[:, some[1]])
    assert_close(network.score_candidates(BATCH, some), expected.gather(1, some))
    stored = network.item_store()
    assert_close(stored.view(torch.arange(29)).stream, stream[1:])
    assert_close(stored.targets.rows(torch.arange(29)), target[1:])
    batch = {**BATCH, "item_id": torch.tensor([4, 20]), "neg_item_id": torch.tensor([6, 9])}
    network.calculate_loss(batch).backward()
    assert (items.dense.grad[[1, 4]] != 0).all() and (loss_type != "CE" or (items.dense.grad != 0).all())


@pytest.mark.parametrize("model", QUANTIZED)
def test_no_parameter_has_a_row_for_each_item(model: str) -> None:
    network = build_model(model, n_items=997, item_codes="svd", **QUANTIZED[model])
    assert not [name for name, p in network.named_parameters() if 997 in p.shape]
    assert isinstance(network.item_embedding, FixedCodes) and network.item_embedding.weight.dtype == torch.uint8


def test_items_with_equal_codes_have_equal_scores_and_win_nothing(tmp_path: Path) -> None:
    for protocol in ("full_ranking", "paper"):
        config = tiny_config(tmp_path, protocol, "LISABase", **SMALL, item_codes="svd")
        train_data, _, test = tiny_loaders(config)
        network = config.model_class(config, train_data.dataset)
        network.item_embedding.weight[1:] = 1
        metrics, tied, _ = evaluate_targets(network.eval(), test, config)
        assert tied == 1 and network.items_with_equal_codes() == 30
        assert metrics["hit@5"] < 0.7  # a random order of 30 or 13 items: 0.17 or 0.38 are expected


@pytest.mark.parametrize(("n_codebooks", "n_codewords"), [(2, 4), (8, 256), (9, 256)])
def test_items_with_equal_codes_are_counted(n_codebooks: int, n_codewords: int) -> None:
    network = build_model("LISABase", item_codes="svd", n_codebooks=n_codebooks, n_codewords=n_codewords)
    codes = network.item_embedding.weight[1:]
    codes.copy_(torch.randint(2, codes.shape) * (n_codewords - 1))
    codes[3], codes[4] = codes[5], codes[6]
    rows = [tuple(row) for row in codes.tolist()]
    assert network.items_with_equal_codes() == sum(rows.count(row) > 1 for row in rows) >= 4


@pytest.mark.parametrize("model", QUANTIZED)
@pytest.mark.parametrize(("source", "n_dense"), [("svd", 0), ("svd", 5), ("kmeans", 0)])
def test_a_run_keeps_its_codes_in_checkpoint_export_and_new_items(
    model: str, source: str, n_dense: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {**QUANTIZED[model], "item_codes": source, "dense_items": n_dense}
    if source == "kmeans":
        settings["item_codes_checkpoint"] = str(train("Transformer", tmp_path))
    checkpoint = train(model, tmp_path, **settings)
    config, network, _, training, *_ = load_data_and_model(checkpoint)
    trained = network.item_embedding.weight.clone()
    set_item_codes(network, config, training.dataset)
    assert torch.equal(network.item_embedding.weight, trained)
    if n_dense:
        with caplog.at_level("INFO"):
            set_item_codes(network, {**config.final_config_dict, "dense_items": 31}, training.dataset)
        assert "dense_items is 31, above the 30 items: each has a vector" in caplog.text
        counts = torch.as_tensor(training.dataset.item_counts)
        dense_ids = (network.item_embedding.slots < n_dense).nonzero().squeeze(1)
        assert (network.item_embedding.dense != 0).all() and len(network.item_embedding.dense) == n_dense
        assert counts[dense_ids].min() >= counts[1:].sort().values[-n_dense]
    export(checkpoint, tmp_path / "export")
    expected = Recommender(load_bundle(checkpoint)).recommend([["i1", "i2"]], 5)[0]
    assert Recommender.load(tmp_path / "export").recommend([["i1", "i2"]], 5)[0] == expected
    (tmp_path / "new.csv").write_text("user_id,item_id\nu,i1\nu,fresh\nu,i2\n")
    arguments = [f"--export={tmp_path / 'export'}", f"--output={tmp_path / 'more'}", f"--input={tmp_path / 'new.csv'}"]
    assert main(["add-items", *arguments]) == 0
    more = Recommender.load(tmp_path / "more").recommend([["i1", "i2"]], 40, filter_seen=False)[0]
    scores = dict(zip(more.items, more.scores, strict=True))
    assert "fresh" in scores and scores[expected.items[0]] == expected.scores[0]
    if model != "Transformer":  # the others have sessions
        session = Recommender.load(tmp_path / "export").start(["i1", "i2"])
        assert session.recommend(5).items == expected.items
    message = "train LISABase with the same item_codes instead"
    if model == "Transformer":
        with pytest.raises(UsageError, match=f"has item_codes {source}: {message}"):
            migrate(checkpoint, tmp_path / "x.pth", {})
    assert f"item codes: {source}, 30 items" in caplog.text


def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    settings = {"item_codes": "svd", "checkpoint_dir": str(tmp_path / "a")}
    whole = load_data_and_model(train("LISABase", tmp_path, **settings))[1]
    settings |= {"checkpoint_dir": str(tmp_path / "b"), "stopping_step": 5}
    half = train("LISABase", tmp_path, **settings | {"epochs": 1})
    resumed = load_data_and_model(train("LISABase", tmp_path, **settings, resume=str(half)))[1]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def dataset_of(folder: Path) -> Any:
    return tiny_loaders(tiny_config(folder, model="LISABase", **SMALL))[0].dataset


def test_svd_reads_training_interactions_only(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path)
    store = dataset.histories
    matrix = np.zeros((len(store.users), dataset.item_num))
    for user, (first, end) in enumerate(zip(store.offsets, store.offsets[1:], strict=False)):
        matrix[user, store.items[first : end - 2]] = 1  # the last two are held out
    known = dataset.item_counts[1:] > 0
    _, scale, rows = np.linalg.svd(matrix / np.sqrt(matrix.sum(1, keepdims=True).clip(1) * matrix.sum(0).clip(1)))
    np.testing.assert_allclose(np.abs(rows[0]), np.sqrt(matrix.sum(0) / matrix.sum()), atol=1e-9)  # frequency alone
    expected = (rows.T * np.pad(scale, (0, max(0, len(rows) - len(scale)))))[1:, 1:21][known]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    vectors = svd_vectors(dataset, 20, seed=0)
    np.testing.assert_allclose(vectors[known] @ vectors[known].T, expected @ expected.T, atol=1e-4)
    assert (vectors[~known] == 0).all()


def test_mapped_data_keep_their_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_made, original = 0, svd_vectors

    def counted(*arguments: Any) -> Any:
        nonlocal n_made
        n_made += 1
        return original(*arguments)

    def codes(**settings: Any) -> torch.Tensor:
        config = tiny_config(tmp_path, model="LISABase", **SMALL | {"item_codes": "svd"} | settings)
        dataset = tiny_loaders(config)[0].dataset
        set_item_codes(network := config.model_class(config, dataset), config, dataset)
        weight: torch.Tensor = network.item_embedding.weight
        return weight

    expected = codes()
    monkeypatch.setattr(item_codes, "svd_vectors", counted)
    mapped = {"memory_map": True, "dataset_save_path": str(tmp_path / "mapped")}
    assert torch.equal(codes(**mapped), expected) and torch.equal(codes(**mapped), expected) and n_made == 1
    (file,) = (tmp_path / "mapped").glob("svd-*.npz")
    content = bytearray(file.read_bytes())
    content[200] ^= 1
    for damaged in (b"no array", content[:-30], b"", content):
        file.write_bytes(damaged)
        assert torch.equal(codes(**mapped), expected)
    right = np.load(file)["codes"].astype(int)
    for wrong in (right[1:], right - 1, right + 1, right / 2):
        np.savez(file, codes=wrong)
        assert torch.equal(codes(**mapped), expected)
    assert n_made == 9
    others: list[dict[str, Any]] = [{"seed": 1}, {"eval_args": {"split": {"RS": [5, 2, 3]}}}, {"n_codewords": 9}]
    assert all(len(codes(**mapped | other)) == 31 for other in others) and n_made == 12


def test_items_without_training_interactions_get_codes_of_their_own(tmp_path: Path) -> None:
    rows = [(f"u{u}", f"i{(7 * u + t) % 60}", t) for u in range(60) for t in range(6)]
    rows += [(f"u{u}", f"new{u}", 9) for u in range(40)]  # test items
    write_interactions(tmp_path, "tiny", rows)
    dataset = dataset_of(tmp_path)
    new = dataset.item_counts[1:] == 0
    assert new.sum() == 40
    known = item_codes.of_all_items(np.arange(120).reshape(60, 2), ~new, seed=0)
    assert np.array_equal(known[~new], np.arange(120).reshape(60, 2))
    assert len(np.unique(known[new], axis=0)) > 30 and (known[new] % 2 == [0, 1]).all()


def test_residual_kmeans_finds_sums_of_centres() -> None:
    rng = np.random.default_rng(0)
    books = rng.normal(size=(2, 4, 8)).astype(np.float32) * np.array([10, 1], np.float32)[:, None, None]
    chosen = rng.integers(4, size=(500, 2))
    vectors = books[0, chosen[:, 0]] + books[1, chosen[:, 1]]
    codes = item_codes.residual_kmeans(vectors, 2, 8, seed=0)
    left = vectors - np.stack([vectors[codes[:, 0] == code].mean(0) for code in range(8)])[codes[:, 0]]
    assert np.square(left).mean() < 0.1 * np.square(vectors).mean()
    left -= np.stack([left[codes[:, 1] == code].mean(0) for code in range(8)])[codes[:, 1]]
    assert np.square(left).mean() < 0.02 * np.square(vectors).mean()


def test_main_directions_leave_out_noise_and_lengths() -> None:
    rng = np.random.default_rng(0)
    signal = rng.normal(size=(300, 4)) @ rng.normal(size=(4, 20))
    signal -= signal.mean(0)
    vectors = (signal * rng.uniform(0.1, 10, size=(300, 1))).astype(np.float32)
    directions = item_codes.main_directions(vectors, 4)
    assert directions.shape == (300, 4)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1, rtol=1e-5)
    centred = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    centred -= centred.mean(0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    np.testing.assert_allclose(directions @ directions.T, centred @ centred.T, atol=1e-4)
    noisy = item_codes.main_directions(vectors + rng.normal(size=vectors.shape).astype(np.float32) * 1e-3, 4)
    np.testing.assert_allclose(noisy @ noisy.T, directions @ directions.T, atol=0.1)


ITEMS = [f"i{n}" for n in range(30)]
GOOD = np.arange(60).reshape(30, 2) % 8


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", None, "'.*a.npy' cannot be read"),
        ("a.npy", GOOD[:29], r"has int64 \(29, 2\), it must have a row for each of 30 items, .*: 2 below 8"),
        ("a.npy", GOOD[:, :1], r"has int64 \(30, 1\)"),
        ("a.npy", GOOD.astype(np.float32), r"has float32 \(30, 2\)"),
        ("a.npy", GOOD + 1, "2 below 8"),
        ("a.npy", GOOD - 1, "whole numbers from 0 on"),
        ("a.npz", {"codes": GOOD}, "cannot be read .*item_id.*: a .npy holds whole numbers, a .npz codes and item_id"),
        ("a.npz", {"codes": GOOD, "item_id": [*ITEMS[1:], "other"]}, "lacks 1 of 30 items, such as i0"),
        ("a.npz", {"codes": GOOD, "item_id": ITEMS[1:]}, "row for each of 29 items"),
        ("a.npz", {"codes": GOOD, "item_id": [*ITEMS[1:], "i1"]}, "the id 'i1' appears twice"),
    ],
)
def test_wrong_files_are_refused(name: str, content: Any, message: str, tmp_path: Path) -> None:
    if content is not None:
        write = np.save if isinstance(content, np.ndarray) else lambda file, arrays: np.savez(file, **arrays)
        write(tmp_path / name, content)  # type: ignore[operator]  # one of two functions
    with pytest.raises(UsageError, match=message):
        train("LISABase", tmp_path, item_codes=str(tmp_path / name))


def test_a_file_gives_each_item_its_codes(tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(30)
    np.savez(tmp_path / "a.npz", codes=GOOD[order], item_id=np.array(ITEMS)[order])
    _, network, dataset, *_ = load_data_and_model(train("LISABase", tmp_path, item_codes=str(tmp_path / "a.npz")))
    numbers = [int(raw[1:]) for raw in dataset.field2id_token["item_id"][1:]]
    assert network.item_embedding.weight[1:].tolist() == GOOD[numbers].tolist()


def test_memory_counts_no_table(tmp_path: Path) -> None:
    n_items = free_memory() // 128  # a row takes 16 * 16 bytes
    with pytest.raises(UsageError, match="lower hidden_size .of .* items"):
        check_memory(tiny_config(tmp_path, model="LISABase", **SMALL), n_items)
    check_memory(tiny_config(tmp_path, model="LISABase", **SMALL, item_codes="svd"), n_items)
