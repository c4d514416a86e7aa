"""The command `recbole-lisa [run]`."""

from collections.abc import Sequence
from pathlib import Path

from recbole_lisa import __version__
from recbole_lisa.cli import imported
from recbole_lisa.cli.arguments import UsageParser
from recbole_lisa.config.registry import MODELS, OPTIONAL_MODELS

_EPILOG = """\
Every setting of RecBole, the model, the data set or the protocol is an option: --epochs=10 or --epochs 10.
Values are yaml: --topk='[5, 10]', --eval_args='{mode: uni100}', --train_neg_sample_args=~

commands:
  recbole-lisa [run] -m MODEL -d DATASET ...   train a model on a data set and print its metrics
  recbole-lisa download DATASET ...            fetch a public data set and write its file
  recbole-lisa convert FORMAT INPUT ...        write the file of a data set from a public archive or any table
  recbole-lisa evaluate --checkpoint FILE ...  score a checkpoint again, for instance with --eval_seen=both
  recbole-lisa compare A.json B.json           print the differences of two runs with bootstrap intervals
  recbole-lisa report RUN.json ... --output F  write one HTML page about runs: curves, metrics, users
  recbole-lisa tune -m MODEL -d DATASET ...    search hyperparameters with Ray Tune
  recbole-lisa export --checkpoint FILE ...    write what serving a model needs: packed codes, no RecBole, no data
  recbole-lisa add-items --export DIR ...      add items to what export wrote, without training
  recbole-lisa recommend --export DIR ...      write the best items for the users of a table or of the data set
  recbole-lisa serve --export DIR ...          answer requests for recommendations over HTTP
  recbole-lisa migrate --checkpoint FILE ...   make a LISABase from the codebooks of a Transformer
  recbole-lisa info                            print versions, devices, kernels and caches
  recbole-lisa completion bash|zsh             print a script that completes command lines
"""


def main(arguments: Sequence[str]) -> int:
    """Train and test one model with `quick_start.run` and the arguments after `run`; return 0."""
    parser = UsageParser("recbole-lisa [run]", "Train a model on a data set and print its metrics.", _EPILOG)
    parser.add_argument("-m", "--model", required=True, help=", ".join([*MODELS, *OPTIONAL_MODELS, "or RecBole's"]))
    parser.add_argument("-d", "--dataset", required=True, help="a data set with settings, or your own")
    parser.add_argument("--protocol", help="full_ranking (default), paper or global_time")
    parser.add_argument("--config_files", nargs="+", default=[], metavar="FILE", help="yaml files; a later one wins")
    parser.add_argument(
        "--overwrite", nargs="?", const="True", help="replace the result_file, per_user_file, codebook_plot"
    )
    parser.add_argument("--version", action="version", version=f"recbole-lisa {__version__}")
    options, settings = parser.parse_with_settings(arguments)
    # RecBole's form, several names in one argument, unless the argument itself is a file.
    files = [file for text in options.config_files for file in ([text] if Path(text).is_file() else text.split())]
    run = imported("quick_start").run
    imported("environment").make_allocation_cheap()
    run(options.model, options.dataset, protocol=options.protocol, config_files=files, command_line=settings)
    return 0
