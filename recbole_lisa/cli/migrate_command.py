"""The command `recbole-lisa migrate`."""

from collections.abc import Sequence
from pathlib import Path

from recbole_lisa.cli.arguments import UsageParser
from recbole_lisa.migration import migrate

_EPILOG = """\
First train a vanilla Transformer on quantised items, then hand its codebooks to LISA-Base:

  recbole-lisa -m Transformer -d ml-100k --protocol=paper --quantize_items=True
  recbole-lisa migrate --checkpoint saved/Transformer-....pth --output saved/migrated.pth --epochs=60

Items and codebooks stay frozen. The file is the LISABase as it is before further training; with --epochs it is trained
further, from the Transformer's other parameters, and tested like any run. Settings are written --key=value; all
others are the Transformer's.
"""


def main(arguments: Sequence[str]) -> int:
    """Migrate codebooks and print the metrics, with the arguments after `migrate`; return 0."""
    parser = UsageParser("recbole-lisa migrate", "Make a LISABase from the codebooks of a Transformer.", _EPILOG)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="FILE", help="a .pth file of a Transformer")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the .pth file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")
    options, settings = parser.parse_with_settings(arguments)
    metrics, _ = migrate(options.checkpoint, options.output, settings)
    text = ", ".join(f"{name} {value:.4f}" for name, value in (metrics or {}).items()) or "there is no test set"
    print(f"{options.output}: LISABase without further training: {text}")
    return 0
