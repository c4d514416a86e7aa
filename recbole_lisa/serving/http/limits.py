"""What a caller may ask for, and how a refusal looks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The most that one request, and all waiting ones, may take.

    Attributes:
        body_bytes: of a request.
        histories: in one request.
        items: of one list of ids.
        updates: items that one request adds to a session, each a step of the model.
        k: recommendations for one history.
        id_characters: of one item id.
        waiting: requests that wait for the model or run on it; more are told to come back.
        read_seconds: a body may take to arrive.
    """

    body_bytes: int = 2**20
    histories: int = 256
    items: int = 10_000
    updates: int = 100
    k: int = 1000
    id_characters: int = 1000
    waiting: int = 256
    read_seconds: float = 30.0


class RefusalError(Exception):
    """A request that is not answered: HTTP status, a word for programs, a sentence for people.

    Args:
        status: 4xx, or 503 where the caller may try again.
        code: for programs; never changes.
        message: what is wrong and what would be right.
        close: whether the connection must end, as its rest was not read.
    """

    def __init__(self, status: int, code: str, message: str, *, close: bool = False) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.close = status, code, message, close


def invalid(message: str) -> RefusalError:
    """A value that a request must not have."""
    return RefusalError(422, "invalid", message)
