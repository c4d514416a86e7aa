"""The service over a real socket: equal to the Recommender, exact under concurrency, clear about mistakes."""

import contextlib
import gzip
import json
import random
import re
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from recbole_lisa.errors import UsageError
from recbole_lisa.serving import Recommender
from recbole_lisa.serving.http.bodies import Limits
from tests.serving.build import IDS, N_ITEMS, raw, small_bundle, updated
from tests.serving.http.build import JSON, PATIENCE, Running, running, seeded_recommender, wait_until

pytest.importorskip("fastapi")
from recbole_lisa.serving.http.middleware import Direct
from recbole_lisa.serving.http.server import address_of, listen
from recbole_lisa.serving.http.stores import MemoryStore, RedisStore


def shown(answer: Any) -> dict[str, Any]:
    return {"items": answer.items, "scores": answer.scores}


def test_recommendations_are_the_recommender_s(service: Running) -> None:
    recommender, histories, some = seeded_recommender(), [raw([1, 2, 3]), raw([4]), raw([5, 6] * 30)], raw([7, 8, 9])
    for options in ({}, {"k": 3, "filter_seen": False}, {"candidates": some}, {"candidates": [some, [], raw([1])]}):
        answer = service.post("/recommend", {"histories": histories, **options})
        assert answer.status == 200
        assert answer.json == {"recommendations": [shown(one) for one in recommender.recommend(histories, **options)]}
    assert service.post("/recommend", {"histories": []}).json == {"recommendations": []}


def test_a_session_is_the_recommender_s_to_the_bit(service: Running) -> None:
    session = seeded_recommender().start(raw([1, 2]))
    started = service.post("/sessions", {"id": "exact", "history": raw([1, 2])})
    assert started.json == {"id": "exact", "length": 2}
    for items in (raw([3]), raw([4, 5, 3])):
        answer = service.post("/sessions/exact/items", {"items": items})
        assert answer.json == {"id": "exact", "length": len(updated(session, items))}
    assert service.get("/sessions/exact/bytes").body == session.to_bytes()
    best = service.post("/sessions/exact/recommend", {"k": 4, "filter_seen": False}).json
    assert best == {**shown(session.recommend(4, filter_seen=False)), "length": 6}
    histograms = [session.batch.histograms[0][0].tolist()]
    assert service.get("/sessions/exact").json == {"id": "exact", "length": 6, "histograms": histograms}
    assert service.call("DELETE", "/sessions/exact").json == {"id": "exact", "deleted": True}
    for method, path in (("GET", ""), ("GET", "/bytes"), ("DELETE", "")):
        assert service.call(method, f"/sessions/exact{path}").error == (404, "no_session")
    for path, body in (("items", {"items": raw([1])}), ("recommend", {})):
        assert service.post(f"/sessions/exact/{path}", body).error == (404, "no_session")


def test_a_repeated_start_or_update_is_refused(service: Running) -> None:
    chosen = [service.post("/sessions", {}) for _ in range(3)]
    assert [answer.status for answer in chosen] == [201] * 3
    assert len({answer.json["id"] for answer in chosen}) == 3
    assert service.post("/sessions", {"id": "once"}).status == 201
    assert service.post("/sessions", {"id": "once"}).error == (409, "session_exists")
    assert service.post("/sessions/once/recommend", {}).error == (422, "invalid")  # it has no item yet
    body = {"items": raw([2]), "expected_length": 0}
    assert service.post("/sessions/once/items", body).json["length"] == 1
    assert service.post("/sessions/once/items", body).error == (409, "other_length")
    assert service.get("/sessions/once").json["length"] == 1


def test_unknown_items_go_by_the_policy(service: Running) -> None:
    recommender, body = seeded_recommender(), {"histories": [["new", "item 1"], ["item 2"], ["new"]], "k": 3}
    known = [shown(one) for one in recommender.recommend([raw([1]), raw([2])], 3)]
    lists = {"recommendations": [*known, {"items": [], "scores": []}]}
    refused = service.post("/recommend", body)
    assert refused.error == (422, "invalid") and "history 0: 1 unknown item: 'new'" in refused.json["message"]
    for policy, warned in (("skip", {}), ("warn", {"unknown": [["new"], [], ["new"]]})):
        assert service.post("/recommend", {**body, "on_unknown": policy}).json == {**lists, **warned}

    assert service.post("/sessions", {"history": ["new"]}).error == (422, "invalid")
    started = service.post("/sessions", {"id": "u", "history": ["new", "item 1"], "on_unknown": "warn"})
    assert started.json == {"id": "u", "length": 1, "unknown": ["new"]}
    update = {"items": ["item 2", "new"]}
    assert service.post("/sessions/u/items", update).error == (422, "invalid")
    assert service.get("/sessions/u").json["length"] == 1  # all of an update or nothing
    assert service.post("/sessions/u/items", {**update, "on_unknown": "skip"}).json == {"id": "u", "length": 2}
    assert service.get("/sessions/u/bytes").body == updated(recommender.start(raw([1])), raw([2])).to_bytes()
    warned = service.post("/sessions/u/items", {**update, "on_unknown": "warn"}).json
    assert warned == {"id": "u", "length": 3, "unknown": ["new"]}


def test_unknown_candidates_go_by_the_policy(service: Running) -> None:
    assert service.post("/sessions", {"id": "c", "history": raw([1])}).status == 201
    expected = shown(seeded_recommender().recommend([raw([1])], candidates=raw([2, 3]))[0])
    for path, history, lists in (
        ("/recommend", {"histories": [raw([1])]}, {"recommendations": [expected]}),
        ("/sessions/c/recommend", {}, {**expected, "length": 1}),
    ):
        body = {**history, "candidates": ["new", *raw([2, 3])]}
        assert service.post(path, body).error == (422, "invalid")
        assert service.post(path, {**body, "on_unknown": "skip"}).json == lists
        warned = service.post(path, {**body, "on_unknown": "warn"}).json
        assert warned.pop("unknown", [[]]) == [[]]
        assert warned == {**lists, "unknown_candidates": ["new"]}
    body = {"histories": [raw([1])] * 2, "candidates": [["new"], raw([2])], "on_unknown": "warn"}
    assert service.post("/recommend", body).json["unknown_candidates"] == [["new"], []]


def test_times_count_where_the_model_needs_them() -> None:
    recommender = Recommender(small_bundle("LISABase", histogram_decay="time")[1])
    with running(recommender) as service:
        assert service.get("/health").json["needs_times"] is True
        body = {"histories": [["new", *raw([1, 2])]], "times": [[1, 2, 9.5]], "k": 3, "on_unknown": "skip"}
        expected = shown(recommender.recommend([raw([1, 2])], 3, times=[[2, 9.5]])[0])
        assert service.post("/recommend", body).json == {"recommendations": [expected]}
        assert service.post("/recommend", {"histories": [raw([1])]}).error == (422, "invalid")
        start = {"id": "t", "history": ["new", "item 1"], "times": [1, 2], "on_unknown": "skip"}
        assert service.post("/sessions", start).status == 201
        for times, message in (([1], "never go back"), ([9, 10], "one number for each of the 1 items, not 2")):
            refused = service.post("/sessions/t/items", {"items": ["item 2"], "times": times})
            assert refused.error == (422, "invalid") and message in refused.json["message"]
        assert service.post("/sessions/t/items", {"items": ["item 2"], "times": [9.5]}).json["length"] == 2
        assert service.post("/sessions/t/recommend", {"k": 3}).json["items"] == expected["items"]


MODELS = [("LISASoft", 1), ("LISAMini", 1), ("LISAMini", 2), ("LinearTransformer", 0), ("Transformer", None)]


@pytest.mark.parametrize(("name", "n_histograms"), MODELS)
def test_other_models_are_served_too(name: str, n_histograms: int | None) -> None:
    recommender = seeded_recommender(name, n_layers=n_histograms or 1)
    with running(recommender) as service:
        health = service.get("/health").json
        assert (health["model"], health["items"], health["sessions"]) == (name, N_ITEMS - 1, n_histograms is not None)
        answer = service.post("/recommend", {"histories": [raw([1, 2])], "k": 4}).json
        assert answer["recommendations"] == [shown(recommender.recommend([raw([1, 2])], 4)[0])]
        started = service.post("/sessions", {"id": "s", "history": raw([1])})
        if n_histograms is None:
            assert started.error == (422, "invalid") and "Transformer has no sessions" in started.json["message"]
            return
        service.post("/sessions/s/items", {"items": raw([2, 3])})
        session = updated(recommender.start(raw([1])), raw([2, 3]))
        assert service.get("/sessions/s/bytes").body == session.to_bytes()
        best = service.post("/sessions/s/recommend", {"k": 4}).json
        assert best == {**shown(session.recommend(4)), "length": 3}
        assert len(service.get("/sessions/s").json["histograms"]) == n_histograms


def test_items_are_searched_by_a_part_of_their_id(service: Running) -> None:
    assert service.get("/items?query=tem%202&limit=3").json == {"items": ["item 2", "item 20", "item 21"]}
    assert service.get("/items?query=item%2017").json == {"items": ["item 17"]}
    assert service.get("/items?query=%00%ff").json == {"items": []}
    assert len(service.get("/items").json["items"]) == 20
    for query in ("limit=0", "limit=101", "limit=x", "limit=%C2%B2", "limit=" + "9" * 999, "query=" + "x" * 101):
        assert service.get(f"/items?{query}").error == (422, "invalid")
    for path in ("/items?quer=UP", "/items?query=a&query=b", "/health?x", "/metrics?query=a", "/sessions/a?limit=1"):
        assert service.get(path).error == (422, "invalid")
    for path in ("/recommend?top_k=3", "/sessions?id=a"):
        answer = service.post(path, {"histories": [["item 2"]]} if "top_k" in path else {"history": []})
        assert answer.error == (422, "invalid") and "takes no parameters" in answer.json["message"]


def test_titles_are_part_of_every_list() -> None:
    titles = {"item 2": "Up", "item 20": "</script>"}
    with running(Recommender(replace(seeded_recommender().bundle, titles=titles))) as service:
        service.post("/sessions", {"id": "s", "history": raw([1])})
        [best] = service.post("/recommend", {"histories": [raw([1])], "k": 30}).json["recommendations"]
        lists = (best, service.get("/items").json, service.post("/sessions/s/recommend", {}).json)
        assert service.get("/items?query=UP&limit=5").json == {"items": ["item 2"], "titles": ["Up"]}
        assert all(one["titles"] == [titles.get(item) for item in one["items"]] for one in lists)


def update_at_once(session: str, services: list[Running], n: int) -> None:
    """Send n updates of one session from 8 threads, and check that none is lost or counted twice."""

    def update(number: int) -> int:
        body = {"items": [IDS[1 + number % (N_ITEMS - 1)]]}
        answer = services[number % len(services)].post(f"/sessions/{session}/items", body)
        assert answer.status == 200, answer.body
        return int(answer.json["length"])

    with ThreadPoolExecutor(8) as clients:
        lengths = list(clients.map(update, range(n)))
    assert sorted(lengths) == list(range(1, n + 1))
    assert [one.get(f"/sessions/{session}").json["length"] for one in services] == [n] * len(services)


def test_one_session_takes_concurrent_updates_one_after_the_other(service: Running) -> None:
    service.post("/sessions", {"id": "many"})
    update_at_once("many", [service], 40)


def test_two_services_on_one_redis_lose_no_update(redis_url: str) -> None:
    recommender = seeded_recommender()

    def store() -> Any:
        return RedisStore(redis_url, recommender.fingerprint, 1000, timeout=PATIENCE)

    with running(recommender, store()) as one, running(recommender, store()) as other:
        assert one.get("/health").json["store"] == "redis"
        assert one.post("/sessions", {"id": "both"}).status == 201
        assert other.post("/sessions", {"id": "both"}).error == (409, "session_exists")
        update_at_once("both", [one, other], 30)
        assert one.get("/sessions/both/bytes").body == other.get("/sessions/both/bytes").body
        assert other.call("DELETE", "/sessions/both").status == 200
        assert one.get("/sessions/both").error == (404, "no_session")


def test_a_change_that_another_service_made_first_is_done_again() -> None:
    class Overtaken(MemoryStore):
        """Another service adds an item before each of the first two writes."""

        tries = 0

        async def replace(self, session: str, data: bytes, before: bytes) -> bool:
            self.tries += 1
            if self.tries <= 2:
                stored = await self.load(session)
                assert stored is not None
                theirs = recommender.from_bytes(stored)
                theirs.update("item 9")
                await super().replace(session, theirs.to_bytes(), stored)
            return await super().replace(session, data, before)

    recommender, store = seeded_recommender(), Overtaken(9, 100)
    with running(recommender, store) as service:
        service.post("/sessions", {"id": "s", "history": raw([1])})
        assert service.post("/sessions/s/items", {"items": raw([2])}).json["length"] == 4
        assert store.tries == 3
        session = updated(recommender.start(raw([1])), raw([9, 9, 2]))
        assert service.get("/sessions/s/bytes").body == session.to_bytes()
        assert b"recbole_lisa_session_conflicts_total 2.0" in service.get("/metrics").body


def test_a_store_that_never_takes_a_change_ends_in_503(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(MemoryStore):
        async def replace(self, session: str, data: bytes, before: bytes) -> bool:
            return False

    monkeypatch.setattr("recbole_lisa.serving.http.app.MAX_TRIES", 3)
    with running(seeded_recommender(), Refusing(9, 100)) as service:
        service.post("/sessions", {"id": "s"})
        refused = service.post("/sessions/s/items", {"items": raw([2])})
        assert refused.error == (503, "busy") and refused.headers["retry-after"] == "1"


class HeldUp:
    """A recommender whose `recommend` notes the number of its histories, and answers once it is let go."""

    def __init__(self) -> None:
        self.recommender, self.called, self.let_go = seeded_recommender(), threading.Event(), threading.Event()
        self.calls: list[int] = []
        self._recommend, self.recommender.recommend = self.recommender.recommend, self.recommend  # type: ignore[method-assign]  # replaced on purpose

    def recommend(self, histories: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(len(histories))
        self.called.set()
        assert self.let_go.wait(PATIENCE)
        return self._recommend(histories, *args, **kwargs)


def test_requests_beyond_those_that_may_wait_are_sent_back() -> None:
    held, body = HeldUp(), {"histories": [raw([1])]}
    with running(held.recommender, limits=Limits(waiting=1)) as service, ThreadPoolExecutor(1) as clients:
        first = clients.submit(service.post, "/recommend", body)
        assert held.called.wait(PATIENCE)
        assert service.get("/health").status == 200  # the event loop goes on
        assert b"recbole_lisa_waiting 1.0" in service.get("/metrics").body
        assert service.post("/recommend", body).error == (503, "busy")
        held.let_go.set()
        assert first.result().status == 200
        assert service.post("/recommend", body).status == 200


def test_requests_that_wait_when_the_service_stops_get_503(caplog: pytest.LogCaptureFixture) -> None:
    held, bodies = HeldUp(), [("/recommend", {"histories": [raw([1])], "candidates": raw([n])}) for n in range(2, 6)]
    bodies.append(("/sessions", {"history": raw([1])}))
    with running(held.recommender, limits=Limits(batch=1)) as service, ThreadPoolExecutor(len(bodies)) as clients:
        waiting = [clients.submit(service.post, *bodies[0])]
        assert held.called.wait(PATIENCE)  # before /sessions, which nothing holds up, can reach the model
        waiting += [clients.submit(service.post, *body) for body in bodies[1:]]
        wait_until(lambda: f"recbole_lisa_waiting {len(bodies)}.0".encode() in service.get("/metrics").body)
        service.server.config.timeout_graceful_shutdown = 0.1
        service.server.should_exit = True
        assert {one.result().error for one in waiting} == {(503, "stopping")}
        held.let_go.set()
    assert len(held.calls) == 1
    assert not [record for record in caplog.records if record.exc_info]


def test_a_second_signal_does_not_end_the_service_in_the_middle() -> None:
    with running(seeded_recommender()) as service:
        for _ in range(2):
            service.server.handle_exit(signal.SIGINT, None)
        assert service.server.should_exit and not service.server.force_exit


def test_a_body_that_is_half_sent_when_the_service_stops_gets_503(caplog: pytest.LogCaptureFixture) -> None:
    with running(seeded_recommender()) as service, ThreadPoolExecutor(1) as clients:
        half = clients.submit(service.raw, HEAD + b"Content-Length: 9\r\n\r\n{", then_close=False)
        wait_until(lambda: b"recbole_lisa_in_flight 1.0" in service.get("/metrics").body)
        service.server.config.timeout_graceful_shutdown = 0.1
        service.server.should_exit = True
        answer = half.result()
    assert answer.startswith(b"HTTP/1.1 503 ") and b'"stopping"' in answer
    assert not [record for record in caplog.records if record.exc_info]


def send_while_held(held: HeldUp, bodies: list[Any], limits: Limits) -> list[Any]:
    """The answers to `bodies`; the first request holds up the model until all the others wait."""
    with running(held.recommender, limits=limits) as service, ThreadPoolExecutor(len(bodies)) as clients:
        first = clients.submit(service.post, "/recommend", bodies[0])
        assert held.called.wait(PATIENCE)
        others = [clients.submit(service.post, "/recommend", body) for body in bodies[1:]]
        wait_until(lambda: f"recbole_lisa_waiting {len(bodies)}.0".encode() in service.get("/metrics").body)
        held.let_go.set()
        return [one.result() for one in [first, *others]]


def test_requests_that_wait_together_share_a_batch_and_a_wrong_one_spoils_no_other() -> None:
    held = HeldUp()
    bodies = [{"histories": [raw([n]), raw([n, n + 1])], "k": 3} for n in range(1, 7)]
    bodies += [{"histories": [["new"]], "k": 3}, {"histories": [raw([8])], "k": 3, "on_unknown": "skip"}]
    expected = [seeded_recommender().recommend(body["histories"], 3, on_unknown="skip") for body in bodies]
    answers = send_while_held(held, bodies, Limits())
    assert answers[6].error == (422, "invalid") and "unknown item: 'new'" in answers[6].json["message"]
    for n, (answer, lists) in enumerate(zip(answers, expected, strict=True)):
        for best, one in zip(answer.json.get("recommendations", []), lists, strict=n != 6):
            assert best == {"items": one.items, "scores": pytest.approx(one.scores, rel=1e-9)}
    assert held.calls[0] == 2
    assert sorted(held.calls[1:]) == [1, 1, 2, 2, 2, 2, 2, 11]  # the six requests under "raise", then each alone


@pytest.mark.parametrize(("batch", "calls"), [(1, [1] * 8), (3, [1, 3, 3, 1]), (32, [1, 7])])
def test_batches_have_a_maximal_size_and_equal_answers(batch: int, calls: list[int]) -> None:
    held, bodies = HeldUp(), [{"histories": [raw([n, n + 1])], "k": 3} for n in range(1, 9)]
    answers = send_while_held(held, bodies, Limits(batch=batch, batch_wait_ms=0))
    assert held.calls == calls
    for answer, body in zip(answers, bodies, strict=True):
        (one,) = seeded_recommender().recommend(body["histories"], 3)
        assert answer.json["recommendations"] == [{"items": one.items, "scores": pytest.approx(one.scores, rel=1e-6)}]


def test_a_lone_request_does_not_wait() -> None:
    with running(seeded_recommender(), limits=Limits(batch_wait_ms=1000 * PATIENCE)) as service:
        for _ in range(3):
            assert service.post("/recommend", {"histories": [raw([1])]}).status == 200  # else the client gives up


@pytest.mark.parametrize(("wait_ms", "calls"), [(1000 * PATIENCE, [2]), (1.0, [1, 1])])
def test_a_batch_waits_for_a_request_whose_body_is_on_its_way(wait_ms: float, calls: list[int]) -> None:
    held, body = HeldUp(), json.dumps({"histories": [raw([1])]}).encode()
    head = b"POST /recommend HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n".encode()
    held.let_go.set()
    with running(held.recommender, limits=Limits(batch_wait_ms=wait_ms)) as service, ThreadPoolExecutor(1) as clients:
        with socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE) as slow:
            slow.sendall(head)
            wait_until(lambda: b"recbole_lisa_in_flight 1.0" in service.get("/metrics").body)
            other = clients.submit(service.post, "/recommend", {"histories": [raw([2])]})
            if len(calls) == 2:
                assert other.result().status == 200
            else:
                wait_until(lambda: b"recbole_lisa_waiting 1.0" in service.get("/metrics").body)
            slow.sendall(body)
            assert b" 200 " in slow.makefile("rb").readline()
        assert other.result().status == 200
    assert held.calls == calls


def test_a_request_that_is_refused_ends_the_wait_for_it() -> None:
    limits = Limits(batch_wait_ms=1000 * PATIENCE)
    head = b"POST /recommend HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"
    with running(seeded_recommender(), limits=limits) as service, ThreadPoolExecutor(1) as clients:
        with socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE) as gone:
            gone.sendall(head)
            wait_until(lambda: b"recbole_lisa_in_flight 1.0" in service.get("/metrics").body)
            other = clients.submit(service.post, "/recommend", {"histories": [raw([2])]})
            wait_until(lambda: b"recbole_lisa_waiting 1.0" in service.get("/metrics").body)
        assert other.result().status == 200


def test_a_failure_is_a_500_without_its_cause() -> None:
    recommender = seeded_recommender()
    recommender.recommend = Mock(side_effect=KeyError("a secret"))  # type: ignore[method-assign]
    with running(recommender) as service:
        failed = service.post("/recommend", {"histories": [raw([1])]})
        assert failed.error == (500, "failed") and b"secret" not in failed.body
        assert service.get("/health").status == 200
        assert b'requests_total{route="recommend",status="500"} 1.0' in service.get("/metrics").body


def test_the_service_describes_itself(service: Running) -> None:
    paths = service.get("/openapi.json").json["paths"]
    assert {f"{method} {path}" for path, methods in paths.items() for method in methods} == {
        *(f"get /{name}" for name in ("health", "metrics", "items", "sessions/{session}", "sessions/{session}/bytes")),
        *(f"post /{name}" for name in ("recommend", "sessions", "sessions/{session}/items")),
        "post /sessions/{session}/recommend",
        "delete /sessions/{session}",
    }
    assert service.get("/docs").status == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "error"),
    [
        ("POST", "/recommend", b"{", JSON, (400, "not_json")),
        ("POST", "/recommend", b"\xff", JSON, (400, "not_json")),
        ("POST", "/recommend", b"", JSON, (422, "invalid")),
        ("POST", "/recommend", b'{"histories": ' + b"[" * 50_000, JSON, (400, "not_json")),
        ("POST", "/recommend", b'{"histories": [[NaN]]}', JSON, (422, "invalid")),
        ("POST", "/recommend", b'{"histories": [["\\ud800"]]}', JSON, (422, "invalid")),
        ("POST", "/recommend", b'{"histories": [["item 1"]], "k": 1e400}', JSON, (422, "invalid")),
        ("POST", "/recommend", b'{"histories": [["item 1"]]}', {}, (422, "invalid")),
        ("POST", "/recommend", b'{"histories": [["item 1"]]}', {"Content-Type": "text/plain"}, (422, "invalid")),
        ("POST", "/recommend", gzip.compress(b"{}", mtime=0), {**JSON, "Content-Encoding": "gzip"}, (400, "not_json")),
        ("POST", "/recommend", b'{"histories": [["item 1"]], "k": 1, "k": 2}', JSON, (422, "invalid")),
        ("POST", "/sessions", b'{"id": "../x"}', JSON, (422, "invalid")),
        ("GET", "/sessions/a%00b", None, {}, (422, "invalid")),
        ("GET", "/sessions/%FF%FE", None, {}, (422, "invalid")),
        ("GET", "/sessions/" + "x" * 5000, None, {}, (422, "invalid")),
        ("DELETE", "/sessions/a b".replace(" ", "%20"), None, {}, (422, "invalid")),
        ("GET", "/sessions/a%2Fb", None, {}, (404, "no_such_path")),
        ("GET", "/sessions/", None, {}, (404, "no_such_path")),
        ("GET", "/../../etc/passwd", None, {}, (404, "no_such_path")),
        ("POST", "/sessions/{session}/items", b'{"items": ["item 1"]}', JSON, (422, "invalid")),
        ("GET", "/recommend", None, {}, (405, "not_allowed")),
        ("PUT", "/sessions", b"{}", JSON, (405, "not_allowed")),
    ],
    ids=lambda value: str(value)[:40],
)
def test_mistakes_are_answered_as_json(
    service: Running, method: str, path: str, body: bytes | None, headers: dict[str, str], error: tuple[int, str]
) -> None:
    answer = service.call(method, path, body, headers)
    assert answer.error == error
    assert ("Content-Encoding is 'gzip'" in answer.json["message"]) == ("Content-Encoding" in headers)


HEAD = b"POST /recommend HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
BODIES = (
    *(b'{"histories": [["item 1"]], "k": 2}', b'{"histories": []}', b'{"histories": [["new"]]}', b"[1]", b"{", b""),
    *(b'{"histories": [["item 1"]], "on_unknown": "warn"}', b'{"histories": [["item 1"]], "k": 1001}', b'"x"', b"null"),
    *(b'{"items": ["item 1"]}', b'{"items": [1.5]}', b'{"history": ["item 1"], "id": "way"}', b'{"k": 3}', b"{}"),
    '{"histories": [["item 1"]], "k": 4}'.encode("utf-16"),
)


@pytest.mark.parametrize("path", ["/recommend", "/sessions", "/sessions/way/items", "/sessions/way/recommend"])
@pytest.mark.parametrize("kind", ["application/json", "Application/x+JSON; charset=utf-8", "text/json", "a/b/json"])
def test_direct_answers_as_fastapi(service: Running, monkeypatch: pytest.MonkeyPatch, path: str, kind: str) -> None:
    async def pass_on(self: Direct, *request: Any) -> None:
        await self.app(*request)

    def answers() -> list[Any]:
        service.call("DELETE", "/sessions/way")
        service.post("/sessions", {"id": "way", "history": raw([1])})
        given = [service.call("POST", path, body, {"Content-Type": kind}) for body in BODIES]
        return [(one.status, one.headers | {"date": ""}, re.sub(rb'"id": "[^"]{22}"', b"", one.body)) for one in given]

    short = answers()
    monkeypatch.setattr(Direct, "__call__", pass_on)
    assert answers() == short


def test_only_names_that_are_served_are_answered(service: Running) -> None:
    for host in ("localhost", "LOCALHOST:99", "127.0.0.1:8000"):
        assert service.call("GET", "/health", headers={"Host": host}).status == 200
    for host in ("evil.example", "127.0.0.1.evil.example:80", "", "x" * 5000, "[::2]:80", "localhost:80:90"):
        answer = service.call("GET", "/health", headers={"Host": host})
        assert answer.error == (400, "unknown_host") and "--allowed_host" in answer.json["message"]


def test_bodies_have_a_limit_however_they_come() -> None:
    limits = Limits(body_bytes=1000)
    with running(seeded_recommender(), limits=limits) as service:
        fits = json.dumps({"histories": [raw([1])]}).encode().ljust(1000)
        assert service.post("/recommend", fits).status == 200
        for size in (1001, 7000):
            answer = service.post("/recommend", fits.ljust(size))
            assert answer.error == (413, "too_large") and answer.headers["connection"] == "close"
        announced = service.raw(HEAD + b"Content-Length: 99999999999\r\n\r\n", then_close=False)
        assert announced.startswith(b"HTTP/1.1 413 ")
        chunk = b"200\r\n" + b" " * 512 + b"\r\n"
        small = b"%x\r\n" % len(fits) + fits + b"\r\n0\r\n\r\n"
        for chunks, status in ((chunk * 3 + b"0\r\n\r\n", b"413"), (chunk * 16, b"413"), (small, b"200")):
            chunked = HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
            assert service.raw(chunked, then_close=False).startswith(b"HTTP/1.1 " + status)


def test_a_body_that_does_not_arrive_is_given_up() -> None:
    with running(seeded_recommender(), limits=Limits(read_seconds=0.05)) as service:
        assert service.raw(HEAD + b"Content-Length: 9\r\n\r\n{", then_close=False).startswith(b"HTTP/1.1 408 ")


HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "not http": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
    "no request line": b"\r\n\r\n",
    "a long path": b"GET /" + b"x" * 10**6 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a long header": b"GET / HTTP/1.1\r\nX: " + b"x" * 10**6 + b"\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
    "a length that is none": HEAD + b"Content-Length: -1\r\n\r\n{}",
    "two lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 20\r\n\r\n{}",
    "length and chunks": HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "an ended body": HEAD + b'Content-Length: 100\r\n\r\n{"histories"',
    "an ended chunk": HEAD + b'Transfer-Encoding: chunked\r\n\r\n50\r\n{"histories"',
    "chunks without end": HEAD + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"his\r\n',
    "a chunk of no length": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "an endless chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}",
    "smuggled": HEAD + b"Content-Length: 2\r\n\r\n{}POST /recommend HTTP/1.1\r\n\r\n",
    "a websocket": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_bytes_change_nothing(service: Running, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    answered = service.raw(HOSTILE[kind], then_close=True)
    statuses = [line.split()[1] for line in answered.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    assert set(statuses) <= {b"200", b"400", b"403", b"422"}
    assert (statuses == [b"200"]) == (kind == "a websocket")  # which is answered as plain HTTP
    assert service.get("/health").status == 200
    assert not any(record.levelname in ("ERROR", "CRITICAL") for record in caplog.records)


def test_random_damage_is_never_a_failure(service: Running) -> None:
    service.post("/sessions", {"id": "fuzz", "history": raw([1])})
    lists = {"histories": [raw([1, 2])], "candidates": raw([3]), "times": [[1, 2]]}
    bodies = {
        "/recommend": {**lists, "k": 2, "filter_seen": True},
        "/sessions": {"history": raw([1]), "on_unknown": "skip", "times": [1]},
        "/sessions/fuzz/items": {"items": raw([1]), "expected_length": 1},
        "/sessions/fuzz/recommend": {"k": 2, "candidates": raw([1, 2])},
    }
    generator, odd = random.Random(0), [None, -1, 0, 1e308, 2**63, "", "\ud800", [], {}, [[]], [None], True, "x" * 2000]
    changes: list[Callable[[bytes, dict[str, Any]], bytes]] = [
        lambda text, body: text[: generator.randrange(len(text))],
        lambda text, body: bytes(generator.choice([b, b, b, b, generator.randrange(256)]) for b in text),
        lambda text, body: json.dumps({**body, generator.choice(list(body)): generator.choice(odd)}).encode(),
        lambda text, body: json.dumps({name: generator.choice(odd) for name in body}).encode(),
        lambda text, body: json.dumps({name: [generator.choice(odd)] for name in body}).encode(),
    ]
    seen = set()
    for _ in range(300):
        path, body = generator.choice(list(bodies.items()))
        answer = service.post(path, generator.choice(changes)(json.dumps(body).encode(), body))
        assert answer.status in (200, 201) or answer.error[0] in (400, 409, 422)
        seen.add(answer.status)
    assert {400, 422} <= seen
    assert service.get("/health").status == 200


def test_metrics_count_requests_by_route(service: Running) -> None:
    def counted() -> float:
        lines = service.get("/metrics").body.decode().splitlines()
        name = 'recbole_lisa_requests_total{route="describe",status="404"}'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    before = counted()
    for number in range(3):
        service.get(f"/sessions/gone{number}")
    assert counted() == before + 3
    answer = service.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    for name in (b"process_resident_memory_bytes", b"recbole_lisa_sessions ", b"recbole_lisa_request_seconds_bucket"):
        assert name in answer.body
    assert b"gone1" not in answer.body  # a path of a caller is no label


def test_every_answer_has_the_headers_that_browsers_heed(service: Running) -> None:
    for path in ("/", "/health", "/metrics", "/nothing"):
        headers = service.get(path).headers
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers and "server" not in headers
    assert "default-src 'none'; script-src 'sha256-" in service.get("/").headers["content-security-policy"]
    head = service.call("HEAD", "/health")
    assert (head.status, head.body) == (200, b"")


def test_a_socket_takes_callers_at_once_and_only_on_its_address() -> None:
    with listen("127.0.0.1", 0) as listening:
        host, port = listening.getsockname()
        assert address_of(listening) == f"http://127.0.0.1:{port}/"
        assert listening.proto == socket.IPPROTO_TCP  # asyncio then sends at once
        with socket.create_connection((host, port), timeout=60):
            pass
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.2", port), timeout=60)
    with contextlib.suppress(UsageError), listen("::1", 0) as listening:  # a machine may lack IPv6
        assert address_of(listening) == f"http://[::1]:{listening.getsockname()[1]}/"
