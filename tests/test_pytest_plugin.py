"""Fixtures of the plugin, in a test run of another project."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


def test_the_fixtures_start_clusters_and_close_them(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import socket
        import pytest

        addresses = []

        def test_default(dcp_cluster):
            dcp_cluster.upsert("key", b"1")
            assert len(dcp_cluster.truth()) == 1
            urls = dcp_cluster.management_url, dcp_cluster.control_url, dcp_cluster.page_url
            assert all(url.startswith("http://127.0.0.1:") for url in urls)

        @pytest.mark.dcp_cluster(nodes=3, vbuckets=8)
        def test_options(dcp_cluster):
            assert len(dcp_cluster.addresses) == 3
            assert not dcp_cluster.truth()
            addresses.extend(dcp_cluster.addresses)

        def test_several(dcp_cluster, dcp_cluster_factory):
            other = dcp_cluster_factory(nodes=2)
            assert len(other.addresses) == 2
            assert not set(other.addresses) & set(dcp_cluster.addresses)
            addresses.extend(other.addresses)

        def test_closed():
            assert len(addresses) == 5
            for address in addresses:
                host, _, port = address.rpartition(":")
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection((host, int(port)))
        """
    )
    result = pytester.runpytest_subprocess("--strict-markers", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("nodes=99", "*nodes: expected 1 to 8, found 99*"),
        ("3", "*expected options by name*found 3*"),
        ("node=2", "*dcp_cluster: expected some of nodes, vbuckets, *, found node*"),
    ],
)
def test_a_wrong_option_is_reported(pytester: pytest.Pytester, arguments: str, said: str) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.dcp_cluster({arguments})\ndef test_it(dcp_cluster): ...")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([said])


def test_the_marker_is_described(pytester: pytest.Pytester) -> None:
    pytester.runpytest_subprocess("--markers").stdout.fnmatch_lines(["@pytest.mark.dcp_cluster(*options*"])
