"""An export on disk: a manifest and three .npz files, no pickle, every byte under a checksum.

manifest.json   what the model is, its settings, sizes, and length and SHA-256 of every file
items.npz       codes at log2(W) bits and their codewords, or the item vectors of a model without codes
encoder.npz     the weights of the encoder
item_ids.npz    the raw ids
"""

import hashlib
import json
import os
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recbole_lisa import __version__
from recbole_lisa.errors import UsageError
from recbole_lisa.files import atomic_writer, check_output
from recbole_lisa.layers.item_store import CodedItems, CodedTargets, DenseItems, ItemStore
from recbole_lisa.ops.packing import pack_codes, unpack_codes
from recbole_lisa.serving.bundle import Bundle
from recbole_lisa.serving.id_map import IdMap

FORMAT, VERSION = "recbole-lisa export", 1
MANIFEST, ITEMS, ENCODER, ITEM_IDS = "manifest.json", "items.npz", "encoder.npz", "item_ids.npz"
_SETS = ("history", "target")
Arrays = dict[str, npt.NDArray[Any]]


def write_export(bundle: Bundle, folder: str | os.PathLike[str], *, overwrite: bool = False) -> dict[str, Any]:
    """Write an export; the manifest comes last, so that an interrupted one is never taken for complete.

    Args:
        bundle: The model.
        folder: Where to; it is made.
        overwrite: Replace an export that is there.

    Returns:
        The manifest.

    Raises:
        UsageError: There are files in the folder, or it cannot be written.
    """
    target = Path(folder)
    check_output(target, overwrite=overwrite, folder=True)
    files = {}
    try:
        for name, arrays in _contents(bundle).items():
            data = _npz(arrays)
            files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            with atomic_writer(target / name) as stream:
                stream.write(data)
        manifest = _manifest(bundle, files)
        with atomic_writer(target / MANIFEST) as stream:
            stream.write((json.dumps(manifest, indent=2, ensure_ascii=True) + "\n").encode())
    except OSError as error:
        raise _unwritable(target, error) from error
    return manifest


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read and check the manifest of an export.

    Raises:
        UsageError: It is missing, damaged, of another program or of a newer version of this one.
    """
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"'{folder}' is no export: {path.name}: {error.strerror}; write one with recbole-lisa export"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the export '{folder}' is damaged: {MANIFEST} is not JSON; write it again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UsageError(f"'{path}' is no manifest of {FORMAT}")
    if manifest.get("version") != VERSION:
        raise UsageError(
            f"the export '{folder}' has version {manifest.get('version')!r}, this program reads version {VERSION}: "
            "install the recbole-lisa that wrote it, or export again"
        )
    if manifest.get("checksum") != _checksum(manifest):
        raise UsageError(f"the export '{folder}' is damaged: {MANIFEST} does not have its checksum; write it again")
    return manifest


def read_export(folder: str | os.PathLike[str]) -> tuple[Bundle, dict[str, Any]]:
    """Read an export.

    Args:
        folder: What `write_export` wrote.

    Returns:
        The model and the manifest.

    Raises:
        UsageError: A file is missing or damaged, or see `read_manifest`.
    """
    manifest = read_manifest(folder)
    parts = {name: _read_part(Path(folder), name, manifest["files"][name]) for name in (ITEMS, ENCODER, ITEM_IDS)}
    bundle = Bundle(
        model=manifest["model"],
        dataset=manifest["dataset"],
        encoder=manifest["encoder"],
        weights={name: torch.from_numpy(array) for name, array in parts[ENCODER].items()},
        items=_items(parts[ITEMS], manifest["items"]),
        ids=IdMap.from_arrays(parts[ITEM_IDS]),
        time_unit=manifest["time_unit"],
    )
    return bundle, manifest


def _unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write the export '{folder}': {error.strerror}; name another folder")


def fingerprint_of(bundle: Bundle) -> str:
    """SHA-256 over what the files of an export hold; equal to the manifest's `fingerprint`."""
    return _fingerprint([hashlib.sha256(_npz(arrays)).hexdigest() for arrays in _contents(bundle).values()])


def _fingerprint(digests: list[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _contents(bundle: Bundle) -> dict[str, Arrays]:
    return {
        ITEMS: _item_arrays(bundle.items),
        ENCODER: {name: tensor.numpy() for name, tensor in bundle.weights.items()},
        ITEM_IDS: bundle.ids.arrays(),
    }


def _manifest(bundle: Bundle, files: dict[str, dict[str, Any]]) -> dict[str, Any]:
    dense, stored = bundle.table_bytes()
    kind = "vectors" if isinstance(bundle.items, DenseItems) else "codes"
    sets = [table._asdict() for table in bundle.code_tables()]
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "written_by": f"recbole-lisa {__version__}",
        "model": bundle.model,
        "dataset": bundle.dataset,
        "items": {"kind": kind, "n_items": len(bundle.ids), **dict(zip(_SETS, sets, strict=False))},
        "encoder": bundle.encoder,
        "time_unit": bundle.time_unit,
        "item_table": {
            "float32_bytes": dense,
            "formula_bytes": stored,
            "bytes_on_disk": files[ITEMS]["bytes"],
            "compression_ratio": dense / stored,
        },
        "files": files,
        "fingerprint": _fingerprint([file["sha256"] for file in files.values()]),
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
                np.lib.format.write_array(entry, array, allow_pickle=False)  # type: ignore[no-untyped-call]
    return stream.getvalue()


def _read_part(folder: Path, name: str, wanted: dict[str, Any]) -> Arrays:
    try:
        data = (folder / name).read_bytes()
    except OSError as error:
        raise UsageError(f"the export '{folder}' is incomplete: {name}: {error.strerror}; write it again") from error
    if len(data) != wanted["bytes"] or hashlib.sha256(data).hexdigest() != wanted["sha256"]:
        raise UsageError(f"the export '{folder}' is damaged: {name} does not have its checksum; write it again")
    with np.load(BytesIO(data), allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}


def _item_arrays(items: ItemStore) -> Arrays:
    if isinstance(items, DenseItems):
        return {"vectors": items.targets.vectors.numpy()}
    arrays: Arrays = {}
    for name, (codes, codewords) in zip(_SETS, items.tables(), strict=False):
        arrays[f"{name}_codes"] = pack_codes(codes, codewords.shape[1]).numpy()
        arrays[f"{name}_codewords"] = codewords.numpy()
    return arrays


def _items(arrays: Arrays, settings: dict[str, Any]) -> ItemStore:
    if settings["kind"] == "vectors":
        return DenseItems(torch.from_numpy(arrays["vectors"]))
    sets = []
    for name in _SETS:
        if name in settings:
            shape = (settings["n_items"], settings[name]["n_codebooks"])
            packed = torch.from_numpy(arrays[f"{name}_codes"])
            codes = unpack_codes(packed, shape, settings[name]["n_codewords"])
            sets.append((codes, torch.from_numpy(arrays[f"{name}_codewords"])))
    return CodedItems(*sets[0], CodedTargets(*sets[1]) if len(sets) > 1 else None)
