"""What is compiled computes the same, and where nothing can be compiled one line says so before any work."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from pytest import MonkeyPatch

from recbole_lisa import quick_start
from recbole_lisa.config.config import LISAConfig
from recbole_lisa.errors import UsageError
from recbole_lisa.training import compilation
from recbole_lisa.training.compilation import check_compiler, compile_encoder
from tests.helpers import assert_close
from tests.model.build import MODEL_NAMES, build_model, loss_value, random_batch
from tests.tiny import tiny_config, tiny_settings


def loss_and_gradients(name: str, batches: list[Any], *, compiled: bool, **settings: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = build_model(name, hidden_dropout_prob=0.0, **settings)
    if compiled:
        compile_encoder(model)
    values = []
    for batch in batches:
        model.train().zero_grad()
        loss = loss_value(model.calculate_loss(batch))
        loss.backward()
        values += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
        with torch.no_grad():
            values.append(model.eval().full_sort_predict(batch))
    return values


def compare(name: str, **settings: Any) -> None:
    torch.manual_seed(1)
    batches = [random_batch(6, 9, 30), random_batch(5, 13, 30)]
    plain, compiled = (loss_and_gradients(name, batches, compiled=flag, **settings) for flag in (False, True))
    for expected, values in zip(plain, compiled, strict=True):
        assert_close(values, expected)


@pytest.fixture
def traced(monkeypatch: MonkeyPatch) -> list[torch.nn.Module]:
    """Trace as the compiler does, and run what was traced as it is; the list names the modules."""
    modules: list[torch.nn.Module] = []
    original = torch.nn.Module.compile

    def note(self: torch.nn.Module, **settings: Any) -> None:
        modules.append(self)
        original(self, **settings, backend="eager")

    monkeypatch.setattr(torch.nn.Module, "compile", note)
    torch.compiler.reset()
    return modules


@pytest.mark.parametrize("name", ["LISASoft", "Transformer"])
def test_a_traced_encoder_computes_the_same_at_every_size(name: str, traced: list[torch.nn.Module]) -> None:
    compare(name)
    assert [type(module).__name__ for module in traced][-1] == "EncoderBlock"
    assert len(traced) == 2


def test_a_traced_gated_encoder_computes_the_same(traced: list[torch.nn.Module]) -> None:
    compare("Transformer", block="gated", hidden_act="swiglu", conv_width=3, attention_gate=True, positions="from_end")
    assert [type(module).__name__ for module in traced] == ["FullAttention", "GatedBlock"]


def test_attention_with_loops_that_depend_on_the_data_is_left_out(traced: list[torch.nn.Module]) -> None:
    compile_encoder(build_model("RoutingTransformer"))
    assert [type(module).__name__ for module in traced] == ["EncoderBlock"]


LEVERS = {"n_layers": 2, "local_window": 4, "block": "gated", "hidden_act": "swiglu", "conv_width": 3}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), [*((name, {}) for name in MODEL_NAMES), ("LISASoft", LEVERS)])
def test_a_compiled_encoder_computes_the_same(name: str, settings: dict[str, Any]) -> None:
    torch.compiler.reset()
    compare(name, **settings)


def test_a_missing_compiler_is_one_line_before_any_work(isolated_run_dir: Path, monkeypatch: MonkeyPatch) -> None:
    error = RuntimeError("backend='inductor' raised:\nInvalidCxxCompiler: No working C++ compiler found\n\nmore")
    config = LISAConfig("LISASoft", "ml-100k", config_dict={"compile": True, "use_gpu": False})
    monkeypatch.setattr(compilation.torch, "compile", Mock(side_effect=error))
    with pytest.raises(UsageError) as caught:
        check_compiler(config)
    assert str(caught.value) == (
        "compile is True, but torch.compile does not work here (InvalidCxxCompiler: No working C++ compiler found): "
        "install a C++ compiler, such as g++, or set compile to False"
    )
    check_compiler(LISAConfig("LISASoft", "ml-100k", config_dict={"compile": False}))
    with pytest.raises(UsageError, match="compile is True, but TinyModel has no encoder to compile: leave compile out"):
        check_compiler(tiny_config(isolated_run_dir, compile=True))


def test_the_setting_compiles_the_encoder_of_a_run(isolated_run_dir: Path, monkeypatch: MonkeyPatch) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **_: compiled.append(type(module).__name__))
    monkeypatch.setattr(quick_start, "check_compiler", lambda _: None)
    for setting, modules in ((False, []), (True, ["FullAttention", "EncoderBlock"])):
        settings = tiny_settings(isolated_run_dir, compile=setting, epochs=1, hidden_size=8, inner_size=8)
        quick_start.run("Transformer", "tiny", config_dict=settings)
        assert compiled == modules
