"""The command `recbole-lisa evaluate`."""

from collections.abc import Sequence
from pathlib import Path

from recbole_lisa.cli.arguments import UsageParser
from recbole_lisa.config.query_time import protocol_name
from recbole_lisa.errors import UsageError
from recbole_lisa.files import check_output
from recbole_lisa.saved import load_data_and_model
from recbole_lisa.training.evaluation import evaluate_targets
from recbole_lisa.training.logging import metric_text
from recbole_lisa.training.result import write_per_user

_SETTINGS = ("eval_seen", "metrics", "topk", "metric_decimal_place", "per_user_file", "overwrite")
_PLACES = ("data_path", "use_gpu", "gpu_id", "eval_batch_size")
_EPILOG = f"""\
The split and the data are those of the checkpoint. Settings that may be others, as --key=value:
{", ".join(_SETTINGS)}; {", ".join(_PLACES)}

  recbole-lisa evaluate --checkpoint saved/RUN.pth --eval_seen=both
"""


def main(arguments: Sequence[str]) -> int:
    """Print the metrics of a checkpoint, with the arguments after `evaluate`; return 0."""
    parser = UsageParser("recbole-lisa evaluate", "Score a checkpoint again on the data of its run.", _EPILOG)
    add = parser.add_argument
    add("--checkpoint", type=Path, required=True, metavar="FILE", help="a .pth file of a run")
    add("--phase", choices=("valid", "test"), default="test", help="the held-out items to rank; default test")
    add("--overwrite", nargs="?", const="True", help="replace the per_user_file")
    options, settings = parser.parse_with_settings(arguments)
    for key in settings:
        if key not in (*_SETTINGS, *_PLACES):
            raise UsageError(f"evaluate does not take '--{key}': known are {', '.join((*_SETTINGS, *_PLACES))}")
    config, model, *_, valid, test = load_data_and_model(options.checkpoint, command_line=settings)
    loader = valid if options.phase == "valid" else test
    if loader is None:
        raise UsageError(f"protocol '{config['protocol']}' has no {options.phase} items: choose the other --phase")
    file = config["per_user_file"] if "per_user_file" in settings else None  # not that of the run
    overwrite = "overwrite" in settings and bool(config["overwrite"])
    if file is not None:
        check_output(file, overwrite=overwrite, source=options.checkpoint)
    metrics, _, collected = evaluate_targets(model, loader, config, show_progress=True)
    names = config["model"], config["dataset"], protocol_name(config), config["eval_seen"]
    print("{} on {}, protocol {}, eval_seen {}, {} targets".format(*names, f"{len(loader.targets)} {options.phase}"))
    for name, value in metrics.items():
        print(f"{name:<{max(map(len, metrics))}}  {metric_text(value, config)}")
    if file is not None:
        write_per_user(loader, config, collected, file, overwrite=overwrite)
    return 0
