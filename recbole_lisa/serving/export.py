"""An export on disk: a manifest and three .npz files, no pickle, every byte under a checksum.

manifest.json   what the model is, its settings, sizes, and length and SHA-256 of every file
items.npz       codes at log2(W) bits and their codewords, or the item vectors of a model without codes
encoder.npz     the weights of the encoder
item_ids.npz    the raw ids
titles.json     titles by raw id, where there are any; they do not count for the fingerprint of the model

A checksum is no signature. So every setting and size of an export is checked against the bytes of its files before
memory is allocated for it.
"""

import hashlib
import json
import math
import unicodedata
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import AfterValidator, BaseModel, Field, PositiveInt, Strict, TypeAdapter, ValidationError
from torch.nn.functional import pad

from recbole_lisa import __version__
from recbole_lisa.errors import UsageError, first_mistake
from recbole_lisa.files import (
    ARCHIVE_ERRORS,
    AnyPath,
    atomic_writer,
    check_output,
    locked,
    new_folder,
    path_of,
    readable,
)
from recbole_lisa.layers.item_store import CodedItems, CodedTargets, DenseItems, ItemStore
from recbole_lisa.ops.packing import pack_codes, unpack_codes
from recbole_lisa.serving.bundle import Bundle, check_weights
from recbole_lisa.serving.ids import IdMap

FORMAT, VERSION = "recbole-lisa export", 1
MANIFEST, ITEMS, ENCODER, ITEM_IDS = "manifest.json", "items.npz", "encoder.npz", "item_ids.npz"
TITLES = "titles.json"
MOST_POSITIONS = 2**24
"""A session remembers as many items as max_length: 64 MB for this many."""
_SETS = ("history", "target")
_DTYPES = ("float32", "float64", "bool", "uint8", "int32", "int64", "uint64")
Arrays = dict[str, npt.NDArray[Any]]


def _printable(text: str) -> str:
    if not text or any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text):
        raise ValueError("must be a name without control characters and halves of surrogate pairs")
    return text


def _identifier(text: str) -> str:
    if not text.isidentifier():
        raise ValueError("must be the name of a class")
    return text


Name = Annotated[str, Strict(), AfterValidator(_printable)]


class _Part(BaseModel, extra="forbid"):
    """A part of a manifest: a key that is unknown might be a setting that reading would leave out."""


class _CodeSet(_Part):
    n_codebooks: PositiveInt
    n_codewords: PositiveInt


class _Items(_Part):
    kind: Literal["codes", "vectors"]
    n_items: PositiveInt
    history: _CodeSet | None = None
    target: _CodeSet | None = None
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    dense_items: PositiveInt | None = None
    input: Literal["codewords", "embeddings"] = "codewords"


class _Encoder(BaseModel):
    hidden_size: PositiveInt
    max_length: Annotated[int, Strict(), Field(ge=1, le=MOST_POSITIONS)]
    layers: list[tuple[str, dict[str, Any]]]
    layer_norm_eps: Annotated[float, Strict(), Field(gt=0, le=1)]
    hidden_act: Name
    attention_gate: Annotated[bool, Strict()] = False
    any_length: Annotated[bool, Strict()] = False


class _File(_Part):
    bytes: PositiveInt
    sha256: str


class _Manifest(_Part):
    format: str
    version: Annotated[int, Strict()]
    written_by: Annotated[str, Strict()]
    model: Annotated[str, Strict(), AfterValidator(_identifier)]
    dataset: Name
    items: _Items
    item_table: dict[Literal["float32_bytes", "formula_bytes", "bytes_on_disk", "compression_ratio"], float]
    encoder: _Encoder
    time_unit: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    latest_time: Annotated[float, Field(allow_inf_nan=False)] | None = None
    files: dict[Literal["items.npz", "encoder.npz", "item_ids.npz", "titles.json"], _File]
    fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    checksum: str


def check_export_folder(folder: AnyPath, *, overwrite: bool, source: AnyPath | None = None) -> None:
    """Refuse, as a UsageError, what `check_output` refuses, and a folder with files that are no part of an export."""
    check_output(folder, overwrite=True, folder=True, source=source)
    manifest, parts = Path(folder) / MANIFEST, {MANIFEST, ITEMS, ENCODER, ITEM_IDS, TITLES}
    names = {file.name for file in Path(folder).iterdir()} if Path(folder).is_dir() else set()
    others = any(not name.startswith(".") for name in names - parts)  # a hidden file is of an unfinished export
    if others and not (manifest.is_file() and FORMAT.encode() in manifest.read_bytes()):
        raise UsageError(f"'{folder}' holds files that are no part of an export: name another folder")
    check_output(folder, overwrite=overwrite, folder=True)


def write_export(bundle: Bundle, folder: AnyPath, *, overwrite: bool = False) -> dict[str, Any]:
    """Write an export and return its manifest, which comes last; a UsageError as of `check_export_folder`."""
    target = Path(folder)
    check_export_folder(target, overwrite=overwrite)
    files: dict[str, dict[str, Any]] = {}
    message = f"another process writes the export '{folder}': wait for its end, or name another folder"
    try:
        with new_folder(target), locked(target / ".lock", message), _no_part(target, files):
            for name, data in _data(bundle):
                files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                with atomic_writer(target / name) as stream:
                    stream.write(data)
            manifest = _manifest(bundle, files)
            with atomic_writer(target / MANIFEST) as stream:
                stream.write((json.dumps(manifest, indent=2, ensure_ascii=True) + "\n").encode())
    except OSError as error:
        raise UsageError(f"cannot write the export '{folder}': {error.strerror}; name another folder") from error
    return manifest


@contextmanager
def _no_part(folder: Path, files: Mapping[str, Any]) -> Iterator[None]:
    """Where the work in it fails or is interrupted, remove those of the files that were not in the folder before."""
    existed = {path.name for path in folder.iterdir()}
    try:
        yield
    except BaseException:
        for name in files.keys() - existed:
            (folder / name).unlink(missing_ok=True)
        raise


def read_manifest(folder: AnyPath) -> dict[str, Any]:
    """The manifest of an export; a UsageError where it is missing, damaged, of another program or another version."""
    path = path_of(folder, "the folder of an export") / MANIFEST
    try:
        manifest = json.loads(readable(path, is_pipe_allowed=False).read_bytes())
    except OSError as error:
        reason, right = f"{path.name}: {error.strerror}", "give a folder that recbole-lisa export wrote"
        raise UsageError(f"'{folder}' is not an export ({reason}): {right}") from error
    except (ValueError, RecursionError) as error:
        raise _damaged(folder, f"{MANIFEST} is not JSON") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UsageError(f"'{path}' is not the manifest of a {FORMAT}")
    if manifest.get("version") != VERSION or manifest["version"] is True:
        raise UsageError(
            f"the export '{folder}' has version {manifest.get('version')!r}, this program reads version {VERSION}: "
            "install the recbole-lisa that wrote it, or export again"
        )
    if manifest.get("checksum") != _checksum(manifest):
        raise _damaged(folder, f"{MANIFEST} does not have its checksum")
    try:
        _Manifest.model_validate(manifest)
    except ValidationError as error:
        raise _damaged(folder, f"{MANIFEST}: {first_mistake(error)}") from error
    return manifest


def read_export(folder: AnyPath) -> tuple[Bundle, dict[str, Any]]:
    """The model and the manifest of an export; a UsageError as of `read_manifest`, or where a file is damaged."""
    manifest = read_manifest(folder)
    parts = {name: _read_part(Path(folder), name, manifest) for name in (ITEMS, ENCODER, ITEM_IDS)}
    try:
        ids = IdMap.from_arrays(parts[ITEM_IDS])
        weights = {name: torch.from_numpy(array) for name, array in parts[ENCODER].items()}
        items = _items(parts[ITEMS], manifest["items"], len(ids), manifest["encoder"]["hidden_size"])
        named = {name: manifest[name] for name in ("model", "dataset", "encoder", "time_unit")}
        titles = _titles(_read_file(Path(folder), TITLES, manifest)) if TITLES in manifest["files"] else {}
        named["latest_time"] = manifest.get("latest_time")
        bundle = Bundle(weights=weights, items=items, ids=ids, titles=titles, **named)
        check_weights(bundle)
    except KeyError as error:
        raise _damaged(folder, f"there is no {error}") from error
    except (ValueError, TypeError) as error:
        raise _damaged(folder, str(error).partition("\n")[0]) from error
    return bundle, manifest


def fingerprint_of(bundle: Bundle) -> str:
    """SHA-256 over the contents of an export's files; equal to the manifest's `fingerprint`."""
    return _fingerprint([hashlib.sha256(_npz(arrays)).hexdigest() for arrays in _contents(bundle).values()])


def _damaged(folder: object, reason: str) -> UsageError:
    reason = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in reason)
    return UsageError(f"the export '{folder}' is damaged: {reason}; write it again")


def _fingerprint(digests: list[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _contents(bundle: Bundle) -> dict[str, Arrays]:
    weights = {name: tensor.numpy() for name, tensor in bundle.weights.items()}
    return {ITEMS: _item_arrays(bundle.items), ENCODER: weights, ITEM_IDS: bundle.ids.arrays()}


def _data(bundle: Bundle) -> Iterator[tuple[str, bytes]]:
    for name, arrays in _contents(bundle).items():
        yield name, _npz(arrays)
    if bundle.titles:
        yield TITLES, json.dumps(bundle.titles).encode()


def _titles(data: bytes) -> dict[str, str]:
    try:
        return TypeAdapter(dict[str, str]).validate_json(data)
    except ValidationError as error:
        raise ValueError(f"{TITLES} must hold one text for each id") from error


def _manifest(bundle: Bundle, files: dict[str, dict[str, Any]]) -> dict[str, Any]:
    dense, stored = bundle.table_bytes()
    kind = "vectors" if isinstance(bundle.items, DenseItems) else "codes"
    sets = [{"n_codebooks": b, "n_codewords": w} for b, w in bundle.code_tables()]
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "written_by": f"recbole-lisa {__version__}",
        "model": bundle.model,
        "dataset": bundle.dataset,
        "items": {
            **{"kind": kind, "n_items": len(bundle.ids), **dict(zip(_SETS, sets, strict=False))},
            **({} if (temperature := bundle.items.targets.temperature) is None else {"temperature": temperature}),
            **({"dense_items": n_dense} if (n_dense := len(bundle.items.targets.dense_items())) else {}),
            **({"input": "embeddings"} if getattr(bundle.items, "item_input", None) == "embeddings" else {}),
        },
        "encoder": bundle.encoder,
        "time_unit": bundle.time_unit,
        **({} if bundle.latest_time is None else {"latest_time": bundle.latest_time}),
        "item_table": {
            "float32_bytes": dense,
            "formula_bytes": stored,
            "bytes_on_disk": files[ITEMS]["bytes"],
            "compression_ratio": dense / stored,
        },
        "files": files,
        "fingerprint": _fingerprint([file["sha256"] for name, file in files.items() if name != TITLES]),
    }
    return manifest | {"checksum": _checksum(manifest)}


def _checksum(manifest: dict[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _npz(arrays: Arrays) -> bytes:
    """As numpy.savez, but equal arrays give equal bytes: no entry carries the time of writing."""
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)  # type: ignore[no-untyped-call]  # numpy's
    return stream.getvalue()


def _read_file(folder: Path, name: str, manifest: dict[str, Any]) -> bytes:
    recorded = manifest["files"].get(name)
    try:
        data = readable(folder / name, is_pipe_allowed=False).read_bytes()
    except PermissionError as error:
        raise UsageError(f"'{folder / name}' cannot be read: {error.strerror}") from error
    except OSError as error:
        raise UsageError(f"the export '{folder}' is incomplete: {name}: {error.strerror}; write it again") from error
    if recorded is None or len(data) != recorded["bytes"] or hashlib.sha256(data).hexdigest() != recorded["sha256"]:
        raise _damaged(folder, f"{name} does not have its checksum")
    return data


def _read_part(folder: Path, name: str, manifest: dict[str, Any]) -> Arrays:
    data = _read_file(folder, name, manifest)
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            return {entry.filename.removesuffix(".npy"): _array(archive, entry) for entry in archive.infolist()}
    except ARCHIVE_ERRORS as error:
        raise _damaged(folder, f"{name}: {str(error).partition(chr(10))[0]}") from error


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> npt.NDArray[Any]:
    """One array of an archive; its header must describe exactly the bytes that follow."""
    if entry.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{entry.filename} is compressed")
    stream = BytesIO(archive.read(entry))
    np.lib.format.read_magic(stream)  # type: ignore[no-untyped-call]  # numpy's
    shape, in_columns, dtype = np.lib.format.read_array_header_1_0(stream)  # type: ignore[no-untyped-call]  # numpy's
    rest = stream.getbuffer()[stream.tell() :]
    if dtype.hasobject or in_columns or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(rest):
        raise ValueError(f"{entry.filename} does not have the shape {shape}")
    if str(dtype) not in _DTYPES:
        raise ValueError(f"{entry.filename} has the type {dtype}, known are {', '.join(_DTYPES)}")
    array = np.frombuffer(rest, dtype).reshape(shape).copy()
    if not np.isfinite(array).all():
        raise ValueError(f"{entry.filename} has a number that is not finite")
    return array


def _item_arrays(items: ItemStore) -> Arrays:
    if isinstance(items, DenseItems):
        return {"vectors": items.targets.vectors.numpy()}
    arrays: Arrays = {}
    for name, part in zip(_SETS, items.sets(), strict=False):
        arrays[f"{name}_codes"] = pack_codes(part.codes, part.codewords.shape[1]).numpy()
        arrays[f"{name}_codewords"] = part.codewords.numpy()
    if items.targets.dense is not None:
        (slots, vectors), numbers = items.targets.dense, items.targets.dense_items()
        arrays |= {"dense_items": numbers.numpy(), "dense_vectors": vectors[slots[numbers]].numpy()}
    return arrays


def _items(arrays: Arrays, settings: dict[str, Any], n_items: int, hidden_size: int) -> ItemStore:
    """The items of an export; a ValueError where the arrays do not fit the settings."""
    if settings["n_items"] != n_items:
        raise ValueError(f"{MANIFEST} has {settings['n_items']} items, {ITEM_IDS} has {n_items}")
    names = {f"{name}_{part}" for name in _SETS if settings.get(name) for part in ("codes", "codewords")}
    names |= {"dense_items", "dense_vectors"} if settings.get("dense_items") else set()
    names |= {"vectors"} if settings["kind"] == "vectors" else set()
    if odd := arrays.keys() ^ names:
        raise ValueError(f"{ITEMS} and the settings of the items in {MANIFEST} differ in {min(odd)}")
    temperature = settings.get("temperature")
    if settings["kind"] == "vectors":
        _check(arrays["vectors"], (n_items, hidden_size))
        item_input = settings.get("input", "codewords")
        return DenseItems(torch.from_numpy(arrays["vectors"]), temperature=temperature, item_input=item_input)
    sets, dense = [], None
    if n_dense := settings.get("dense_items"):
        numbers = arrays["dense_items"]
        _check(arrays["dense_vectors"], (n_dense, hidden_size))
        ascending = (
            numbers.shape == (n_dense,) and numbers.dtype == np.int64 and (np.diff(numbers, prepend=-1) > 0).all()
        )
        if not ascending or numbers[-1] >= n_items:
            raise ValueError(f"dense_items of {ITEMS} are not {n_dense} ascending numbers below {n_items}")
        slots = torch.full((n_items,), n_dense, dtype=torch.int32)
        slots[torch.from_numpy(numbers)] = torch.arange(n_dense, dtype=torch.int32)
        dense = slots, pad(torch.from_numpy(arrays["dense_vectors"]), (0, 0, 0, 1))
    for name in _SETS:
        if settings.get(name) is not None:
            n_codebooks, n_codewords = settings[name]["n_codebooks"], settings[name]["n_codewords"]
            packed, codewords = arrays[f"{name}_codes"], arrays[f"{name}_codewords"]
            _check(codewords, (n_codebooks, n_codewords, hidden_size))
            codes = unpack_codes(torch.from_numpy(packed), (n_items, n_codebooks), n_codewords)
            sets.append(CodedTargets(codes, torch.from_numpy(codewords), temperature=temperature, dense=dense))
    if not sets:
        raise ValueError(f"{MANIFEST} names no codebooks")
    return CodedItems(*sets)


def _check(array: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
    if array.shape != shape or array.dtype.kind != "f":
        raise ValueError(f"an array of {ITEMS} has the shape {array.shape}, its settings give {shape}")
