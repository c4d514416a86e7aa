"""From a checkpoint back to a model and its data, and from there to an export that needs neither RecBole nor the data.

`load_data_and_model` reads checkpoints of this package and those of RecBole's trainer. `export` writes what serving
needs, after it has checked that the export scores items as the model does.
"""

import re
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from recbole.data import create_dataset as create_recbole_dataset
from recbole.data import data_preparation
from recbole.utils import init_seed
from torch import Tensor

from recbole_lisa.config.config import LISAConfig
from recbole_lisa.config.registry import class_by_name
from recbole_lisa.data.dataloader import create_loaders
from recbole_lisa.data.dataset import create_dataset
from recbole_lisa.data.tokens import joined_tokens
from recbole_lisa.datasets.layouts import Layout
from recbole_lisa.datasets.reader import read_pieces
from recbole_lisa.datasets.source import open_raw
from recbole_lisa.errors import UsageError, shown
from recbole_lisa.files import ARCHIVE_ERRORS, AnyPath, path_of
from recbole_lisa.layers.query_time import Query
from recbole_lisa.model.attentive_recommender import AttentiveRecommender, current_names
from recbole_lisa.serving.bundle import Bundle, check_shapes, encoder_weights
from recbole_lisa.serving.export import check_export_folder, write_export
from recbole_lisa.serving.ids import IdMap
from recbole_lisa.serving.inputs import History
from recbole_lisa.serving.recommender import Recommender
from recbole_lisa.serving.tables import SEPARATORS
from recbole_lisa.training.checkpoint_file import RUN_KEYS, check_finite, item_ids_of, load_checkpoint
from recbole_lisa.training.resuming import check_data, differences

Loaded = tuple[Any, torch.nn.Module, Any, Any, Any, Any]  # configuration, model, data set, and three loaders

CHECKED_HISTORIES, CHECKED_ITEMS = 16, 1000
TOLERANCE = 1e-5  # largest difference of a score, relative to the largest score where that is above 1
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_MODULE_OF_MODELS = b"recbole_lisa.model"


def load_data_and_model(
    path: AnyPath,
    *,
    model: type[Any] | None = None,
    config_dict: Mapping[str, Any] | None = None,
    command_line: Mapping[str, Any] | None = None,
    trusted: bool = False,
) -> Loaded:
    """Load the model of a checkpoint and the data that it was trained on.

    Args:
        path: A checkpoint of this package, or a file that RecBole's trainer wrote for a model of this package.
        model: The model class, where it is not in the registry; that of the checkpoint or a subclass of it.
        config_dict: Settings that replace saved ones, such as `data_path` or `use_gpu`; for checkpoints of this
            package only.
        command_line: The same, stronger than `config_dict`.
        trusted: Allow to read a file of RecBole's trainer, which can run any code when it is read.

    Returns:
        As RecBole's function of this name: configuration, model, data set, and the three loaders (None for a phase
        without targets in a checkpoint of this package).

    Raises:
        UsageError: The file is missing, damaged or forged, was written by RecBole without `trusted`, its weights are
            not those of the settings, or its data set is missing or has changed.
    """
    if is_recbole_file(path):
        if trusted is not True:
            raise UsageError(
                f"'{path}' was written by RecBole's own trainer and can run code when it is read: if it is yours, load "
                "it with trusted=True"
            )
        return _load_recbole_file(path)
    state = load_checkpoint(path, needed=RUN_KEYS)
    config = _config_of(state, path, model, config_dict, command_line)
    check_sizes(config, state, path)
    init_seed(config["seed"], config["reproducibility"])
    dataset = create_dataset(config)
    train, valid, test = create_loaders(config, dataset)
    check_data(state, path, train.dataset.data_fingerprint)
    network = _with_weights(config.model_class(config, train.dataset).to(config["device"]), state, path)
    return config, network, dataset, train, valid, test


def is_recbole_file(path: AnyPath) -> bool:
    """Whether RecBole's trainer wrote this file for a model of this package; no code in the file is run."""
    if not path_of(path, "a checkpoint").is_file():
        return False
    with suppress(*ARCHIVE_ERRORS), zipfile.ZipFile(path) as archive:
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        return any(_MODULE_OF_MODELS in archive.read(name) for name in pickles)
    return False


def read_recbole_file(path: AnyPath) -> dict[str, Any]:
    """Read a trusted file of RecBole's trainer, which holds its configuration as an object; tensors go to the CPU."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    if not torch.cuda.is_available() and "config" in state:
        state["config"]["device"] = torch.device("cpu")
    return state


def _load_recbole_file(path: AnyPath) -> Loaded:
    state = read_recbole_file(path)
    config = state["config"]
    init_seed(config["seed"], config["reproducibility"])
    dataset = create_recbole_dataset(config)
    train, valid, test = data_preparation(config, dataset)
    network = config.model_class(config, train.dataset).to(config["device"])
    return config, _with_weights(network, state, path), dataset, train, valid, test


def _config_of(
    state: Mapping[str, Any], path: Any, model: type[Any] | None, settings: Any, command_line: Any = None
) -> LISAConfig:
    if model is None and class_by_name(state["model"]) is None:
        name = state["model"]
        raise UsageError(f"'{path}' holds a model of the class {name}, which is not in the registry: pass model={name}")
    if isinstance(model, type) and state["model"] not in {base.__name__ for base in model.__mro__}:
        raise UsageError(f"'{path}' holds a model of the class {state['model']}, not {model.__name__}: leave model out")
    try:
        options: Any = {"model": model, "config_dict": settings, "command_line": command_line}
        return LISAConfig.from_plain(state["config"], **options, saved_in=f"checkpoint '{path}'")
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"'{path}' is damaged: its settings cannot be read ({reason})") from error


def check_sizes(config: LISAConfig, state: Mapping[str, Any], path: Any) -> None:
    """Compare the model of the settings, built without memory, with saved weights; a UsageError where shapes differ."""
    weights, ids = current_names(state["state_dict"]), item_ids_of(state)
    try:
        if (config["n_layers"] or 0) > len(weights):
            raise ValueError(f"n_layers is {config['n_layers']}, it has {len(weights)} weights")
        if issubclass(config.model_class, AttentiveRecommender):  # a class of RecBole may need data
            items = _items(len(weights.get("item_embedding.weight", ())) if ids is None else ids.count(b"\n") + 2)
            with torch.device("meta"):
                check_shapes(weights, config.model_class(config, items).state_dict())
    except (TypeError, ValueError, RuntimeError, OverflowError, IndexError) as error:
        changed = differences(state, config.plain())
        reason = f"is damaged or forged: {_line(error)}"
        if changed:
            reason = f"cannot be loaded by these settings: {'; '.join(changed)}: leave out what changes its weights"
        raise UsageError(f"'{path}' {reason}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _with_weights(network: Any, state: Mapping[str, Any], path: Any) -> Any:
    check_finite(state["state_dict"])
    try:
        network.load_state_dict(state["state_dict"])
        if unknown := {*(state["other_parameter"] or {})} - {*getattr(network, "other_parameter_name", ())}:
            raise ValueError(f"other_parameter has {', '.join(map(repr, sorted(unknown)))}")
        network.load_other_parameter(state["other_parameter"])
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"'{path}' is damaged, or has settings of other weights: {_line(error)}") from error
    return network.eval()


def export(
    checkpoint_path: AnyPath,
    folder: AnyPath,
    *,
    model: type[Any] | None = None,
    data_path: str | None = None,
    titles: AnyPath | Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the model of a checkpoint as an export.

    Args:
        checkpoint_path: A checkpoint of this package.
        folder: The folder of the export; it is made.
        model: The model class, where it is not in the registry.
        data_path: Folder of the data set, if it has moved since the run; see `load_bundle`.
        titles: Titles of items to show: by raw id, or a .csv or .tsv file with the columns item_id and title.
        overwrite: Replace an export in the folder.

    Returns:
        The manifest of the export.

    Raises:
        UsageError: See `check_export_folder`, `load_bundle` and `read_titles`.
    """
    check_export_folder(folder, overwrite=overwrite)
    by_item = titles if isinstance(titles, Mapping) else {} if titles is None else read_titles(titles)
    bundle = with_titles(load_bundle(checkpoint_path, model=model, data_path=data_path), by_item)
    return write_export(bundle, folder, overwrite=overwrite)


def with_titles(bundle: Bundle, titles: Mapping[str, str]) -> Bundle:
    """The bundle with titles of its items; a UsageError where none is of an item, or one is no text (UTF-8)."""
    for item, text in titles.items():
        if not isinstance(text, str) or text.encode(errors="ignore").decode() != text:
            raise UsageError(f"the title of the item {item!r} must be a text of whole characters, got {shown(text)}")
    unknown = set(bundle.ids.unknown(list(titles)))
    by_item = {str(item): text for item, text in titles.items() if str(item) not in unknown}
    if titles and not by_item:
        raise UsageError(f"titles names no item of the model, only others, such as {next(iter(titles))!r}")
    return replace(bundle, titles=by_item)


def read_titles(path: AnyPath) -> dict[str, str]:
    """Titles by item of a .csv or .tsv file with the columns item_id and title, else a UsageError."""
    file = path_of(path, "titles")
    if file.suffix not in SEPARATORS:
        raise UsageError(f"'{file}' must end in .csv or .tsv")
    layout = Layout((), {"item": "item_id", "title": "title"}, separator=SEPARATORS[file.suffix], advice="")
    titles: dict[str, str] = {}
    with open_raw(file) as raw:
        for piece in read_pieces(raw, layout):
            for item, title in piece.dropna().itertuples(index=False):
                if titles.setdefault(item, title) != title:
                    raise UsageError(f"'{file}' gives the item '{item}' two titles, {titles[item]!r} and {title!r}")
    if not titles:
        raise UsageError(f"'{file}' has no row with both item_id and title")
    return titles


def _items(n_items: int) -> Any:
    """What a model reads of a data set of V - 1 items; parameters and buffers come from the checkpoint."""
    return SimpleNamespace(item_num=n_items, item_counts=np.ones(n_items, dtype=np.int64), num=lambda _: n_items)


def load_bundle(path: AnyPath, *, model: type[Any] | None = None, data_path: str | None = None) -> Bundle:
    """As `bundle_of_checkpoint`, by the item ids in the checkpoint; one without them (of 0.1.0) needs its data."""
    if is_recbole_file(path):
        raise UsageError(f"'{path}' is of RecBole's trainer: only checkpoints of recbole-lisa run can be exported")
    state = load_checkpoint(path, needed=RUN_KEYS)
    config, ids = _config_of(state, path, model, {"use_gpu": False}), item_ids_of(state)
    _check_class(config.model_class)
    if ids is None:
        return bundle_of_checkpoint(path, model=model, data_path=data_path)[0]
    check_sizes(config, state, path)
    network = _with_weights(config.model_class(config, _items(ids.count(b"\n") + 2)), state, path)
    bundle = bundle_of(network, IdMap.from_lines(ids), config["dataset"], state.get("latest_time"))
    check_scores(network, Recommender(bundle))
    return bundle


def bundle_of_checkpoint(
    path: AnyPath, *, model: type[Any] | None = None, data_path: str | None = None
) -> tuple[Bundle, Any]:
    """The checked bundle of a checkpoint's model, and its data set; arguments and errors as in `export`."""
    settings = {"use_gpu": False} | ({} if data_path is None else {"data_path": data_path})
    config, network, dataset, *_ = load_data_and_model(path, model=model, config_dict=settings)
    ids = IdMap.from_lines(joined_tokens(dataset.field2id_token[dataset.iid_field], "\n"))
    bundle = bundle_of(network, ids, config["dataset"], getattr(dataset, "latest_time", None))
    check_scores(network, Recommender(bundle))
    return bundle, dataset


def bundle_of(model: Any, ids: IdMap | Sequence[str], dataset: str, latest_time: float | None = None) -> Bundle:
    """What recommending needs of an `AttentiveRecommender`, else a UsageError; the raw ids begin with item 1."""
    _check_class(type(model))
    model.eval()
    try:
        encoder = model.encoder.settings()
    except ValueError as error:
        raise UsageError(f"{type(model).__name__} cannot be exported: {error}") from error
    items = model.item_store().cpu()
    return Bundle(
        model=type(model).__name__,
        dataset=_CONTROL.sub("?", dataset.encode(errors="surrogateescape").decode(errors="replace")),
        encoder=encoder,
        weights=encoder_weights(model.encoder, items),
        items=items,
        ids=ids if isinstance(ids, IdMap) else IdMap.from_ids(ids),
        time_unit=float(model.time_unit),
        latest_time=latest_time,
    )


def _check_class(model: type[Any]) -> None:
    if not issubclass(model, AttentiveRecommender):
        raise UsageError(f"{model.__name__} cannot be exported: only models of this package can")


@torch.no_grad()
def check_scores(model: Any, recommender: Recommender) -> float:
    """The largest difference between scores of a model and of its bundle, on random histories.

    Above TOLERANCE it is a UsageError: a subclass changes how items or sequences are encoded.
    """
    generator = torch.Generator().manual_seed(0)
    n, length, n_items = CHECKED_HISTORIES, recommender.max_length, len(recommender.ids)
    items = torch.randint(1, n_items + 1, (n, length), generator=generator)
    lengths = torch.randint(1, length + 1, (n,), generator=generator)
    gaps = torch.rand(n, length, generator=generator) * 3 * recommender.bundle.time_unit
    candidates = torch.randint(1, n_items + 1, (n, CHECKED_ITEMS), generator=generator)
    valid = torch.arange(length) < lengths.unsqueeze(1)
    f = model.fields
    batch = {f.item_list: items * valid, f.item_length: lengths, f.time_gap_list: gaps * valid}
    query = Query(*(torch.randint(2**30, (n,), generator=generator).double() for _ in Query._fields))
    columns = zip((f.query_gap_list, f.query_time_list), query, strict=True)
    batch |= {name: seconds.unsqueeze(1).expand(n, length) for name, seconds in columns}
    expected = model.eval().score_candidates(batch, candidates)
    found = _bundle_scores(recommender, items, lengths, gaps, candidates, query)
    difference = float((found - expected).abs().max())
    if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
        raise UsageError(
            f"{type(model).__name__} cannot be exported: its export scores items differently, by {difference:.3g}; a "
            "class that changes how items or sequences are encoded must change item_store or its attention, too"
        )
    return difference


def _bundle_scores(
    recommender: Recommender, items: Tensor, lengths: Tensor, gaps: Tensor, candidates: Tensor, query: Query
) -> Any:
    """Scores (N, K) of candidates (N, K) by a bundle, of N questions after items (N, L) at time gaps (N, L)."""
    times = gaps.double().cumsum(dim=1)
    histories = [History(items[i, :m].numpy() - 1, times[i, :m].numpy()) for i, m in enumerate(lengths.tolist())]
    targets: Any = recommender.network.items.targets
    states = recommender.network.at(recommender.encode(histories), query)
    rows = [
        targets.take(ids - 1).scores(targets.query(hidden[None]), 0, len(ids))[0]
        for hidden, ids in zip(states, candidates, strict=True)
    ]
    return torch.stack(rows)
