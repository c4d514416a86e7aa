"""The setting `query_time`: whether a model reads the time of its target. Figures with it have their own protocol."""

from typing import Any

from recbole_lisa.errors import UsageError
from recbole_lisa.layers.query_time import TIMES


def reads_query_time(config: Any) -> bool:
    """Whether the model of a configuration reads the time at which it is asked."""
    return "query_time" in config and config["query_time"] not in (None, "none")


def protocol_name(config: Any) -> str:
    """The protocol, with query_time where the time of the target is read."""
    name = str(config["protocol"])
    return f"{name}, query_time {config['query_time']}" if reads_query_time(config) else name


def check_query_times(dataset: str, latest: float) -> None:
    """A UsageError where the latest time of a data set shows that its times are no seconds since 1970."""
    if not TIMES[0] <= latest <= TIMES[1]:
        kind = "ranks, or count from another start" if latest < TIMES[0] else "have another unit"
        raise UsageError(
            f"query_time needs times in seconds since 1970, but the latest time of {dataset} is {latest:.15g}: its "
            f"times {kind}; set query_time to none, or write real times into the file"
        )
