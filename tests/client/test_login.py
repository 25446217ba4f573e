"""User and password from outside a URL, and from whom they are taken first."""

from __future__ import annotations

from pathlib import Path

import pytest

import dcp
from dcp.client.login import Login, split_url

URL = "couchbase://host/bucket"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DCP_USERNAME", "DCP_PASSWORD"):
        monkeypatch.delenv(name, raising=False)


def test_a_url_is_split_from_its_credentials_and_joined_with_others() -> None:
    bare, name, password = split_url("couchbases://me:p%40ss@one,other/bucket?network=external")
    assert (bare, name, password) == ("couchbases://one,other/bucket?network=external", "me", "p@ss")
    assert Login("you", "w/rd:@").add_to(bare, "") == "couchbases://you:w%2Frd%3A%40@one,other/bucket?network=external"
    assert Login().add_to(bare, "") == bare


def test_a_password_is_taken_from_the_call_then_a_file_then_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_bytes("pässword \r\n".encode())
    assert Login("me", password_file=str(file)).find_password() == "pässword "
    assert Login("me").find_password() is None
    monkeypatch.setenv("DCP_PASSWORD", "secret")
    monkeypatch.setenv("DCP_USERNAME", "you")
    assert (Login().name, Login("me").name) == ("you", "me")
    assert Login().find_password() == "secret"
    assert Login("me", password_file=str(file)).find_password() == "pässword "
    assert Login("me", "first", str(file)).find_password() == "first"


def test_a_user_without_a_password_is_told_what_to_do() -> None:
    with pytest.raises(dcp.UsageError, match="password: expected one for 'me', found none: set one"):
        Login("me").add_to(URL, "set one")


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "cannot read .*: No such file"), (b"\n", "found an empty file"), (b"\xff", "not UTF-8")],
)
def test_a_file_without_a_password_is_refused(tmp_path: Path, content: bytes | None, problem: str) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(dcp.UsageError, match=problem):
        Login("me", password_file=str(file)).find_password()


@pytest.fixture
def providers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with functions that may provide credentials."""
    returned = {
        "good": ("me", "p/ss"),
        "a_list": ["me", "secret"],
        "alone": ("me",),
        "three": ("me", "secret", "more"),
        "no_password": ("me", ""),
        "no_user": ("", "secret"),
        "a_number": ("me", 5),
        "nothing": None,
    }
    (tmp_path / "credentials_of_a_test.py").write_text(
        "".join(f"def {name}():\n    return {value!r}\n" for name, value in returned.items())
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("providers")
def test_a_function_provides_user_and_password() -> None:
    login = Login("not me", "another", provider="credentials_of_a_test:good")
    assert login.add_to(URL, "") == "couchbase://me:p%2Fss@host/bucket"


@pytest.mark.usefixtures("providers")
@pytest.mark.parametrize("name", ["a_list", "alone", "three", "no_password", "no_user", "a_number", "nothing"])
def test_what_is_no_user_and_password_is_refused_and_not_shown(name: str) -> None:
    with pytest.raises(dcp.UsageError, match=f"expected user and password from credentials_of_a_test:{name}") as caught:
        Login(provider=f"credentials_of_a_test:{name}").add_to(URL, "")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["no_such_module:get", "os:no_such_function", "os", ":get"])
def test_what_is_no_name_of_a_function_is_refused(name: str) -> None:
    with pytest.raises(dcp.UsageError, match="expected the name of a function, as module:function"):
        Login(provider=name).add_to(URL, "")
