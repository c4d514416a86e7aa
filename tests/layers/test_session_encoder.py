"""A kept state equals the encoder over the whole history, however long it is and however the state came about."""

from typing import Any

import pytest
import torch
from torch import Tensor

from recbole_lisa.attention import Attention, build_attention
from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.layers.blocks import BLOCKS
from recbole_lisa.layers.sequence_encoder import ItemView, Sequences
from recbole_lisa.layers.session_encoder import EncoderState, SessionEncoder
from recbole_lisa.ops.quantize import Quantized
from tests.helpers import all_valid, assert_close

D, U, POSITIONS = 8, 13, 6
LISA: dict[str, Any] = {"n_codebooks": 2, "n_codewords": 4}
FORMS: dict[str, dict[str, Any]] = {
    "hard": {"mechanism": "lisa"} | LISA,
    "hard-no-decay": {"mechanism": "lisa", "decay": 0} | LISA,
    "soft": {"mechanism": "lisa", "hard": False} | LISA,
    "learnable": {"mechanism": "lisa", "decay": "learnable"} | LISA,
    "time": {"mechanism": "lisa", "decay": "time"} | LISA,
    "spread": {"mechanism": "lisa", "decay": "spread"} | LISA,
    "local": {"mechanism": "lisa", "local_window": 4} | LISA,
    "local-soft": {"mechanism": "lisa", "local_window": 30, "hard": False} | LISA,
    "exact": {"mechanism": "lisa", "histogram_values": "exact"} | LISA,
    "exact-soft": {"mechanism": "lisa", "histogram_values": "exact", "hard": False, "local_window": 3} | LISA,
    "linear": {"mechanism": "linear"},
    "grela": {"mechanism": "grela", "n_heads": 2},
    "lru": {"mechanism": "lru"},
    "mamba2": {"mechanism": "mamba2", "n_heads": 2, "state_size": 3},
}
every_form = pytest.mark.parametrize("form", FORMS)


class Encoder(SessionEncoder):
    def __init__(self, form: str, n_layers: int = 1, max_length: int = POSITIONS, *, encoder: Any = None, **more: Any):
        settings = FORMS[form] | more if form in FORMS else more
        name = settings.pop("mechanism", form)

        def build(_: int) -> Attention:
            return build_attention(name, hidden_size=D, max_length=max_length, **settings)

        sizes: dict[str, Any] = {"n_layers": n_layers, "hidden_size": D, "max_length": max_length, "inner_size": D}
        sizes |= {"dropout": 0.1, "hidden_act": "relu", "layer_norm_eps": 1e-5}
        super().__init__(build, **sizes | (encoder or {}))
        self.eval().requires_grad_(False)

    def view(self, x: Tensor) -> ItemView:
        """Items of the encoder's first codebook, or the vectors themselves; hard codes without assignments."""
        codebook = getattr(self.attentions[0], "codebook", None)
        if not isinstance(codebook, Codebook):
            return ItemView(x, x, None)
        codes, assignment, y = codebook(x)
        return ItemView(y, y, Quantized(codes, assignment[:, :0] if codebook.hard else assignment, y))


def unbounded(encoder: Encoder, form: str, n_layers: int, length: int, settings: Any = None) -> Encoder:
    """The same encoder with `length` positions of its own, of which all beyond the table repeat its last row."""
    longer = Encoder(form, n_layers, length, encoder=settings)
    weights = dict(encoder.state_dict())
    table = weights.pop("position_embedding.weight", None)
    if table is not None:
        weights["position_embedding.weight"] = torch.cat([table, table[-1:].expand(length, -1)])[:length]
    longer.load_state_dict(weights)
    return longer


def row(view: ItemView, ids: Tensor) -> ItemView:
    quantized = view.quantized and Quantized(*(column[ids] for column in view.quantized))
    return ItemView(view.stream[ids], view.target[ids], quantized)


@every_form
@pytest.mark.parametrize("n_layers", [1, 2])
def test_steps_equal_the_whole_history_and_the_state_after_it(form: str, n_layers: int) -> None:
    encoder = Encoder(form, n_layers).double()
    compare_steps(encoder, unbounded(encoder, form, n_layers, 17).double(), timed=form == "time")


@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("attention_gate", [False, True], ids=["plain", "gate"])
@pytest.mark.parametrize("conv_width", [0, 3])
@pytest.mark.parametrize("positions", ["absolute", "none"])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("form", ["hard", "soft", "local", "linear"])
def test_every_form_of_the_encoder_steps_as_the_whole_history(
    form: str, block: str, positions: str, conv_width: int, attention_gate: bool, n_layers: int
) -> None:
    settings: dict[str, Any] = {"block": block, "positions": positions, "conv_width": conv_width}
    settings |= {"attention_gate": attention_gate, "hidden_act": "swiglu"}
    encoder = randomised(Encoder(form, n_layers, encoder=settings))
    compare_steps(encoder, unbounded(encoder, form, n_layers, 17, settings).double())


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("form", ["hard", "soft", "learnable"])
def test_one_layer_of_codes_steps_with_positions_from_the_end(form: str, block: str) -> None:
    encoder = randomised(Encoder(form, encoder={"block": block, "positions": "from_end", "attention_gate": True}))
    view, items = encoder.view(torch.randn(U, D, dtype=torch.float64)), torch.randint(U, (2, 11))
    state = encoder.init_state(2)
    for t in range(11):
        state = encoder.step(state, row(view, items[:, t]))
        history = Sequences(items[:, : t + 1], all_valid(2, t + 1))
        assert_close(state.hidden, encoder.encode_last_of_any_length(history, view).hidden)
        assert_close(encoder.state_of(history, view).hidden, state.hidden)


@pytest.mark.parametrize(
    ("form", "n_layers", "more"), [("hard", 2, {}), ("linear", 1, {}), ("local", 1, {}), ("hard", 1, {"conv_width": 2})]
)
def test_positions_from_the_end_have_no_state_where_items_move(form: str, n_layers: int, more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="only one layer of LISA that reads nothing but codes"):
        Encoder(form, n_layers, encoder={"positions": "from_end"} | more).init_state(1)


def randomised(encoder: Encoder) -> Encoder:
    """The encoder in float64 with random float32 parameters, also where they start as 0 or 1."""
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return encoder.double()


def tensors_of(state: EncoderState) -> list[Tensor]:
    return [state.hidden, state.length.double(), *(x for layer in state.layers for x in layer), *state.convolved]


def compare_steps(encoder: Encoder, whole: Encoder, *, timed: bool = False) -> None:
    """Steps, and the states after 1, 9 and 17 items, against the hidden states at every position of a long window."""
    view = encoder.view(torch.randn(U, D, dtype=torch.float64))
    lengths, items, gaps = torch.tensor([17, 1, 9]), torch.randint(U, (3, 17)), torch.rand(3, 17)
    history = Sequences(items, all_valid(3, 17), gaps)
    expected = whole.encode_non_padding(history, view).hidden.view(3, 17, D)
    ragged = encoder.state_of(history._replace(valid=torch.arange(17) < lengths.unsqueeze(1)), view)
    state, sizes = encoder.init_state(3), set()
    for t in range(17):
        state = encoder.step(state, row(view, items[:, t]), gaps[:, t] if timed else None)
        assert_close(state.hidden, expected[:, t])
        sizes.add(sum(x.numel() for x in tensors_of(state)))
        for n in (lengths == t + 1).nonzero().flatten().tolist():
            for x, y in zip(tensors_of(ragged), tensors_of(state), strict=True):
                assert x.dtype == torch.float64
                assert_close(x[n], y[n])
    assert state.length.tolist() == [17] * 3
    assert ragged.length.tolist() == lengths.tolist()
    assert len(sizes) == 1


@pytest.mark.parametrize("stepped", [10, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("length", [1, 10, 1_000, 100_000])
@pytest.mark.parametrize("form", ["hard", "hard-no-decay", "soft"])
def test_float32_stays_exact_at_any_step(form: str, length: int, stepped: int) -> None:
    encoder = Encoder(form)
    view = encoder.view(torch.randn(U, D))
    items = torch.randint(U, (1, length))
    history = Sequences(items, all_valid(*items.shape))
    exact = unbounded(encoder, form, 1, length).double().encode_last(history, double(view)).hidden
    at_once = max(length - stepped, 0)
    state = encoder.init_state(1)
    if at_once:
        state = encoder.state_of(history._replace(rows=items[:, :at_once], valid=history.valid[:, :at_once]), view)
    state = advance(encoder, state, view, items[:, at_once:])
    torch.testing.assert_close(state.hidden.double(), exact, rtol=0, atol=1e-5)
    assert int(state.length) == length


def double(view: ItemView) -> ItemView:
    assert view.quantized is not None
    codes, assignment, y = view.quantized
    return ItemView(view.stream.double(), view.target.double(), Quantized(codes, assignment.double(), y.double()))


def advance(encoder: Encoder, state: EncoderState, view: ItemView, items: Tensor) -> EncoderState:
    for t in range(items.shape[1]):
        state = encoder.step(state, row(view, items[:, t]))
    return state


@pytest.mark.parametrize(
    ("mechanism", "n_layers", "more", "message"),
    [
        ("full", 1, {}, "FullAttention has no state of constant size"),
        ("lisa", 2, LISA | {"decay": 0, "bidirectional": True}, "layer 1 is bidirectional"),
    ],
)
def test_attention_without_a_state_is_named(mechanism: str, n_layers: int, more: dict[str, Any], message: str) -> None:
    encoder = Encoder(mechanism, n_layers, **more)
    with pytest.raises(ValueError, match=message):
        encoder.init_state(1)


def test_one_bidirectional_layer_keeps_its_state() -> None:
    encoder = Encoder("lisa", 1, **LISA, decay=0, bidirectional=True).double()
    view = encoder.view(torch.randn(U, D, dtype=torch.float64))
    items = torch.randint(U, (1, POSITIONS))
    history = Sequences(items, all_valid(*items.shape))
    assert_close(advance(encoder, encoder.init_state(1), view, items).hidden, encoder.encode_last(history, view).hidden)
