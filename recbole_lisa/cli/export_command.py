"""The command `recbole-lisa export`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recbole_lisa.cli.arguments import UsageParser
from recbole_lisa.saved import load_bundle, read_titles, with_titles
from recbole_lisa.serving.export import check_export_folder, write_export

_EPILOG = """\
The folder holds manifest.json and three .npz files without pickle: codes at log2(W) bits with their codebooks (for
LISABase, LISAMini and a quantised Transformer; other models keep their item table), the weights of the encoder, and
the raw item ids. With --titles it holds titles.json, too, for recommend and for the page of serve. Each file is under
a checksum. Loading needs neither RecBole nor the data:

  from recbole_lisa.serving import Recommender
  Recommender.load("DIR").recommend([["item a", "item b"]], k=10)
"""


def main(arguments: Sequence[str]) -> int:
    """Export a checkpoint and print sizes, with the arguments after `export`; return 0."""
    parser = UsageParser("recbole-lisa export", "Write the files that serve a trained model.", _EPILOG)
    add = parser.add_argument
    add("--checkpoint", type=Path, required=True, metavar="FILE", help="a .pth file of a run")
    add("--output", type=Path, required=True, metavar="DIR", help="folder of the export")
    add("--data_path", metavar="DIR", help="folder of the data set, for a file of 0.1.0")
    add("--titles", type=Path, metavar="FILE", help="titles to show: .csv or .tsv with item_id and title")
    add("--overwrite", action="store_true", help="replace an export in the folder")
    options = parser.parse_args(arguments)
    check_export_folder(options.output, overwrite=options.overwrite)
    titles = {} if options.titles is None else read_titles(options.titles)
    bundle = load_bundle(options.checkpoint, data_path=options.data_path)
    if titles:
        bundle = with_titles(bundle, titles)
        left_out = len(titles) - len(bundle.titles)
        print(f"titles: {len(bundle.titles):,} of {len(bundle.ids):,} items, {left_out:,} of unknown items left out")
    manifest = write_export(bundle, options.output, overwrite=options.overwrite)
    print("\n".join(report(manifest, options.output)))
    return 0


def report(manifest: dict[str, Any], folder: Path) -> list[str]:
    """Lines about an export: the item table by the paper's formula, and the bytes on disk."""
    table, items = manifest["item_table"], manifest["items"]
    on_disk = f"{table['bytes_on_disk']:,} bytes on disk"
    lines = [f"{folder}: {manifest['model']} of {manifest['dataset']}, {items['n_items']:,} items"]
    if items["kind"] == "codes":
        sets = [items[name] for name in ("history", "target") if name in items]
        shapes = " and ".join(f"{s['n_codebooks']} codebooks of {s['n_codewords']}" for s in sets)
        shapes += f" and {items['dense_items']} vectors" if items.get("dense_items") else ""
        lines.append(
            f"item table: {table['float32_bytes']:,.0f} bytes in float32, {table['formula_bytes']:,.0f} as codes of "
            f"{shapes}: compression ratio {table['compression_ratio']:.2f}, {on_disk}"
        )
    else:
        lines.append(f"item table: {manifest['model']} keeps its vectors, compression ratio 1.00, {on_disk}")
    others = ", ".join(f"{name} {file['bytes']:,} bytes" for name, file in manifest["files"].items())
    return [*lines, f"files: {others}"]
