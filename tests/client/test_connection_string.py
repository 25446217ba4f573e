"""Connection strings: parsing, and the messages for wrong ones."""

from __future__ import annotations

import pickle
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.client.connection_string import HostPort, Target, parse
from dcp.client.options import Use, options_of
from dcp.errors import LocalProtocolError

GOOD = "couchbase://reader:secret@db.example.com/travel"


def test_everything_at_once() -> None:
    url = "couchbases://r%40ader:s%2Fe%3Ac@db1,db2:11999,[fe80::1%eth0]:7,[::1]/travel%2Dsample?network=external&kv_connect_timeout=500ms"
    assert parse(url) == Target(
        "couchbases",
        (HostPort("db1", 11207), HostPort("db2", 11999), HostPort("fe80::1%eth0", 7), HostPort("::1", 11207)),
        "travel-sample",
        "r@ader",
        "s/e:c",
        "",
        {"network": "external", "kv_connect_timeout": 0.5},
    )
    assert parse(url).tls


def test_little_suffices() -> None:
    target = parse("couchbase://127.0.0.1/travel")
    assert (target.addresses, target.username, target.password) == ((HostPort("127.0.0.1", 11210),), "", "")
    assert not target.tls


@pytest.mark.parametrize(
    ("hosts", "srv"),
    [
        ("db.example.com", "_couchbase._tcp.db.example.com"),
        ("localhost", "_couchbase._tcp.localhost"),
        ("db.example.com:11210", ""),
        ("db1.example.com,db2.example.com", ""),
        ("10.0.0.1", ""),
        ("[::1]", ""),
    ],
)
def test_one_name_without_a_port_may_be_that_of_a_cluster(hosts: str, srv: str) -> None:
    assert parse(f"couchbase://{hosts}/b").srv == srv
    assert parse(f"couchbases://{hosts}/b").srv == srv.replace("_couchbase.", "_couchbases.")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(TEXT, TEXT)
def test_any_name_and_password_may_be_written(username: str, password: str) -> None:
    target = parse(f"couchbase://{quote(username, safe='')}:{quote(password, safe='')}@h/b")
    assert (target.username, target.password) == (username, password)


@given(st.text("abcf:@/?#%,[]=&1 ", min_size=3, max_size=12).map(lambda text: f"hunter2{text}hunter2"))
def test_no_password_is_shown_however_it_is_written(password: str) -> None:
    try:
        target = parse(f"couchbase://reader:{password}@h1,h2/travel?network=auto")
    except LocalProtocolError as error:
        assert "hunter2" not in repr(error)
        assert error.__context__ is None or "hunter2" not in repr(error.__context__)
    else:
        assert "hunter2" in target.password
        assert "hunter2" not in repr(target) + str(target)


def test_no_part_of_a_password_is_taken_for_an_option_and_shown() -> None:
    """Up to its first / or ? the password could be a port, and its middle a bucket."""
    with pytest.raises(LocalProtocolError, match="password: expected %2F for a /") as caught:
        parse("couchbase://reader:1/b?hunter2@h/travel")
    assert "hunter2" not in str(caught.value)


def test_a_target_crosses_processes_and_keeps_its_secret_from_texts() -> None:
    target = parse(GOOD)
    assert pickle.loads(pickle.dumps(target)).password == "secret"
    assert str(target) == "couchbase://reader@db.example.com:11210/travel"
    assert str(parse("couchbase://db.example.com/travel")) == "couchbase://db.example.com:11210/travel"
    assert "secret" not in repr(target)
    assert str(HostPort("::1", 11210)) == "[::1]:11210"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "scheme: expected couchbase:// or couchbases://, found none"),
        ("localhost/travel", "scheme: expected couchbase:// or couchbases://, found none"),
        ("http://h:8091/b", "found http:// (did you mean couchbase://?)"),
        ("https://h/b", "found https:// (did you mean couchbases://?)"),
        ("couchbse://h/b", "found couchbse:// (did you mean couchbase://?)"),
        ("COUCHBASES://h/b", "found COUCHBASES:// (did you mean couchbases://?)"),
        ("ftp://h/b", "scheme: expected couchbase:// or couchbases://, found ftp://"),
        ("couchbase://h", "bucket: expected a name after the hosts, as in couchbase://host/bucket, found none"),
        ("couchbase://h/", "bucket: expected a name"),
        ("couchbase://h/a/b", "bucket: expected up to 100 letters, digits, _, -, . and %, found 'a/b'"),
        (
            "couchbase:///b",
            "host: expected names or addresses separated by commas, and IPv6 in brackets, found nothing",
        ),
        ("couchbase://h,,i/b", "found nothing"),
        ("couchbase://::1/b", "found an IPv6 address without brackets"),
        ("couchbase://h i/b", "found a character that hosts cannot have"),
        ("couchbase://h:x/b", "port: expected a number from 1 to 65535"),
        ("couchbase://h:0/b", "port: expected a number from 1 to 65535"),
        ("couchbase://h:65536/b", "port: expected a number from 1 to 65535"),
        ("couchbase://h:/b", "port: expected a number from 1 to 65535"),
        ("couchbase://h:8091/b", "port: expected a port of the data service, or none, found 8091"),
        ("couchbase://reader@h/b", "password: expected user:password@, found no colon after the user"),
        ("couchbase://:secret@h/b", "user: expected a name before the colon, found none"),
        ("couchbase://r:50%@h/b", "password: expected two hexadecimal digits after each %"),
        ("couchbase://r:%ff@h/b", "password: expected percent-encoded UTF-8"),
        ("couchbase://r:a\ud800@h/b", "password: expected percent-encoded UTF-8"),
        ("couchbase://r:a/b@h/b", "password: expected %2F for a /"),
        (
            "couchbase://h/b?networ=auto",
            f"option: expected one of {', '.join(sorted(options_of(Use.URL)))}, found 'networ' (did you mean network?)",
        ),
        ("couchbase://h/b?network=here", "option network: expected auto or default or external, found 'here'"),
        ("couchbase://h/b?network", "option network: expected a value after =, found none"),
        ("couchbase://h/b?network=auto&network=auto", "option network: expected one value, found two"),
        ("couchbase://h/b?ca_cert_path=", "option ca_cert_path: expected text, found ''"),
        ("couchbase://h/b?kv_connect_timeout=soon", "expected a duration such as 500ms, 2.5s, 15m or 1h, found 'soon'"),
        ("couchbase://h/b?kv_connect_timeout=0", "expected a duration above 0"),
        ("couchbase://h/b?dcp_buffer_size=4g", "option dcp_buffer_size: expected a size from 0 to 4294967295 bytes"),
        ("couchbase://h/b?tls_verify=maybe", "option tls_verify: expected on or off"),
    ],
)
def test_what_is_wrong_is_said_with_what_is_accepted(url: str, problem: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        parse(url)
    assert str(caught.value).startswith("url: ")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("query", "name", "value"),
    [
        ("dcp_buffer_size=20m", "dcp_buffer_size", 20 << 20),
        ("dcp_buffer_size=0", "dcp_buffer_size", 0),
        ("noop_interval=2m", "noop_interval", 120.0),
        ("stats_interval=0", "stats_interval", 0.0),
        ("stats_interval=0.0", "stats_interval", 0.0),
        ("bootstrap_timeout=2.5", "bootstrap_timeout", 2.5),
        ("tls_verify=off", "tls_verify", False),
        ("ca_cert_path=%2Fetc%2Fca%20s.pem", "ca_cert_path", "/etc/ca s.pem"),
        ("compression=force&", "compression", "force"),
    ],
)
def test_options_have_values_of_their_types(query: str, name: str, value: object) -> None:
    assert parse(f"couchbase://h/b?{query}").options == {name: value}


@given(st.text(max_size=40) | st.text("couchbase:/@?&=%[],.1", max_size=40).map(lambda text: f"couchbase://{text}"))
def test_any_text_is_read_or_refused(url: str) -> None:
    try:
        target = parse(url)
    except LocalProtocolError as error:
        assert str(error).startswith("url: ")
    else:
        assert target.bucket
        assert all(0 < address.port < 1 << 16 for address in target.addresses)
