"""The page of a cluster, in a real browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import dcp
from dcp.embedded import FAULTS, Cluster
from dcp.embedded.faults.fault import options_of
from dcp.wire.dcp import OpenFlag
from tests.embedded.browser import opened, running_browser
from tests.embedded.sockets import Client, plain_auth, request
from tests.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

# One browser for all of these tests.
pytestmark = pytest.mark.xdist_group("browser")

HOSTILE = "<img src=x onerror=alert(1)><script>alert(1)</script>\u202e\x07</summary>"
ESCAPED = "<img src=x onerror=alert(1)><script>alert(1)</script>\\u{202e}\\u{7}</summary>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, vbuckets=16, replicas=1) as cluster:
        yield cluster


@pytest.fixture
def page(browser: Browser, cluster: Cluster) -> Iterator[Page]:
    with opened(browser, cluster) as page:
        yield page


class Consumer:
    """Consumer that runs in a thread, and holds what it has received."""

    def __init__(self, cluster: Cluster) -> None:
        self.documents: dict[bytes, tuple[int, int, bytes]] = {}
        self.rollbacks = 0
        self._client = dcp.connect(cluster.url)
        self._stream = self._client.stream(start="beginning", columns=["event", "vbucket", "seqno", "key", "value"])
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Consumer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._thread.join()

    def _run(self) -> None:
        try:
            for batch in self._stream:
                for row in batch.to_arrow().to_pylist():
                    self._take(row)
        except dcp.ClosedError:
            return

    def _take(self, row: dict[str, object]) -> None:
        vbucket, seqno = row["vbucket"], row["seqno"]
        if row["event"] == "rollback":
            self.rollbacks += 1
            kept = {key: one for key, one in self.documents.items() if one[0] != vbucket or one[1] <= seqno}  # type: ignore[operator]
            self.documents = kept
        else:
            self.documents[row["key"]] = (vbucket, seqno, row["value"])  # type: ignore[index, assignment]

    def has(self, cluster: Cluster) -> bool:
        return {key: value for key, (_, _, value) in self.documents.items()} == {
            key: document.value for key, document in cluster.truth().items()
        }


def cell(page: Page, number: int) -> str:
    return page.locator("#grid button").nth(number).get_attribute("aria-label") or ""


# Load and live update.


def test_the_page_shows_the_cluster(page: Page) -> None:
    assert page.locator("#bucket").inner_text() == "default"
    assert page.locator("#nodes tr").count() == 3
    assert page.locator("#grid button").count() == 16
    assert cell(page, 4) == "vbucket 4: active on node 1; high seqno 0; replica on 2"
    assert page.locator("#collections li").all_inner_texts() == ["_default._default (id 0x0)"]


def test_a_node_shows_the_page_as_well(browser: Browser, cluster: Cluster) -> None:
    with opened(browser, cluster, cluster.management_url) as page:
        assert page.locator("#nodes tr").count() == 3
        cluster.crash(0)
        elsewhere = page.locator("#live a")
        elsewhere.wait_for()
        assert elsewhere.get_attribute("href") == cluster.page_url


def test_changes_appear_while_the_page_is_open(page: Page, cluster: Cluster) -> None:
    cluster.load(500)
    until(lambda: page.locator("#rate").inner_text() != "0")
    highs = {found.vbucket: 0 for found in cluster.truth().values()}
    for found in cluster.truth().values():
        highs[found.vbucket] = max(highs[found.vbucket], found.seqno)
    until(lambda: all(f"high seqno {high};" in cell(page, number) for number, high in highs.items()))
    cluster.create_scope("shop")
    cluster.create_collection("shop", "order", max_ttl=60)
    page.get_by_text("shop.order (id 0x9, at most 60 s)").wait_for()
    cluster.crash(1)
    page.locator("#grid button[data-state=down]").first.wait_for()
    assert cell(page, 4).startswith("vbucket 4: active on node 1, which is down;")
    page.get_by_text("crash(node=1)").wait_for()


def test_connections_are_shown_with_their_streams(page: Page, cluster: Cluster) -> None:
    with Consumer(cluster) as consumer:
        page.locator("#consumers details").nth(2).wait_for()
        page.locator("#consumers summary").first.click()
        page.locator("#consumers tbody tr").nth(4).wait_for()
        cluster.load(100)
        until(lambda: consumer.has(cluster))
        page.locator("dd[data-fact=window]").first.get_by_text("21.0 MB").wait_for()
    page.locator("#consumers details").first.wait_for(state="detached")
    page.get_by_text("disconnected: dcp-arrow").first.wait_for()


# Operations.


def test_a_failover_by_the_button_reaches_a_running_consumer(page: Page, cluster: Cluster) -> None:
    with Consumer(cluster) as consumer:
        cluster.load(200)
        until(lambda: consumer.has(cluster))
        for number in range(50):
            cluster.upsert(f"late-{number}", b"1")
        until(lambda: consumer.has(cluster))
        form = page.locator("form[data-operation=failover]")
        form.locator("select[name=node]").select_option("1")
        form.locator("input[name=lose]").fill("5")
        form.locator("button").click()
        page.locator("#result", has_text="done").wait_for()
        until(lambda: consumer.rollbacks and consumer.has(cluster))
        assert len(cluster.truth()) == 245
    page.locator("#nodes tr").nth(1).locator("td[data-column=state]", has_text="out").wait_for()


def test_the_buttons_of_a_node_are_those_that_are_possible(page: Page, cluster: Cluster) -> None:
    row = page.locator("#nodes tr").nth(2)
    assert row.locator("button:visible").all_inner_texts() == ["failover", "crash", "restart", "rebalance out"]
    row.get_by_role("button", name="crash node 2").click()
    row.get_by_role("button", name="recover node 2").click()
    until(lambda: len(cluster.addresses) == 3 and row.get_by_role("button", name="crash node 2").is_visible())


def test_documents_are_written_and_deleted_by_forms(page: Page, cluster: Cluster) -> None:
    page.locator("summary", has_text="documents").click()
    form = page.locator("form[data-operation=upsert]")
    form.locator("[name=key]").fill(HOSTILE)
    form.locator("[name=value]").fill('{"a": 1}')
    form.locator("[name=xattrs]").fill('{"x": "[1]"}')
    form.locator("button").click()
    until(lambda: HOSTILE.encode() in cluster.truth())
    page.locator("#result", has_text='upsert {"key":"<img').wait_for()
    assert cluster.truth()[HOSTILE.encode()].value == b'{"a": 1}'
    form = page.locator("form[data-operation=delete]")
    form.locator("[name=key]").fill(HOSTILE)
    form.locator("button").click()
    until(lambda: not cluster.truth())
    form.locator("button").click()
    page.locator("#result[data-state=bad]", has_text="there is no such document").wait_for()


def test_every_operation_has_a_form_with_its_parameters(page: Page) -> None:
    from dcp.embedded.control.operations import operations

    forms = page.evaluate(
        "[...document.querySelectorAll('form')].map((form) =>"
        " [form.dataset.operation, [...form.querySelectorAll('[name]')].map((input) => input.name)])"
    )
    expected = {name: [one.name for one in operation.parameters] for name, operation in operations().items()}
    shown = dict(forms)
    shown["fault"] = shown["fault"][:1]
    assert shown == expected


def test_every_fault_has_a_form_with_the_options_of_its_dataclass(page: Page, cluster: Cluster) -> None:
    page.locator("summary", has_text="faults").click()
    form = page.locator("form[data-operation=fault]")
    for name, fault in FAULTS.items():
        form.locator("select").select_option(name)
        names = form.locator("input").evaluate_all("(inputs) => inputs.map((input) => input.name)")
        assert names == [option.name for option in options_of(fault)]
    form.locator("select").select_option("slow")
    form.locator("input[name=rate]").fill("64k")
    form.locator("input[name=node]").fill("1")
    form.locator("button").click()
    page.locator("#faults li", has_text="slow node=1 rate=65536: 0 hits").wait_for()
    form.locator("input[name=rate]").fill("none")
    form.locator("button").click()
    page.locator("#result[data-state=bad]", has_text="fault slow: rate: expected a size").wait_for()
    page.get_by_role("button", name="clear slow").click()
    until(lambda: not cluster.faults())
    page.locator("#faults li").wait_for(state="detached")


# Hostile names.


def test_names_do_not_become_markup(page: Page, cluster: Cluster) -> None:
    dialogs: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    with Client(cluster) as client:
        client.exchange(plain_auth("dcp", cluster.credentials.password))
        client.exchange(request("select_bucket", key=b"default"))
        client.exchange(request("open", key=HOSTILE.encode(), fields={"flags": int(OpenFlag.PRODUCER)}))
        page.locator("#consumers summary", has_text=ESCAPED).wait_for()
        page.locator("#log li", has_text=f"connected: {ESCAPED}").wait_for()
    page.locator("#log li", has_text=f"disconnected: {ESCAPED}").wait_for()
    assert page.locator("script").count() == 1
    assert page.locator("img").count() == 0
    assert dialogs == []


# Access.


def test_the_page_works_without_a_mouse(page: Page, cluster: Cluster) -> None:
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "operations"
    button = page.get_by_role("button", name="crash node 1")
    button.focus()
    page.keyboard.press("Space")
    until(lambda: len(cluster.addresses) == 2)
    page.locator("#result", has_text="crash").wait_for()
    page.locator("#grid button").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator("#vbucket").inner_text().startswith("vbucket 2:")
    page.keyboard.press("End")
    assert page.locator("#vbucket").inner_text().startswith("vbucket 15:")
    # The grid is one stop of the Tab key.
    assert page.locator("#grid button[tabindex='0']").count() == 1


def test_updates_leave_the_focus_where_it_is(page: Page, cluster: Cluster) -> None:
    page.get_by_role("button", name="restart node 0").focus()
    for number in range(3):
        cluster.upsert(f"key-{number}", b"1")
        vbucket = cluster.truth()[b"key-%d" % number]
        until(lambda found=vbucket: f"high seqno {found.seqno};" in cell(page, found.vbucket))  # type: ignore[misc]
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "restart node 0"


def test_everything_that_can_be_used_has_a_name(page: Page) -> None:
    for group in page.locator("#groups summary").all():
        if group.locator("..").get_attribute("open") is None:
            group.click()
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, input, select, textarea')].filter((one) =>"
        " !one.getAttribute('aria-label') && !one.textContent.trim() && !one.labels?.[0]?.textContent.trim())"
        ".map((one) => one.outerHTML)"
    )
    assert unnamed == []
    assert page.locator("html").get_attribute("lang") == "en"
    live = page.locator("[role=status], [role=log], [aria-live]")
    assert {one.get_attribute("id") for one in live.all()} == {"live", "result", "log", "vbucket"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast_in_both_schemes(browser: Browser, cluster: Cluster, scheme: str) -> None:
    cluster.load(200)
    with opened(browser, cluster, color_scheme=scheme) as page:
        page.locator("#grid .h4").first.wait_for()
        # By the formula of WCAG 2, on the colours that the browser draws.
        ratios = page.evaluate(
            """() => {
              const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
              const luminance = (color) => {
                canvas.fillStyle = color;
                canvas.fillRect(0, 0, 1, 1);
                const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((value) => value / 255);
                const [r, g, b] = parts.map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
              };
              const opaque = (one) => {
                const color = getComputedStyle(one).backgroundColor;
                return color.endsWith(", 0)") ? opaque(one.parentElement) : color;
              };
              const ratio = (one) => {
                const pair = [luminance(getComputedStyle(one).color), luminance(opaque(one))].sort((a, b) => b - a);
                return (pair[0] + 0.05) / (pair[1] + 0.05);
              };
              return [...document.querySelectorAll("p, h2, th, td, li, label, summary, button")]
                .filter((one) => one.checkVisibility() && one.textContent.trim())
                .map((one) => [ratio(one), one.outerHTML.slice(0, 80)]);
            }"""
        )
        assert min(ratios)[0] >= 4.5, min(ratios)


def test_the_page_fits_a_phone(browser: Browser, cluster: Cluster) -> None:
    with opened(browser, cluster, viewport={"width": 360, "height": 740}) as page:
        for group in page.locator("#groups summary").all():
            if group.locator("..").get_attribute("open") is None:
                group.click()
        assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_the_page_asks_nobody_else(browser: Browser, cluster: Cluster) -> None:
    user = cluster.credentials
    context = browser.new_context(http_credentials={"username": user.username, "password": user.password})
    page = context.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(cluster.page_url)
    page.locator("#live[data-state=good]").wait_for()
    assert asked
    assert all(url.startswith(cluster.page_url) or url == "data:," for url in asked)
    context.close()


def test_the_page_has_a_user(browser: Browser, cluster: Cluster) -> None:
    from playwright.sync_api import Error

    context = browser.new_context()
    page = context.new_page()
    with pytest.raises(Error, match="ERR_INVALID_AUTH_CREDENTIALS"):
        page.goto(cluster.page_url)
    context.close()


def test_many_vbuckets_are_drawn_in_part(browser: Browser) -> None:
    with Cluster(vbuckets=5000) as cluster, opened(browser, cluster) as page:
        assert page.locator("#grid button").count() == 4096
        assert page.locator("#grid-rest").inner_text() == "The last 904 vbuckets are not drawn."
