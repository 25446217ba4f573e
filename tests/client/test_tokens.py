"""Clients that log in with tokens: rotation, tokens that expire, and sources of tokens that fail."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import pytest

import dcp
from dcp.client.tokens import ClientTokens
from dcp.embedded import Cluster
from dcp.embedded.users import make_token
from tests.client.consumer import Consumer, catch_up, truth

pytest.importorskip("cryptography", reason="certificates are made with cryptography")


def started(**options: Any) -> Cluster:
    return Cluster(nodes=2, vbuckets=8, server_version="8.5", tls=True, **options)


class Issuer:
    """Function that returns a new token at each call."""

    def __init__(self, cluster: Cluster, lifetime: float) -> None:
        self.cluster, self.lifetime = cluster, lifetime
        self.issued: list[str] = []

    def __call__(self) -> str:
        self.issued.append(self.cluster.issue_token(lifetime=self.lifetime))
        return self.issued[-1]


def connect(cluster: Cluster, token: str | Callable[[], str], **options: Any) -> dcp.Client:
    return dcp.connect(cluster.tls_url_without_user, ca_cert_path=cluster.ca_file, token=token, **options)


def test_connections_are_replaced_before_their_token_expires(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with started() as cluster:
        tokens = Issuer(cluster, lifetime=2.0)
        with connect(cluster, tokens, stats_interval=0) as client, client.stream() as stream:
            consumer, written = Consumer(), 0
            # One for the map, two for the nodes' streams, and those that replace them.
            while len(tokens.issued) < 9:
                cluster.upsert(f"key-{written % 50}", f'{{"n":{written}}}')
                written += 1
                catch_up(stream, consumer, cluster)
        assert sum(map(len, consumer.rows.values())) == written
    assert "expired" not in caplog.text
    assert not any(token in caplog.text for token in tokens.issued)


def test_an_idle_stream_is_replaced_too() -> None:
    with started() as cluster:
        tokens = Issuer(cluster, lifetime=2.0)
        with connect(cluster, tokens, stats_interval=0) as client, client.stream() as stream:
            while len(tokens.issued) < 7:
                with pytest.raises(dcp.TimeoutError):
                    stream.next(0.1)
            cluster.upsert("last", "1")
            consumer = Consumer()
            catch_up(stream, consumer, cluster)
            assert consumer.state() == truth(cluster)


def test_a_token_that_is_not_renewed_ends_the_stream_with_the_reason() -> None:
    with started() as cluster:
        cluster.upsert("key", "1")
        token = cluster.issue_token(lifetime=2.0)
        with (
            # A machine that takes longer to begin the stream gets the error a little earlier.
            pytest.raises(dcp.AuthenticationError, match="refuses the token; check its expiry") as caught,
            connect(cluster, token) as client,
            client.stream() as stream,
        ):
            list(stream)
    assert token not in str(caught.value)


def test_a_token_that_has_expired_is_refused() -> None:
    with started() as cluster, pytest.raises(dcp.AuthenticationError, match="refuses the token"):
        connect(cluster, cluster.issue_token(lifetime=-1.0))


def test_an_older_server_takes_no_tokens() -> None:
    with (
        Cluster(vbuckets=1, server_version="8.0", tls=True) as cluster,
        pytest.raises(dcp.AuthenticationError, match=r"does not offer OAUTHBEARER, which needs server 8\.1"),
    ):
        connect(cluster, make_token("dcp", 4e9))


def test_a_source_that_fails_may_succeed_later() -> None:
    with started() as cluster:

        def fail() -> str:
            raise RuntimeError(cluster.issue_token())

        with pytest.raises(dcp.TransportError, match="the function that returns it raised RuntimeError") as caught:
            connect(cluster, fail)
        assert caught.value.retriable
        assert "eyJ" not in str(caught.value)


@pytest.mark.parametrize("returned", ["", "two words", "line\n", b"bytes", None, "with\x01control"])
def test_what_is_no_token_is_not_sent(returned: Any) -> None:
    with started() as cluster, pytest.raises(dcp.UsageError, match="token: expected a token of letters") as caught:
        connect(cluster, lambda: returned)
    assert repr(returned)[1:-1] not in str(caught.value) or not returned or returned is None


SECRET = make_token("me", 4e9)
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("couchbase://127.0.0.1/b", {}, "token: expected couchbases://, which is TLS, found couchbase://"),
    ("couchbases://me:secret@127.0.0.1/b", {}, "token: expected no user in the URL beside it, found one"),
    ("couchbases://127.0.0.1/b", {"sasl_mech_force": "PLAIN"}, "sasl_mech_force: expected it without token"),
    ("couchbases://127.0.0.1/b", {"dialect": "tap"}, "token: .* does not support it"),
    ("couchbases://127.0.0.1/b", {"token": SECRET + "\n"}, "token: expected a token of letters.*found a str"),
    ("couchbases://127.0.0.1/b?token=" + SECRET, {}, "option: expected one of"),
]


@pytest.mark.parametrize(("url", "options", "text"), REFUSED)
def test_a_token_is_refused_where_it_would_be_shown_or_not_be_used(
    url: str, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(dcp.UsageError, match=text) as caught:
        dcp.connect(url, **({"token": SECRET} | options))
    assert SECRET not in "".join(traceback.format_exception_only(caught.value)) + repr(pickle.dumps(caught.value))


@pytest.mark.parametrize(
    ("token", "known"),
    [
        (make_token("me", 4e9), True),
        (make_token("me", 1.0), False),
        ("opaque", False),
        ("a.b.c", False),
        ("a.W10.c", False),
        ("a.eyJleHAiOiJ4In0.c", False),
        ("a.eyJleHAiOjFlOTk5fQ.c", True),
        ("a.eyJleHAiOk5hTn0.c", False),
    ],
)
def test_the_life_of_a_token_is_read_where_it_says_so(token: str, known: bool) -> None:
    for source in (ClientTokens(token), ClientTokens(lambda: token)):
        found = source()
        assert (found.token, found.usable is not None) == (token, known)
        assert token not in repr(found)
