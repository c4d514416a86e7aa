"""`reproduce ranking|sensitivity|migration|compression`: train what is missing, write the page."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.paper.compression import compression_page, export_all
from benchmarks.paper.migration import migration_jobs, migration_page
from benchmarks.paper.options import check_rows, choose_rows, parse_table, table_parser
from benchmarks.paper.page import write_page
from benchmarks.paper.paper import ROWS, Row
from benchmarks.paper.ranking import results
from benchmarks.paper.sensitivity import MODELS, sensitivity_page, sensitivity_rows
from recbole_lisa.config.properties import properties_path
from recbole_lisa.errors import UsageError
from recbole_lisa.tuning.space import read_space


def ranking(argv: Sequence[str]) -> int:
    """`python -m benchmarks paper ranking --dataset=D [--rows ...] [--seeds ...] [--key=value ...]`.

    Args:
        argv: the words after `ranking`.

    Returns:
        0, or 1 when a run failed.

    Raises:
        UsageError: a word, a row or a setting is wrong, or matplotlib is missing.
    """
    parser = table_parser("ranking", "The paper's ranking table.")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="ROW", help=f"default: {' '.join(ROWS)}")
    table = parse_table(parser, argv, own={"model": "--rows"})
    rows = choose_rows(table.options.rows, ROWS)
    check_rows(table, rows.values(), page=f"{table.options.dataset}.md")
    todo = table.jobs(rows)
    failed = table.run(todo)
    return _tell(write_page(table.options.dataset, results(todo), table.public(), Path(table.options.output)), failed)


def sensitivity(argv: Sequence[str]) -> int:
    """`python -m benchmarks paper sensitivity --dataset=D`: the paper's figure; see `ranking`."""
    grid = read_space(properties_path() / "tuning" / "sensitivity.yaml")
    words, books = grid["n_codewords"].values, grid["n_codebooks"].values[0]
    parser = table_parser("sensitivity", "Ranking metrics over the number of codewords W.")
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=list(MODELS), help=f"default: {' '.join(MODELS)}"
    )
    parser.add_argument("--codewords", nargs="+", type=int, default=list(words), metavar="W", help=f"default: {words}")
    table = parse_table(
        parser, argv, own={"model": "--models", "n_codewords": "--codewords", "n_codebooks": f"nothing: it is {books}"}
    )
    rows = sensitivity_rows(table.options.models, table.options.codewords, books)
    check_rows(table, rows.values(), page=f"sensitivity-{table.options.dataset}.md")
    todo = table.jobs(rows, "sensitivity")
    failed = table.run(todo)
    files = sensitivity_page(table.options.dataset, rows, results(todo), table.public(), Path(table.options.output))
    return _tell(files, failed)


def migration(argv: Sequence[str]) -> int:
    """`python -m benchmarks paper migration --dataset=D`: the paper's table beside LISA-Base; see `ranking`."""
    parser = table_parser("migration", "LISA-Base on the frozen codebooks of a vanilla Transformer.")
    table = parse_table(parser, argv, own={"model": "nothing: the rows are fixed", "quantize_items": "nothing"})
    rows = {"LISA-Base": ROWS["LISA-Base"], "Transformer, quantised": Row("Transformer", {"quantize_items": True})}
    check_rows(table, rows.values(), page=f"migration-{table.options.dataset}.md")
    sources = table.jobs(rows, "migration")
    failed = table.run(sources)
    moved = migration_jobs(sources, "Transformer, quantised", table.settings)
    failed += table.run(moved)
    files = migration_page(
        table.options.dataset, {**results(sources), **results(moved)}, moved, table.public(), Path(table.options.output)
    )
    return _tell(files, failed)


def compression(argv: Sequence[str]) -> int:
    """`python -m benchmarks paper compression --dataset=D`: exports LISA-Base and LISA-Mini; see `ranking`.

    Sizes do not depend on training: one epoch is trained unless `--epochs` says otherwise.
    """
    parser = table_parser("compression", "Compression ratios of item tables as they are exported.")
    parser.set_defaults(seeds=[1])
    table = parse_table(parser, argv, own={"model": "nothing: the rows are fixed"})
    words = table.public()
    table.settings.setdefault("epochs", "1")
    rows = {name: ROWS[name] for name in ("LISA-Base", "LISA-Mini")}
    check_rows(table, rows.values(), page=f"compression-{table.options.dataset}.md")
    todo = table.jobs(rows, "compression")
    failed = table.run(todo)
    exported = export_all(results(todo), Path(table.options.runs, "compression").resolve())
    if not exported and failed:
        return 1
    if not exported:
        raise UsageError(f"there is no finished run in '{table.options.runs}': leave --only_page out")
    return _tell([compression_page(table.options.dataset, exported, words, Path(table.options.output))], failed)


def _tell(files: Sequence[Path], failed: Sequence[object]) -> int:
    for file in files:
        print(file)
    return 1 if failed else 0
