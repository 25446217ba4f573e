"""The table of options, compared with every place that repeats a part of it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import dcp
import dcp.spark
from dcp.client.options import OPTIONS, ConnectionOptions, Option, Use, check_supported, options_of, spark_options
from dcp.spark.options import Options
from dcp.wire import DIALECTS

# Calls with explicit keywords, and the number of parameters before these.
TABLES = {"spark", "url", "table", "checkpoint", "format", "trigger", "query_name"}
CALLS: dict[Use, list[tuple[Callable[..., Any], set[str]]]] = {
    Use.CONNECT: [(dcp.connect, {"url"})],
    Use.STREAM: [(dcp.Client.stream, {"self"})],
    Use.DECODER: [(dcp.Decoder.__new__, {"cls"})],
    Use.SPARK_READ: [(dcp.spark.read, {"spark", "source"}), (dcp.spark.plan, {"url"})],
    Use.SPARK_APPEND: [(dcp.spark.append, TABLES)],
    Use.SPARK_MIRROR: [(dcp.spark.mirror, TABLES)],
}
PAIRS = [pytest.param(use, call, others, id=call.__qualname__) for use in CALLS for call, others in CALLS[use]]


def in_signature(option: Option) -> tuple[str, Any]:
    """Return annotation and default: None where an option of the URL counts unless the keyword is given."""
    return (f"{option.type} | None", None) if Use.URL in option.use else (option.type, option.default)


@pytest.mark.parametrize(("use", "call", "others"), PAIRS)
def test_a_signature_has_the_options_of_the_table(use: Use, call: Callable[..., Any], others: set[str]) -> None:
    parameters = inspect.signature(call).parameters
    found = {
        name: (each.annotation.replace("'", '"'), each.default)
        for name, each in parameters.items()
        if name not in others
    }
    assert found == {name: in_signature(option) for name, option in options_of(use).items()}
    assert inspect.Parameter.VAR_KEYWORD not in {parameter.kind for parameter in parameters.values()}


@pytest.mark.parametrize(("use", "call", "others"), PAIRS)
def test_a_docstring_has_the_help_of_every_option(use: Use, call: Callable[..., Any], others: set[str]) -> None:
    # The decoder stands below the client, so its help is its own: it has to name each option.
    text = (dcp.Decoder.__doc__ if use is Use.DECODER else call.__doc__) or ""
    words = " ".join(text.split())
    helps = {name: "" if use is Use.DECODER else option.reference for name, option in options_of(use).items()}
    assert [name for name, reference in helps.items() if f"{name}: {reference}" not in words] == []


def test_the_values_of_a_connection_have_the_names_of_the_table() -> None:
    assert {field.name for field in fields(ConnectionOptions)} == set(options_of(Use.CONNECT))
    # A token in a URL would be shown wherever the URL is.
    assert options_of(Use.URL).keys() == options_of(Use.CONNECT).keys() - {"token"}


def test_spark_has_a_name_for_each_of_its_options() -> None:
    assert all(option.spark for option in OPTIONS if Use.SPARK in option.use)
    assert all(
        option.default == getattr(Options("url"), name)
        for name, option in options_of(Use.SPARK_READ).items()
        if hasattr(Options("url"), name)
    )
    assert len(spark_options()) == len(options_of(Use.SPARK))


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_a_default_is_a_value_that_the_parser_accepts(option: Option) -> None:
    if option.default is None or option.default == ():
        return
    assert option.read(option.default) == option.default
    assert option.help.endswith(".")


def test_a_dialect_refuses_what_it_does_not_support() -> None:
    for dialect in DIALECTS:
        for use in (Use.CONNECT, Use.STREAM, Use.SPARK):
            for name, option in options_of(use).items():
                if dialect in option.dialects:
                    check_supported(dialect, [name], use)
                else:
                    with pytest.raises(dcp.UsageError, match=f"{name}: .* does not support it; leave it out"):
                        check_supported(dialect, [name], use)


def test_keywords_override_the_url() -> None:
    options = ConnectionOptions.of({"noop_interval": 7.0, "network": "external"}, {"noop_interval": "3s"}, tls=True)
    assert (options.noop_interval, options.network, options.dcp_buffer_size) == (3.0, "external", 20 << 20)


def test_a_secret_is_never_shown() -> None:
    with pytest.raises(dcp.UsageError) as caught:
        options_of(Use.SPARK)["password"].read(["hunter2"])
    assert "hunter2" not in str(caught.value)


def test_commands_take_the_options_of_the_table() -> None:
    pytest.importorskip("click", reason="the command line is an extra")
    from dcp.cli.copy import copy
    from dcp.cli.tail import tail

    flags = {option.flag for option in options_of(Use.COMMAND_LINE).values()}
    for command in (tail, copy):
        assert flags <= {flag for parameter in command.params for flag in parameter.opts}


SCRIPT = """\
import dcp

with dcp.connect("couchbase://host/bucket", bootstrap_timout=5) as client:
    for batch in client.stream(batch_row=10):
        print(len(batch))
"""


def test_a_misspelt_option_is_an_error_for_mypy(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, "utf-8")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), str(script)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert 'Unexpected keyword argument "bootstrap_timout" for "connect"' in found.stdout
    assert 'Unexpected keyword argument "batch_row" for "stream"' in found.stdout
