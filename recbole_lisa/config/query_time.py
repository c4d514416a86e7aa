"""The name of a protocol, by which figures are compared, and the setting `query_time`, which is a part of it."""

from collections.abc import Mapping
from typing import Any

from recbole_lisa.errors import UsageError
from recbole_lisa.layers.query_time import TIMES


def reads_query_time(config: Any) -> bool:
    """Whether the model of a configuration reads the time at which it is asked."""
    return "query_time" in config and config["query_time"] not in (None, "none")


def protocol_name(config: Any) -> str:
    """The protocol, with the parts of eval_args that its file has otherwise, and query_time where a model reads it."""
    of_file, of_run = (
        _parts(arguments) for arguments in (config.internal_config_dict["eval_args"], config["eval_args"])
    )
    files = ""
    if config["benchmark_filename"]:  # the files are the split
        of_run["split"], files = of_file["split"], ", split by files"
    changed = ", ".join(f"{part} {value}" for part, value in of_run.items() if value != of_file.get(part))
    times = f", query_time {config['query_time']}" if reads_query_time(config) else ""
    return f"{config['protocol']}{files}{changed and f', eval_args changed: {changed}'}{times}"


def _parts(eval_args: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of eval_args, with a mode for each phase."""
    mode = eval_args["mode"]
    return {**eval_args, "mode": mode if isinstance(mode, Mapping) else {"valid": mode, "test": mode}}


def check_gaps(dataset: str, latest: float) -> None:
    """A UsageError where the latest time of a data set shows that gaps between its times are no seconds."""
    if latest > TIMES[1]:
        raise UsageError(
            f"histogram_decay=time needs times in seconds, but the latest time of {dataset} is {latest:.15g}: its "
            "times have another unit; write seconds into the file, as `convert csv` does, or choose another decay"
        )


def check_query_times(dataset: str, latest: float) -> None:
    """A UsageError where the latest time of a data set shows that its times are no seconds since 1970."""
    if not TIMES[0] <= latest <= TIMES[1]:
        kind = "are ranks, or count from another start" if latest < TIMES[0] else "have another unit"
        raise UsageError(
            f"query_time needs times in seconds since 1970, but the latest time of {dataset} is {latest:.15g}: its "
            f"times {kind}; set query_time to none, or write real times into the file"
        )
