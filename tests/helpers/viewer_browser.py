"""Fixtures with a browser, for tests of the viewer's page: `pytest_plugins = ["viewer_browser"]`."""

import pytest
from chromium import Chromium, find_chromium

from trl_credit.lab.viewer import build_page


@pytest.fixture(scope="session")
def browser():
    if find_chromium() is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    with Chromium() as chromium:
        yield chromium


@pytest.fixture
def show(browser, tmp_path):
    """Opens the page of some shards. At the end it must not have logged anything or loaded anything."""

    def show(shards, *, fragment="", title="runs/s_trace", **settings):
        browser.resize(1280, 860)
        browser.prefer("light")
        file = tmp_path / "page.html"
        file.write_text(build_page(shards, title=title, **settings), encoding="utf-8")
        browser.open(file, fragment=fragment)
        return browser

    yield show
    assert browser.messages == []
    assert [url.partition("#")[0] for url in browser.requests] == [(tmp_path / "page.html").as_uri()]
