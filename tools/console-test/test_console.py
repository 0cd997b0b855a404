"""The console in a real browser, as people use it.

    python3 test_console.py --berth target/debug/berth --axe node_modules/axe-core/axe.min.js [--images docs/images]

The tests run in the order of their names, on one server with a simulated fleet.
"""

import argparse
import re
import sys
import tempfile
import time
import unittest
from pathlib import Path

from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

from server import Server

OPTIONS = argparse.Namespace()
BROWSER_FLAGS = ["--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-component-update",
                 "--disable-sync", "--disable-default-apps", "--no-first-run"]
# What a tenant may write, as an attack. It must be text wherever it is shown.
SCRIPT = "<img src=x onerror=window.attacked=1><script>window.attacked=1</script>"
# Browsers report an answer that is an error by themselves; the console shows it to people.
ANSWERS = re.compile(r"Failed to load resource: (the server responded with a status of 4\d\d|net::ERR_CONNECTION_REFUSED|"
                     r"net::ERR_INCOMPLETE_CHUNKED_ENCODING|net::ERR_CONNECTION_RESET|net::ERR_EMPTY_RESPONSE)")


class ConsoleTest(unittest.TestCase):
    """One browser and one server for all tests."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory(prefix="berth-console-")
        cls.server = Server(OPTIONS.berth, Path(cls.folder.name), 90)
        cls.playwright = sync_playwright().start()
        cls.browser = cls.playwright.chromium.launch(executable_path=OPTIONS.chromium, args=BROWSER_FLAGS)
        cls.errors: list[str] = []
        cls.context = cls.new_context()
        cls.page = cls.context.new_page()
        expect.set_options(timeout=15_000)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.browser.close()
        cls.playwright.stop()
        cls.server.kill()
        cls.folder.cleanup()

    @classmethod
    def new_context(cls, **options: object) -> BrowserContext:
        context = cls.browser.new_context(**{"viewport": {"width": 1280, "height": 860}, "color_scheme": "light", **options})

        def report(message: object) -> None:
            if message.type == "error" and not ANSWERS.match(message.text):
                cls.errors.append(message.text)

        def leaves(request: object) -> None:
            if not request.url.startswith((cls.server.url, "data:", "blob:")):
                cls.errors.append(f"a request left for {request.url}")

        context.on("console", report)
        context.on("weberror", lambda error: cls.errors.append(str(error.error)))
        context.on("request", leaves)
        return context

    def setUp(self) -> None:
        self.errors.clear()

    def tearDown(self) -> None:
        self.assertEqual(self.errors, [], "the browser reported errors")

    def sign_in(self, page: Page, token: str) -> None:
        page.goto(self.server.url)
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_text("Live", exact=True)).to_be_visible()

    def go(self, path: str, heading: str | None = None) -> Page:
        self.page.goto(self.server.url + path)
        if heading:
            expect(self.page.get_by_role("heading", level=1)).to_have_text(heading)
        return self.page

    def image(self, name: str, page: Page | None = None) -> None:
        if OPTIONS.images:
            (page or self.page).wait_for_timeout(600)
            (page or self.page).screenshot(path=str(Path(OPTIONS.images) / f"console-{name}.png"))

    def animate(self, name: str, frames: list[str]) -> None:
        """One picture that moves, of several that were kept."""
        if OPTIONS.images:
            from PIL import Image

            folder = Path(OPTIONS.images)
            pictures = [Image.open(folder / f"console-{frame}.png").convert("P", palette=Image.Palette.ADAPTIVE) for frame in frames]
            pictures[0].save(folder / f"console-{name}.gif", save_all=True, append_images=pictures[1:], duration=2200, loop=0, optimize=True)

    def accessible(self, page: Page) -> None:
        """Fails on what axe finds serious."""
        page.evaluate(OPTIONS.axe_source)
        found = page.evaluate("async () => (await axe.run(document, { resultTypes: ['violations'] })).violations"
                              ".filter(one => ['serious', 'critical'].includes(one.impact))"
                              ".map(one => `${one.id}: ${one.nodes.slice(0, 3).map(node => node.html.slice(0, 160) + ' ' + (node.any[0]?.message ?? '')).join(' | ')}`)")
        self.assertEqual(found, [], f"axe on {page.url}")

    def test_01_a_first_visit_asks_for_a_token_and_the_right_one_opens_the_fleet(self) -> None:
        page = self.page
        page.goto(f"{self.server.url}/ui/nodes")
        page.get_by_label("Token").fill("berth_wrong_token")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("This token is not valid")
        self.accessible(page)
        page.get_by_label("Token").fill(self.server.token)
        page.get_by_role("button", name="Sign in").click()
        # The address is kept over the sign-in.
        expect(page.get_by_role("heading", level=1)).to_have_text("Nodes")
        self.assertEqual(page.evaluate("document.cookie"), "", "a script can read the cookie")
        page.get_by_role("link", name="Fleet", exact=True).click()
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        expect(page.get_by_text("90 nodes")).to_be_visible()
        page.go_back()
        expect(page.get_by_role("heading", level=1)).to_have_text("Nodes")
        page.go_forward()
        expect(page.get_by_role("heading", level=1)).to_have_text("Fleet")

    def test_02_the_map_is_filtered_by_a_selector_and_read_by_the_keyboard(self) -> None:
        page = self.go("/", "Fleet")
        expect(page.get_by_text("90 nodes")).to_be_visible()
        box = page.get_by_role("combobox", name="Only nodes where")
        box.fill("zone = ")
        page.get_by_role("option", name="zone-1").click()
        expect(page.get_by_text(re.compile(r"^\d+ of 90 nodes fit$"))).to_be_visible()
        self.assertIn("where=zone", page.url)
        box.fill("zone = = 3")
        expect(page.get_by_role("alert")).to_contain_text("accepted is")
        box.fill("")
        canvas = page.locator("canvas[role=application]")
        canvas.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        expect(page.locator(".tip")).to_be_visible()
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("/ui/nodes/node-"))

    def test_03_a_table_is_sorted_filtered_and_saved(self) -> None:
        page = self.go("/ui/nodes", "Nodes")
        expect(page.get_by_role("row")).to_have_count(91)
        page.get_by_role("button", name="Memory %").click()
        expect(page.get_by_role("columnheader", name="Memory %")).to_have_attribute("aria-sort", "ascending")
        page.get_by_role("searchbox", name="Filter Nodes").fill("node-000003")
        expect(page.get_by_role("row")).to_have_count(2)
        with page.expect_download() as download:
            page.get_by_role("button", name="CSV").click()
        lines = Path(download.value.path()).read_text().splitlines()
        self.assertTrue(lines[0].startswith("Node,State,Zone,Rack"), lines)
        self.assertEqual([len(lines), lines[1].split(",")[0]], [2, "node-000003"])

    def test_04_a_refused_request_is_mended_by_its_fix_and_placed(self) -> None:
        page = self.go("/ui/place?tenant=acme", "Place")
        page.get_by_label("Name", exact=True).fill("web")
        expect(page.get_by_role("heading", name="It would be placed")).to_be_visible()
        expect(page.get_by_text("What each filter leaves")).to_be_visible()
        expect(page.get_by_role("button", name=re.compile("^every node"))).to_contain_text("90")
        self.image("place")
        page.get_by_label("Memory", exact=True).fill("4TiB")
        expect(page.get_by_role("heading", name="It would be refused")).to_be_visible()
        expect(page.get_by_text("no_capacity_memory", exact=True)).to_be_visible()
        expect(page.get_by_role("button", name="Place", exact=True)).to_be_disabled()
        self.image("refused")
        page.get_by_role("button", name="Apply").first.click()
        expect(page.get_by_role("heading", name="It would be placed")).to_be_visible()
        self.assertIn("--memory", page.locator("figure.code pre").first.inner_text())
        page.get_by_label("Memory", exact=True).fill("1GiB")
        expect(page.get_by_role("heading", name="It would be placed")).to_be_visible()
        page.get_by_role("button", name="Place", exact=True).click()
        expect(page.get_by_text("Placed.")).to_be_visible()
        self.image("placed")
        self.animate("fix", ["place", "refused", "placed"])
        page.locator(".note-box").get_by_role("link", name="web", exact=True).click()
        expect(page.get_by_text("Why it is here")).to_be_visible()
        expect(page.locator(".stacks")).to_be_visible()
        self.image("instance")

    def test_05_a_decision_is_a_grid_and_is_replayed(self) -> None:
        page = self.go("/ui/decisions?tenant=acme", "Decisions")
        page.get_by_role("row").nth(1).get_by_role("link").first.click()
        expect(page.get_by_role("region", name="Nodes and rules")).to_be_visible()
        expect(page.get_by_text("won", exact=True).first).to_be_visible()
        expect(page.locator(".stack-row")).to_have_count(2)
        expect(page.get_by_text("Filters that it passed")).to_be_visible()
        page.get_by_role("button", name="Replay from the log").click()
        expect(page.get_by_text("identical", exact=True)).to_be_visible()
        self.image("decision")

    def test_06_a_drain_shows_every_move_before_it_begins(self) -> None:
        nodes = self.server.call("GET", "/v1/nodes?limit=200&where=state%20%3D%20active")["items"]
        node = next(one["facts"]["id"] for one in nodes if one["instances"] >= 2)
        page = self.go(f"/ui/nodes/{node}", node)
        page.get_by_role("button", name="Drain…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("row").nth(1)).to_be_visible()
        self.assertEqual(self.server.call("GET", f"/v1/nodes/{node}")["facts"]["state"], "active")
        self.image("drain")
        dialog.get_by_label("Reason").fill("new fan")
        dialog.get_by_role("button", name="Drain", exact=True).click()
        expect(dialog).to_be_hidden()
        expect(page.locator(".page-head .chip")).to_have_text("draining")
        page.get_by_role("button", name="Stop draining").click()
        page.get_by_role("dialog").get_by_role("button", name="Stop draining").click()
        expect(page.locator(".page-head .chip")).to_have_text("active")

    def test_07_a_policy_is_activated_after_a_look_at_what_it_changes_and_rolled_back(self) -> None:
        page = self.go("/ui/policy/spread", "Policy")
        expect(page.get_by_text(re.compile(r"decisions would change"))).to_be_visible()
        self.image("policy")
        page.get_by_role("button", name="Activate…").click()
        page.get_by_role("dialog").get_by_role("button", name="Activate").click()
        expect(page.get_by_role("dialog")).to_be_hidden()
        expect(page).to_have_url(f"{self.server.url}/ui/policy")
        expect(page.locator(".page-head strong")).to_have_text("spread")
        page.get_by_role("button", name="Roll back…").click()
        page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
        expect(page.get_by_role("dialog")).to_be_hidden()
        expect(page.locator(".page-head strong")).to_have_text("balanced")
        # A weight that is moved says what it would do.
        weight = page.get_by_label("Weight of memory-pack, as a number")
        weight.fill("40")
        expect(page.get_by_text("scores.memory-pack 2 → 40")).to_be_visible()

    def test_08_a_workload_is_scaled_and_rolled_out(self) -> None:
        page = self.go("/ui/workloads/demo/checkout", "checkout")
        expect(page.locator("a.slot")).to_have_count(3)
        page.get_by_role("button", name="Scale").click()
        page.get_by_role("dialog").get_by_label("Replicas").fill("5")
        expect(page.get_by_role("dialog")).to_contain_text("2 more are placed")
        page.get_by_role("dialog").get_by_role("button", name="Scale").click()
        expect(page.locator("a.slot")).to_have_count(5)
        page.get_by_role("button", name="Change…").click()
        text = page.get_by_label("What should run")
        text.fill(text.input_value().replace("checkout:1", "checkout:2"))
        page.get_by_role("dialog").get_by_role("button", name="Roll out").click()
        expect(page.get_by_role("dialog")).to_be_hidden()
        expect(page.get_by_text("Past revisions")).to_be_visible()
        expect(page.get_by_text("revision 2 runs, 5 of 5").first).to_be_visible(timeout=40_000)
        self.image("workload")

    def test_09_what_if_questions_are_answered(self) -> None:
        page = self.go("/ui/capacity", "Capacity and what-if")
        page.get_by_label("Tenant").fill("acme")
        page.get_by_label("Ask for up to").fill("20")
        page.get_by_role("button", name="Ask").click()
        expect(page.get_by_text(re.compile("would fit now"))).to_be_visible()
        page.get_by_role("combobox", name=re.compile("^What")).select_option("rack")
        page.get_by_label("Names").fill("rack-0000")
        page.get_by_role("button", name="Check").click()
        expect(page.locator(".card", has_text="Can it be emptied?").locator(".note-box, .error").first).to_contain_text(re.compile("Yes|No"))

    def test_10_what_a_tenant_writes_is_text_everywhere(self) -> None:
        made = self.server.call("POST", "/v1/tokens", {"name": "acme", "role": "tenant", "tenants": ["acme"]})
        token = made["secret"]
        resources = {"cpu_milli": 100, "memory_mib": 128, "disk_mib": 128}
        placed = self.server.call("POST", "/v1/placements", {"instances": [{
            "name": SCRIPT, "image": SCRIPT, "tags": {SCRIPT: SCRIPT}, "resources": resources}], "request_id": SCRIPT}, token)
        quoted = "%3Cimg%20src=x%20onerror=window.attacked=1%3E"
        self.server.call("PUT", f"/v1/workloads/acme/{quoted}", {"replicas": 1, "release": SCRIPT, "process": SCRIPT, "template": {
            "env": SCRIPT, "image": SCRIPT, "tags": {SCRIPT: SCRIPT}, "resources": resources}}, token)
        self.server.call("PUT", f"/v1/groups/{quoted}", {"kind": "apart", "strength": "soft", "topology": "node"}, token)
        try:
            self.server.call("POST", "/v1/placements", {"mode": "wait", "wait_s": 600, "instances": [{
                "name": SCRIPT, "tags": {SCRIPT: SCRIPT}, "resources": {**resources, "memory_mib": 1 << 30}}]}, token)
        except OSError as error:
            self.fail(str(error))
        instance = placed["instances"][0]["instance"]
        node = placed["instances"][0]["node"]
        for path in ["/", "/ui/instances?tenant=acme", f"/ui/instances/{instance}", f"/ui/nodes/{node}", "/ui/workloads",
                     f"/ui/workloads/acme/{quoted}", "/ui/groups", "/ui/queue", "/ui/decisions?tenant=acme",
                     f"/ui/decisions/{placed['decision']}", "/ui/events", "/ui/audit", "/ui/secrets", "/ui/capacity"]:
            page = self.go(path)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            page.wait_for_timeout(300)
            self.assertIsNone(page.evaluate("window.attacked ?? null"), path)
            self.assertEqual(page.locator("#app script, #app img[src=x]").count(), 0, path)
        expect(self.go(f"/ui/instances/{instance}").get_by_role("heading", level=1)).to_have_text(SCRIPT)

    def test_11_a_tenant_sees_only_its_own(self) -> None:
        made = self.server.call("POST", "/v1/tokens", {"name": "zebra", "role": "tenant", "tenants": ["zebra"]})
        context = self.new_context()
        page = context.new_page()
        self.sign_in(page, made["secret"])
        expect(page.get_by_role("heading", level=1)).to_have_text("zebra")
        for name in ["Fleet", "Nodes", "Audit", "Tokens", "Moves"]:
            expect(page.get_by_role("link", name=name, exact=True)).to_have_count(0)
        page.get_by_role("link", name="Place", exact=True).click()
        page.get_by_label("Name", exact=True).fill("mine")
        page.get_by_label("Memory", exact=True).fill("1GiB")
        page.get_by_role("button", name="Place", exact=True).click()
        expect(page.get_by_text("Placed.")).to_be_visible()
        page.get_by_role("link", name="Instances", exact=True).click()
        expect(page.get_by_role("row")).to_have_count(2)
        page.get_by_role("link", name="Overview").click()
        expect(page.locator(".tile b").first).to_have_text("1")
        self.image("tenant", page)
        self.accessible(page)
        text = page.locator("main").inner_text()
        self.assertNotIn("shop", text)
        page.goto(f"{self.server.url}/ui/nodes")
        expect(page.get_by_role("heading", level=1)).to_have_text("Nothing here")
        # A revoked token ends the session of an open tab.
        self.server.call("DELETE", f"/v1/tokens/{made['id']}")
        expect(page.get_by_role("button", name="Sign in")).to_be_visible(timeout=30_000)
        context.close()

    def test_12_nothing_serious_is_found_by_axe_in_both_themes_and_on_a_phone(self) -> None:
        views = ["/", "/?as=table", "/ui/place?tenant=acme", "/ui/nodes/node-000001", "/ui/instances", "/ui/workloads/demo/storefront",
                 "/ui/moves", "/ui/queue", "/ui/decisions", "/ui/capacity", "/ui/events", "/ui/audit", "/ui/policy", "/ui/quotas",
                 "/ui/pools", "/ui/groups", "/ui/volumes", "/ui/secrets", "/ui/tokens", "/ui/settings"]
        state = self.context.storage_state()
        for scheme, width in [("light", 1280), ("dark", 1280), ("light", 390)]:
            context = self.new_context(storage_state=state, color_scheme=scheme, viewport={"width": width, "height": 844})
            page = context.new_page()
            # Colours are the same everywhere, so that some views are enough for the second theme.
            for path in {("light", 1280): views, ("dark", 1280): views[:9], ("light", 390): views[:4]}[scheme, width]:
                page.goto(self.server.url + path)
                expect(page.get_by_role("heading", level=1)).to_be_visible()
                page.wait_for_timeout(500)
                self.accessible(page)
                wide = page.evaluate("document.documentElement.scrollWidth")
                self.assertLessEqual(wide, width, f"{path} is wider than the window of {width}")
                if path == "/":
                    self.image(f"fleet-{scheme if width > 800 else 'phone'}", page)
            context.close()

    def test_13_a_killed_server_that_comes_back_is_followed_again_by_itself(self) -> None:
        page = self.go("/", "Fleet")
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        self.server.kill()
        expect(page.get_by_text("Reconnecting…")).to_be_visible()
        time.sleep(1)
        self.server.start()
        expect(page.get_by_text("Live", exact=True)).to_be_visible(timeout=30_000)
        before = page.evaluate("performance.getEntriesByType('navigation').length")
        self.assertEqual(before, 1, "the page was loaded again")
        expect(page.get_by_text(re.compile(r"^[1-9]\d* events since"))).to_be_visible(timeout=30_000)

    def test_14_signing_out_ends_the_session(self) -> None:
        page = self.go("/", "Fleet")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("button", name="Sign in")).to_be_visible()
        page.goto(f"{self.server.url}/ui/nodes")
        expect(page.get_by_role("button", name="Sign in")).to_be_visible()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--berth", required=True, help="the binary")
    parser.add_argument("--axe", required=True, help="axe.min.js")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--images", help="folder for screenshots")
    OPTIONS, rest = parser.parse_known_args(namespace=OPTIONS)
    OPTIONS.axe_source = Path(OPTIONS.axe).read_text()
    unittest.main(argv=[sys.argv[0], *rest], failfast=False, verbosity=2)
