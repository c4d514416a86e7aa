import copy
import pickle
from typing import Any

import pytest
import torch
from recbole.data.interaction import Interaction

from recbole_lisa.layers.sequence_encoder import Sequences
from recbole_lisa.model.attentive_recommender import AttentiveRecommender
from tests.helpers import all_valid, assert_close, assert_close_with_gradients
from tests.model.build import MODEL_NAMES, build_model, last_position_batch, loss_value, random_batch

# Modes of LISA, and two layers of every model. A mode is tested with two layers unless it says otherwise.
MODES: dict[str, dict[str, Any]] = {
    "no decay": {"histogram_decay": 0},
    "learnable": {"histogram_decay": "learnable"},
    "time": {"histogram_decay": "time"},
    "spread": {"histogram_decay": "spread"},
    "bidirectional": {"histogram_decay": 0, "bidirectional": True},
    "paper": {
        **{"codebook_projection": "shared", "codebook_encoding": "parallel", "codebook_similarity": "dot"},
        "histogram_decay": 0,
    },
    "euclidean": {"codebook_similarity": "euclidean"},
    "three layers": {"n_layers": 3},
    "local window": {"local_window": 4, "local_heads": 2},
    "exact values": {"histogram_values": "exact", "n_codebooks": 4},
    "exact values, one layer": {"histogram_values": "exact", "n_codebooks": 4, "n_layers": 1},
    "local window, one layer": {"local_window": 4, "n_layers": 1},
}
# Forms of the encoder, for every model.
FORMS: dict[str, dict[str, Any]] = {
    "pre-norm": {"block": "pre_norm", "hidden_act": "swiglu", "positions": "none", "conv_width": 4, "n_layers": 2},
    "gated": {"block": "gated", "positions": "from_end", "attention_gate": True, "n_layers": 1},
    "convolution": {"conv_width": 3, "positions": "from_end", "attention_gate": True, "drop_path": 0.2, "n_layers": 2},
    "one layer": {"block": "gated", "conv_width": 2, "n_layers": 1},
}
LISA_MODELS = ("LISABase", "LISASoft", "LISAMini")
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"{name}-{n}": (name, {"n_layers": n}) for name in MODEL_NAMES for n in (1, 2)},
    **{f"{name}-{mode}": (name, {"n_layers": 2} | MODES[mode]) for name in LISA_MODELS for mode in MODES},
    **{f"LISASoft-embeddings-{n}": ("LISASoft", {"n_layers": n, "item_input": "embeddings"}) for n in (1, 2)},
    "LISASoft-embeddings-local": (
        "LISASoft",
        {"item_input": "embeddings", "local_window": 4, "score": "cosine", "n_layers": 1},
    ),
    **{f"{name}-{form}": (name, settings) for name in MODEL_NAMES for form, settings in FORMS.items()},
}
every_model = pytest.mark.parametrize("name", MODEL_NAMES)
every_case = pytest.mark.parametrize("case", CASES)
LOSSES = ("BCE", "CE", "BPR", "gBCE", "SSM")


@every_model
def test_item_init_std_and_scale_embedding_set_the_size_of_embeddings_and_scores(name: str) -> None:
    sizes = {"hidden_size": 64, "inner_size": 64, "n_items": 2000}
    model = build_model(name, item_init_std=0.02, scale_embedding=False, **sizes)
    for weight in (model.item_embedding.weight[1:], model.encoder.position_embedding.weight):
        assert abs(weight.std().item() - 0.02) < 1e-3
    assert (model.item_embedding.weight[0] == 0).all()
    items, scaled = torch.arange(5), build_model(name, **sizes)
    assert torch.equal(model.embed(items), model.item_embedding(items))
    assert torch.equal(scaled.embed(items), 8 * scaled.item_embedding(items))


@pytest.mark.parametrize("name", ["Transformer", *LISA_MODELS])
def test_cosine_scores_are_cosines_by_the_temperature_in_training_and_evaluation(name: str) -> None:
    settings = {"score": "cosine", "score_temperature": 0.2, "hidden_dropout_prob": 0.0, "loss_type": "CE"}
    model, batch = build_model(name, **settings), random_batch(5, 11, 30)
    history = model.history(batch)
    view = model.view(model.embed(torch.arange(30)))
    hidden = model.encoder.encode_non_padding(history, view).hidden
    targets = view.stream if name in ("Transformer", "LISABase") else view.target
    cosines = torch.nn.functional.cosine_similarity(hidden.unsqueeze(1), targets[1:], dim=-1) / 0.2  # (M, V - 1)
    expected = torch.nn.functional.cross_entropy(cosines, batch["target_id_list"][history.valid] - 1)
    loss = model.calculate_loss(batch)
    assert_close(loss[0] if isinstance(loss, tuple) else loss, expected)
    last = history.valid.sum(dim=1).cumsum(0) - 1
    scores = model.eval().full_sort_predict(batch)
    assert_close(scores[:, 1:], cosines[last])
    assert_close(model.score_candidates(batch, batch["item_id"].unsqueeze(1))[:, 0], model.predict(batch))
    assert_close(model.item_scorer(batch)(torch.arange(1, 30)), scores[:, 1:])


@every_model
def test_predict_is_a_column_of_full_sort_predict(name: str) -> None:
    model, batch = build_model(name).eval(), Interaction(random_batch(5, 11, 30))
    scores = model.full_sort_predict(batch)
    assert scores.shape == (5, 30)
    assert_close(model.predict(batch), scores[torch.arange(5), batch["item_id"]])
    candidates = torch.randint(1, 30, (5, 7))
    assert_close(model.score_candidates(batch, candidates), scores.gather(1, candidates))


@pytest.mark.parametrize(
    ("case", "loss_type"),
    [*((f"{name}-1", loss) for name in MODEL_NAMES for loss in LOSSES), *((case, "BCE") for case in CASES)],
)
def test_every_parameter_learns_in_both_supervisions(case: str, loss_type: str) -> None:
    name, settings = CASES[case]
    model, batch = build_model(name, loss_type=loss_type, **settings), random_batch(6, 9, 30, n_negatives=3)
    for kind in [last_position_batch(batch), *([] if "bidirectional" in settings else [batch])]:
        model.zero_grad()
        loss = loss_value(model.calculate_loss(kind))
        assert loss.shape == ()
        loss.backward()
        gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
        for key, gradient in gradients.items():
            assert gradient is not None, f"{key} has no gradient"
            assert torch.isfinite(gradient).all(), key
        assert (gradients["item_embedding.weight"][0] == 0).all(), "the padding row must stay zero"
        for layer in range(settings["n_layers"] if name in LISA_MODELS else 0):
            for part in ("query", "value", "codebook.codewords"):
                assert gradients[f"encoder.attentions.{layer}.{part}"].abs().sum() > 0, f"{part} of layer {layer}"


@every_model
@pytest.mark.parametrize("settings", [{"n_layers": 1}, {"n_layers": 2}, *FORMS.values()], ids=["1", "2", *FORMS])
def test_hidden_states_are_causal_by_perturbation(name: str, settings: dict[str, Any]) -> None:
    model = build_model(name, **settings).eval()
    if not all(attention.is_causal for attention in model.encoder.attentions):
        pytest.skip("bidirectional by declaration")
    view, valid = model.item_view(), all_valid(2, 13)
    items, gaps = torch.randint(1, 30, (2, 13)), torch.ones(2, 13)
    before = model.encoder.encode_non_padding(Sequences(items, valid, gaps), view).hidden.view(2, 13, -1)
    for t in range(12):
        changed = items.clone()
        changed[:, t + 1] = changed[:, t + 1] % 29 + 1
        after = model.encoder.encode_non_padding(Sequences(changed, valid, gaps), view).hidden.view(2, 13, -1)
        assert_close(after[:, : t + 1], before[:, : t + 1])
        assert not torch.allclose(after[:, t + 1], before[:, t + 1])


def build_case(case: str, **settings: Any) -> AttentiveRecommender:
    name, own = CASES[case]
    return build_model(name, **own, **settings).double().eval()


def double_batch(n: int, length: int) -> tuple[dict[str, torch.Tensor], Sequences]:
    batch = random_batch(n, length, 30)
    batch["time_gap_list"] = batch["time_gap_list"].double()
    valid = torch.arange(length) < batch["item_length"].unsqueeze(1)
    return batch, Sequences(batch["item_id_list"], valid, batch["time_gap_list"])


@every_case
def test_last_and_non_padding_hidden_states_are_those_of_the_whole_batch(case: str) -> None:
    model = build_case(case)
    batch, history = double_batch(6, 13)
    view, n_layers = model.view(model.embed(torch.arange(30))), len(model.encoder.blocks)
    stream, vectors, _ = model.encoder._before_last_layer(history, view)
    read = model.encoder._input_of(-1, history, view, vectors)
    attended = model.encoder.attentions[-1](read, history.valid, history.gaps)
    whole = model.encoder.final_norm(model.encoder.blocks[-1](stream, attended))
    assert_close(model.encoder.encode_last(history, view).hidden, whole[torch.arange(6), batch["item_length"] - 1])
    non_padding, inputs = model.encoder.encode_non_padding(history, view)
    codes_only = case.startswith("LISA") and model.encoder.has_one_coded_layer
    assert len(inputs) == (0 if codes_only else n_layers)
    assert_close_with_gradients(non_padding, whole[history.valid], list(model.parameters()))


@every_case
@torch.no_grad()
def test_scores_do_not_depend_on_padding_or_neighbours(case: str) -> None:
    model = build_case(case)
    batch, _ = double_batch(4, 11)
    scores = model.full_sort_predict(Interaction(batch))
    for i in range(4):
        length = int(batch["item_length"][i])
        for spare in (0, 9):
            columns = {key: batch[key][i : i + 1, :length] for key in ("item_id_list", "time_gap_list")}
            columns = {key: torch.nn.functional.pad(x, (0, spare), value=7) for key, x in columns.items()}
            assert_close(model.full_sort_predict(columns | {"item_length": torch.tensor([length])})[0], scores[i])


@every_model
def test_a_long_sequence_an_unknown_loss_and_missing_negatives_are_named(name: str) -> None:
    model = build_model(name)
    with pytest.raises(ValueError, match="sequence of 25 items, but the model has 24 positions"):
        model.full_sort_predict(random_batch(2, 25, 30))
    batch = random_batch(2, 5, 30)
    del batch["neg_target_id_list"]
    with pytest.raises(ValueError, match="loss_type BCE needs negatives"):
        model.calculate_loss(batch)
    with pytest.raises(ValueError, match="BCE, BPR, gBCE, SSM, CE, got 'bce'"):
        build_model(name, loss_type="bce")


@pytest.mark.parametrize("name", ["LISABase", "LISAMini"])
@pytest.mark.parametrize("n", [1, 5])
def test_items_of_equal_codes_have_equal_scores_to_the_bit(name: str, n: int) -> None:
    """A matrix product with their vectors rounds them differently, on processors with AVX2 at 5 or 31 columns."""
    model = build_model(name, n_items=200, hidden_size=64, n_codebooks=2).eval()
    *_, targets = model.item_store().sets()
    assert len(targets.codes.unique(dim=0)) <= 36
    numbers = targets.codes.unique(dim=0, return_inverse=True)[1]
    score = model.item_scorer(random_batch(n, 9, 200))
    every = score(torch.arange(1, 200))
    for number in numbers.unique().tolist():
        items = 1 + (numbers == number).nonzero().squeeze(1)
        expected = every[:, items[:1] - 1]
        assert torch.equal(every[:, items - 1], expected.expand(-1, len(items)))
        assert torch.equal(score(items), expected.expand(-1, len(items)))


@every_model
def test_the_cached_item_table_is_used_and_never_stale(name: str) -> None:
    model, batch = build_model(name).eval(), random_batch(3, 9, 30)
    assert model.item_view() is model.item_view()

    def edit_in_place() -> None:
        with torch.no_grad():
            model.item_embedding.weight[1:].mul_(1.5)

    def edit_data_and_call_eval() -> None:
        model.item_embedding.weight.data[1:].add_(0.3)
        model.eval()

    def load() -> None:
        model.load_state_dict(build_model(name).state_dict())

    def step() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        loss_value(model.calculate_loss(batch)).backward()
        optimizer.step()

    def replace() -> None:
        model.item_embedding.weight = torch.nn.Parameter(torch.randn_like(model.item_embedding.weight))

    for change in (edit_in_place, edit_data_and_call_eval, load, step, replace):
        before = model.full_sort_predict(batch).detach()
        change()
        after = model.full_sort_predict(batch).detach()
        assert not torch.allclose(before, after), change.__name__
        fresh = build_model(name).eval()
        fresh.load_state_dict(model.state_dict())
        assert_close(after, fresh.full_sort_predict(batch).detach())


@every_model
def test_a_state_dict_of_0_1_0_is_loaded(name: str) -> None:
    model, other, batch = build_model(name).eval(), build_model(name).eval(), random_batch(3, 9, 30)
    old = {key.removeprefix("encoder."): value for key, value in model.state_dict().items()}
    assert {"position_embedding.weight", "blocks.0.attention_norm.weight", "item_embedding.weight"} <= set(old)
    other.load_state_dict(old)
    assert torch.equal(other.full_sort_predict(batch), model.full_sort_predict(batch))
    parent = torch.nn.ModuleDict({"inner": other})
    parent.load_state_dict({f"inner.{key}": value for key, value in old.items()})
    with pytest.raises(RuntimeError, match=r"Missing key.*encoder.position_embedding.weight"):
        other.load_state_dict({key: value for key, value in old.items() if key != "position_embedding.weight"})


@every_model
def test_models_are_copied_and_pickled_with_the_cache_in_use(name: str) -> None:
    model, batch = build_model(name).eval(), random_batch(3, 9, 30)
    scores = model.full_sort_predict(batch)
    assert_close(copy.deepcopy(model).full_sort_predict(batch), scores)
    assert_close(pickle.loads(pickle.dumps(model)).full_sort_predict(batch), scores)


@every_model
def test_bfloat16_autocast_trains_and_scores(name: str) -> None:
    model, batch = build_model(name), random_batch(4, 11, 30)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_value(model.calculate_loss(batch))
    loss.backward()
    assert torch.isfinite(loss)
    model.eval()
    exact = model.full_sort_predict(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model.full_sort_predict(batch)
    assert torch.isfinite(half).all()
    assert (half.float() - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize(
    ("settings", "is_logged"), [({}, False), ({"hidden_act": "gelu"}, True), ({"drop_path": 0.1}, True)], ids=str
)
def test_a_fallback_is_logged(settings: dict[str, Any], is_logged: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        build_model("LISASoft", **settings)
    assert ("feed-forward layers: torch's modules" in caplog.text) == is_logged


@pytest.mark.parametrize("name", ["LISABase", "LISAMini"])
def test_hard_models_keep_small_integer_codes_only(name: str) -> None:
    view = build_model(name, n_codewords=200).eval().item_view()
    assert view.quantized.codes.dtype == torch.uint8
    assert view.quantized.codes.shape == (30, 3)
    assert view.quantized.assignment.numel() == 0


@pytest.mark.parametrize(("name", "codebook"), [("LISABase", "codebook"), ("LISAMini", "target_codebook")])
def test_items_with_equal_codes_are_counted(name: str, codebook: str) -> None:
    model = build_model(name, n_items=8, n_codebooks=1, n_codewords=30, n_target_codewords=30)
    with torch.no_grad():  # seven items on the axes; items 2, 3 and 5 are the same, and so are 6 and 7
        model.item_embedding.weight.copy_(torch.eye(16)[torch.tensor([0, 1, 2, 2, 3, 2, 4, 4])])
    same = getattr(model, codebook)(model.embed(torch.arange(1, 8))).codes.flatten().tolist()
    assert model.items_with_equal_codes() == sum(same.count(code) > 1 for code in same) >= 5
    assert build_model("LISASoft").items_with_equal_codes() == 0
    assert build_model("Transformer").items_with_equal_codes() == 0


@every_model
def test_what_each_model_scores_against(name: str) -> None:
    model = build_model(name)
    x = model.embed(torch.arange(30))
    view = model.view(x)
    targets = {"LISABase": "codebook", "LISAMini": "target_codebook"}
    assert_close(view.target, getattr(model, targets[name])(x).reconstruction if name in targets else x)
    assert_close(view.stream, model.codebook(x).reconstruction if name in LISA_MODELS else x)


def test_time_decay_reads_the_gaps_in_units_of_the_data_set() -> None:
    model = build_model("LISASoft", histogram_decay="time").eval()
    assert model.time_unit.item() == 2.0
    batch = random_batch(3, 9, 30)
    with_gaps = model.full_sort_predict(batch)
    doubled = model.full_sort_predict(batch | {"time_gap_list": batch["time_gap_list"] * 2})
    assert not torch.allclose(with_gaps, doubled)
    without = {k: v for k, v in batch.items() if k != "time_gap_list"}
    with pytest.raises(ValueError, match="needs time_gaps"):
        model.full_sort_predict(without)


RESTARTS = {"codebook_init": "data", "restart_dead_codewords": True, "n_layers": 3, "n_codewords": 8}


@pytest.mark.parametrize("name", LISA_MODELS)
def test_codebooks_start_from_the_first_batch_once_also_after_a_resume(name: str) -> None:
    model, batch = build_model(name, **RESTARTS).train(), random_batch(16, 24, 30)
    before = [layer.quantizer.codewords.clone() for layer in model.encoder.layers()]
    model.calculate_loss(batch)
    started = [layer.quantizer.codewords.clone() for layer in model.encoder.layers()]
    assert not any(torch.equal(x, y) for x, y in zip(before, started, strict=True))
    usage = model.eval().layer_usage(batch)
    assert all((use.perplexity > 3).all() for _, use in usage.values())
    resumed = build_model(name, **RESTARTS).train()
    resumed.load_state_dict(model.state_dict())
    resumed.calculate_loss(batch)
    for layer, codewords in zip(resumed.encoder.layers(), started, strict=True):
        assert torch.equal(layer.quantizer.codewords, codewords)
    assert int(resumed.n_batches) == 2


def test_unused_codewords_restart_every_twenty_batches() -> None:
    model, batch = build_model("LISASoft", restart_dead_codewords=True, n_layers=2).train(), random_batch(16, 24, 30)
    layer = model.encoder.layers()[1]
    for number, moves in ((1, False), (19, False), (20, True)):
        with torch.no_grad():
            layer.quantizer.codewords[0, 1:] = -layer.quantizer.codewords[0, :1]
        model.n_batches.fill_(number)
        before = layer.quantizer.codewords.clone()
        model.calculate_loss(batch)
        assert torch.equal(before, layer.quantizer.codewords) != moves


def test_all_processes_start_with_the_codebooks_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process has another batch; it adds zeros to what the first one gives."""
    first, second, given = build_model("LISASoft", **RESTARTS), build_model("LISASoft", **RESTARTS), []
    second.load_state_dict(first.state_dict())
    for layer in first.encoder.layers():
        layer.sum_over_processes = lambda x: given.append(x) or x
    first.train().calculate_loss(random_batch(16, 24, 30))
    for layer in second.encoder.layers():
        layer.sum_over_processes = lambda x: x + given.pop(0)
    monkeypatch.setattr("recbole_lisa.model.lisa_recommender.is_first", lambda: False)
    second.train().calculate_loss(random_batch(7, 11, 30))
    for (name, x), y in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(x, y), name
