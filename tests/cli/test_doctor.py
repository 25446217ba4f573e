"""`dcp doctor`: the first step that fails, with a remedy."""

from __future__ import annotations

import json
import re
import socket

import pytest

import dcp
from dcp.cli.doctor_checks import CheckFailed, DoctorContext, _addresses, judge_clock
from dcp.embedded import Cluster
from dcp.embedded.users import Privilege, User
from tests.cli.commands import fill_two_collections, run
from tests.client.name_server import name_server

STEPS = ["url", "dns", "tcp", "tls", "user, bucket", "cluster map", "addresses", "nodes", "privileges", "features"]
STEPS += ["control", "streams", "clock"]


def failing(url: str, *options: str) -> tuple[str, str, str]:
    """Return the step that fails, its message and its remedy."""
    result = run("doctor", url, "--json", *options)
    assert result.exit_code == 1
    steps = json.loads(result.output)
    assert [step["ok"] for step in steps] == [True] * (len(steps) - 1) + [False]
    assert "s3cret" not in result.output
    return steps[-1]["name"], steps[-1]["says"], steps[-1]["remedy"]


def test_a_healthy_cluster_passes_every_step() -> None:
    with Cluster(nodes=2, vbuckets=8, replicas=1, password="s3cret") as cluster:
        cluster.load(100)
        steps = json.loads(run("doctor", cluster.url, "--json").output)
        assert [(step["name"], step["ok"]) for step in steps] == [(name, True) for name in STEPS]
        says = {step["name"]: step["says"] for step in steps}
        assert says["cluster map"] == "8 vbuckets on 2 nodes, 1 replica, revision 1.1"
        assert says["clock"].startswith("the newest change is from 20")
        result = run("doctor", cluster.url)
        assert result.exit_code == 0
        assert result.output.count("✓") == len(STEPS)
        assert "s3cret" not in result.output


def said(url: str) -> dict[str, str]:
    """Return what each step of a check without failures says."""
    result = run("doctor", url, "--json")
    assert result.exit_code == 0, result.output
    return {step["name"]: step["says"] for step in json.loads(result.output)}


def test_every_step_says_what_it_found() -> None:
    with Cluster(nodes=2, vbuckets=8, replicas=1, password="s3cret") as cluster:
        cluster.load(100)
        here, there = cluster.addresses
        says = said(cluster.url)
        assert says["dns"] == "127.0.0.1"
        assert says["tcp"] == f"{here}, {there}"
        assert says["tls"].startswith("off: ")
        assert says["user, bucket"] == "dcp with SCRAM-SHA512; bucket default is open"
        assert says["addresses"] == f"default: {here}, {there}"
        assert says["nodes"] == "all 2 answer"
        assert says["privileges"] == "the user may open DCP on every node"
        assert {"collections", "json", "snappy", "xattr"} <= {*says["features"].split(", ")}
        assert says["control"] == "every node accepts noop and flow control"
        assert says["streams"] == "8 vbuckets read to the end"
        named = said(cluster.url.replace(f"{here},{there}", f"localhost:{here.rpartition(':')[2]},127.0.0.1:1"))
        name, addresses, other = named["dns"].replace("; ", " is ").split(" is ")
        assert (name, other) == ("localhost", "127.0.0.1")
        assert "127.0.0.1" in addresses.split(", ")
        assert named["tcp"].startswith(f"localhost:{here.rpartition(':')[2]}; 127.0.0.1:1: ")


def test_a_bucket_without_changes_and_a_client_without_a_window_pass() -> None:
    with Cluster(vbuckets=4) as cluster:
        says = said(cluster.url + "?dcp_buffer_size=0")
        assert says["control"] == "every node accepts noop"
        assert says["streams"] == "no changes to read"
        assert says["clock"] == "no document among the changes that were read: nothing to compare with"


def test_tls_is_a_step_of_its_own() -> None:
    with Cluster(vbuckets=4, password="s3cret", tls=True) as cluster:
        joint = "&" if "?" in cluster.tls_url else "?"
        trusting = run("doctor", f"{cluster.tls_url}{joint}tls_verify=false")
        assert trusting.exit_code == 0
        assert "TLSv1.3" in trusting.output
        step, says, remedy = failing(cluster.tls_url.partition("?")[0])
    assert step == "tls"
    assert "certificate is not trusted" in says
    assert "ca_cert_path" in remedy


def test_every_kind_of_failure_has_its_step() -> None:
    nobody = User("nobody", "s3cret", frozenset({Privilege.READ}))
    with Cluster(nodes=2, vbuckets=4, password="s3cret", users=[nobody]) as cluster:
        host = cluster.addresses[0]
        assert failing("somewhere")[0] == "url"
        assert failing("couchbase://u:s3cret@nowhere.invalid/default")[0] == "dns"
        assert failing(cluster.url.replace("couchbase://", "couchbases://"))[0] == "tls"
        step, says, _ = failing(f"couchbase://dcp:s3cret2@{host}/default")
        assert step == "user, bucket"
        assert says.startswith(f"{host}: SCRAM-SHA512: the server refuses user 'dcp': wrong name or password")
        assert failing(f"couchbase://dcp:s3cret@{host}/nothing")[0] == "user, bucket"
        step, _, remedy = failing(f"couchbase://nobody:s3cret@{host}/default")
        assert (step, remedy) == ("privileges", "give nobody the role data_dcp_reader on default")


def test_a_port_without_a_listener_is_named() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        step, says, _ = failing(f"couchbase://u:s3cret@127.0.0.1:{port}/default")
    assert step == "tcp"
    assert says.startswith(
        f"127.0.0.1:{port}: Connection refused; check that a data node listens there (11210, or 11207 for TLS)"
    )


@pytest.mark.parametrize(
    ("fault", "options", "reason"),
    [
        ("silent", {}, "accepted their streams, and sends nothing"),
        ("refuse", {"status": "ETMPFAIL"}, "is asked for their streams repeatedly: refused, ETMPFAIL"),
    ],
)
def test_streams_that_stand_still_are_named(fault: str, options: dict[str, str], reason: str) -> None:
    with Cluster(nodes=2, vbuckets=4, password="s3cret") as cluster:
        cluster.load(100)
        with cluster.fault(fault, node=1, **options):
            step, says, remedy = failing(cluster.url, "--timeout", "3s")
        with dcp.connect(cluster.url) as client:
            vbuckets = ", ".join(map(str, client.map.vbuckets_of(client.map.nodes[1])))
        assert step == "streams"
        assert says.startswith(f"no result within 3 s; the streams of vbuckets {vbuckets} stand still: ")
        assert reason in says
        assert "--timeout" in remedy


def test_a_node_that_does_not_answer_is_named() -> None:
    with Cluster(nodes=2, vbuckets=4, password="s3cret") as cluster, cluster.fault("pause", node=1):
        step, says, _ = failing(cluster.url, "--timeout", "1s")
        assert (step, says) == ("nodes", f"no result within 1 s; waiting for {cluster.addresses[1]}")


def test_a_cas_far_in_the_future_is_an_error() -> None:
    assert judge_clock(1_700_000_000 * 10**9, 1_700_000_000.0) == "the newest change is from 2023-11-14 22:13:20+00:00"
    # Clocks may differ by a minute.
    assert judge_clock(1_700_000_060 * 10**9, 1_700_000_000.0).startswith("the newest change is from 2023-")
    with pytest.raises(CheckFailed, match="61 s in the future"):
        judge_clock(1_700_000_061 * 10**9, 1_700_000_000.0)
    with pytest.raises(CheckFailed, match="3,600 s in the future"):
        judge_clock(1_700_003_600 * 10**9, 1_700_000_000.0)
    with pytest.raises(CheckFailed, match=f"CAS {2**64 - 1}|in the future"):
        judge_clock(2**64 - 1, 1_700_000_000.0)


def test_a_user_of_one_collection_is_told_what_works() -> None:
    reader = User("reader", "s3cret", collections=frozenset({"inventory.hotel"}))
    with Cluster(vbuckets=4, password="s3cret", users=[reader]) as cluster:
        fill_two_collections(cluster)
        url = f"couchbase://reader:s3cret@{cluster.addresses[0]}/default"
        step, says, remedy = failing(url)
        assert step == "privileges"
        assert "no seqnos and no changes of the whole bucket" in says
        assert says.endswith("readable collections: inventory.hotel")
        assert remedy.startswith("grant reader the role data_dcp_reader on default")
        assert remedy.endswith("--collection inventory.hotel")
        # The remedy works.
        read = run("tail", url, "--collection", "inventory.hotel", "--from", "beginning", "--max", "2", "--json")
        assert sorted(json.loads(line)["key"] for line in read.output.splitlines()) == ["bed", "ritz"]


@pytest.mark.parametrize("statuses", [("EINTERNAL",), ("EACCESS", "EINTERNAL")])
def test_an_error_of_a_node_is_not_a_lack_of_privileges(statuses: tuple[str, ...]) -> None:
    """The seqnos of the whole bucket are read first, then those of each collection."""
    with Cluster(vbuckets=4, password="s3cret") as cluster:
        for status in statuses:
            cluster.fault("refuse", command="get_all_vb_seqnos", status=status, times=1)
        step, says, _ = failing(cluster.url)
        assert step == "privileges"
        assert "status 0x84" in says


def test_the_option_for_servers_that_offer_only_plain_is_named() -> None:
    with Cluster(vbuckets=4, password="s3cret", server_version="3.1") as cluster:
        step, says, remedy = failing(cluster.url.partition("?")[0])
        assert step == "user, bucket"
        assert "the server offers CRAM-MD5, PLAIN" in says
        assert "?sasl_mech_force=PLAIN" in remedy


def test_a_bucket_whose_last_changes_are_of_collections_has_a_clock() -> None:
    with Cluster(vbuckets=4, password="s3cret") as cluster:
        cluster.load(40)
        for name in ("one", "two", "three"):
            cluster.create_scope(name)
        shown = run("doctor", cluster.url)
        assert shown.exit_code == 0, shown.output
        assert "the newest change is from 20" in shown.output


def test_a_bucket_with_collections_alone_has_nothing_to_compare_with() -> None:
    with Cluster(vbuckets=4, password="s3cret") as cluster:
        cluster.create_scope("one")
        shown = run("doctor", cluster.url)
        assert shown.exit_code == 0, shown.output
        assert "no document among the changes that were read" in shown.output


def test_the_hosts_of_an_srv_record_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(vbuckets=4) as cluster:
        host, port = cluster.addresses[0].split(":")
        with name_server(monkeypatch, {"_couchbase._tcp.cloud.example.": [f"0 0 {port} localhost."]}):
            says = said(cluster.url.replace(f"{host}:{port}", "cloud.example"))
        assert says["dns"].startswith(f"_couchbase._tcp.cloud.example resolves to localhost:{port}; localhost is ")
        assert says["tcp"] == f"localhost:{port}"


def test_the_addresses_that_are_used_are_shown() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        context = DoctorContext(cluster.url, 1.0, client=client)
        config = client._agent.ask("get_cluster_config").body()
        outside = {"hostname": "db1.example.com", "ports": {"kv": 31210}}
        config["nodesExt"][0] |= {"hostname": "10.0.0.1", "alternateAddresses": {"external": outside}}
        for rev, (seed, expected) in enumerate(
            (
                ("10.0.0.1", r"default: 10\.0\.0\.1:\d+ \(external: db1\.example\.com:31210\)"),
                ("db1.example.com", r"external: db1\.example\.com:31210"),
            ),
            1000,
        ):
            client._agent.learn_map(config | {"rev": rev}, f"{seed}:11210")
            assert re.fullmatch(expected, _addresses(context))
