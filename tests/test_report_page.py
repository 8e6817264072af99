"""The page of the report: what is written into it, and what a browser makes of it."""

import math
import re
import sys
import time
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import browser
from robustnmf.errors import MissingExtraError
from robustnmf.paper import figures, report
from robustnmf.paper.section import Cell, Check, Figure, Section, Table

NAN = math.nan
LONG = "a-path/" + "x" * 150  # nowhere to break
SUMMARY = {"Version": "0.0.0", "Scale": "quick <b>3</b>", "Folder": LONG}
HOSTILE = '<script>alert("1")</script>'

ERRORS = Table(
    "Relative error in percent.",
    "Share of pixels",
    ["L2-NMF", "CauchyNMF", "A method with a name that is long", *(f"Model {number}" for number in range(1, 8))],
    [
        ("5 %", [Cell(12.5, 0.25, 10.0), Cell(9.0, 0.1, 12.0), Cell(NAN, paper=7.0), *[Cell(20.0, 1.0, 20.0)] * 7]),
        (
            "40 %",
            [Cell(30.0, 0.5, 24.0, "A misprint."), Cell(9.5), Cell(9.498, 0.1, 9.0), *[Cell(21.0, 1.0, 20.0)] * 7],
        ),
        ("10 %", [Cell(8.0, 0.5, 8.0, f"Odd: {HOSTILE}"), Cell(NAN), Cell(50.0, 0.1), *[Cell(22.0, 1.0, 20.0)] * 7]),
    ],
    better="lower",
)
SECONDS = Table(
    "Seconds.",
    "Data",
    ["CPU", "GPU"],
    [("sparse", [Cell(3.0), Cell(1.0)]), ("dense", [Cell(-2.0), Cell(math.inf)])],
    digits=1,
)


def drawing(name):
    def paint(figure):
        left, right = figure.subplots(1, 2)
        left.errorbar([1, 2, 3], [3, 1, 2], yerr=0.3, marker="o", label="L2-NMF")
        left.legend()
        right.imshow(np.eye(4), cmap="gray")

    return figures.draw(paint, name, (9, 3.5), layout=None)


@pytest.fixture(scope="module")
def sections():
    noise = Section(
        "noise",
        "Faces with noise",
        ["table2", "figure 5(a)"],
        ["As in the paper.", f"Not {HOSTILE}."],
        ["See & believe."],
        [ERRORS],
        [Figure("Errors.", drawing("one")), Figure("The same again.", drawing("two"))],
        [
            Check("It is lower.", True, "3 of 3"),
            Check("It is flat.", False, f"1 < 2 {LONG}"),
            Check("It is fast.", None, ""),
        ],
    )
    return [noise, Section("speed", "Speed", ["table2"], [], tables=[SECONDS])]


@pytest.fixture(scope="module")
def path(sections, tmp_path_factory):
    file = tmp_path_factory.mktemp("report") / "report.html"
    report.build(sections, file, title="Paper & <ours>", summary=SUMMARY, failures=[f"noise, 5 %: <ValueError> {LONG}"])
    return file


@pytest.fixture(scope="module")
def html(path):
    return path.read_text(encoding="utf-8")


class Elements(HTMLParser):
    """All start tags of a page with their attributes, and which elements are left open."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self, html):
        super().__init__()
        self.found, self.open = [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, attribute):
        return [attributes[attribute] for _, attributes in self.found if attribute in attributes]


def rows(html, table=0):
    """Return the cells of the rows of a table as text, without markup."""
    body = re.findall(r"<tbody>(.*?)</tbody>", html, flags=re.DOTALL)[table]
    lines = re.findall(r"<tr>(.*?)</tr>", body, flags=re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line, flags=re.DOTALL) for line in lines]
    return [[" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in line] for line in cells]


def test_elements_are_closed_and_every_link_has_a_target_that_is_there_once(html):
    elements = Elements(html)
    assert elements.open == []
    identifiers = Counter(elements.all("id"))
    assert max(identifiers.values()) == 1
    targets = {link[1:] for name in ("href", "xlink:href") for link in elements.all(name) if link.startswith("#")}
    targets |= set(re.findall(r"url\(#([^)]+)\)", html))
    labels = {name for label in elements.all("aria-labelledby") for name in label.split()}
    assert {"noise", "speed", "noise-table-1-note-a"} <= targets
    assert targets | labels <= set(identifiers)
    assert {"item-table2", "item-figure-5-a-"} <= set(identifiers)


def test_nothing_comes_from_elsewhere(html):
    elements = Elements(html)
    outside = [name for name in ("src", "href", "xlink:href") for link in elements.all(name) if "//" in link]
    assert outside == []
    assert not re.search(r"@import|url\((?!#)", html)
    assert not re.search(r"https?://", re.sub(r'xmlns(:\w+)?="[^"]*"', "", html))


def test_text_is_escaped(html):
    assert HOSTILE not in html
    assert html.count("&lt;script&gt;alert(") == 2
    assert "<title>Paper &amp; &lt;ours&gt;</title>" in html
    assert "<dd>quick &lt;b&gt;3&lt;/b&gt;</dd>" in html
    assert "&lt;ValueError&gt;" in html
    assert html.count("<script") == 2  # the page's own


def test_a_cell_shows_ours_the_papers_and_the_difference(html):
    first, second, third = rows(html)
    assert first[:4] == [
        "5 %",
        "12.50 ± 0.25 paper: 10.00 , difference: +2.50",
        "9.00 ± 0.10 paper: 12.00 , difference: −3.00",
        "– paper: 7.00",
    ]
    assert second[1:3] == ["30.00 a ± 0.50 paper: 24.00 , difference: +6.00", "9.50"]
    assert third[1:3] == ["8.00 b ± 0.50 paper: 8.00 , difference: 0.00", "–"]
    assert rows(html, 1) == [["sparse", "3.0", "1.0"], ["dense", "−2.0", "∞"]]


def test_the_best_as_shown_of_each_row_is_bold_where_there_is_a_better(html):
    assert re.findall(r"<strong>([^<]*)", html) == ["9.00", "9.50", "9.50", "8.00"]


def test_notes_are_listed_below_the_table(html):
    listed = re.search(r'<ul class="notes".*?</ul>', html, flags=re.DOTALL)[0]
    assert "A misprint." in listed
    assert "Odd: &lt;script&gt;" in listed
    assert "title=" not in listed


@pytest.mark.parametrize(
    ("ours", "paper", "better", "expected"),
    [
        (9.0, 10.0, "lower", ("good", 0.4)),
        (11.0, 10.0, "lower", ("bad", 0.4)),
        (11.0, 10.0, "higher", ("good", 0.4)),
        (30.0, 10.0, "higher", ("good", 1.0)),
        (1.0, 0.0, "lower", ("bad", 1.0)),
        (9.0, 10.0, "neither", ("", 0.0)),
        (10.0, 10.0, "lower", ("", 0.0)),
        (NAN, 10.0, "lower", ("", 0.0)),
        (9.0, NAN, "lower", ("", 0.0)),
    ],
)
def test_the_tint_grows_with_the_relative_difference(ours, paper, better, expected):
    assert report.shade(Cell(ours, paper=paper), replace(ERRORS, better=better)) == expected


def test_differences_add_up_as_shown():
    table = Table("", "", ["a"], [("", [Cell(1.2345, paper=1.0)])], digits=1)
    [(_, [entry])] = report.entries(table)
    assert (entry.value, entry.paper, entry.difference) == ("1.2", "1.0", "+0.2")


def test_checks_are_counted_and_told_in_words(html):
    text = " ".join(re.sub(r"<[^>]+>", " ", html).split())
    assert "✓ 1 holds ✗ 1 does not hold – 1 with not enough results" in text
    assert text.count("Holds: It is lower.") == text.count("Not enough results: It is fast.") == 2


def test_an_empty_report_is_a_page(tmp_path):
    report.build([], tmp_path / "report.html", title="Nothing", summary={})
    assert "<h1>Nothing</h1>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("fault", ["cells", "identifier", "text"])
def test_the_old_page_stays_if_the_new_one_fails(sections, fault, tmp_path):
    ragged = replace(SECONDS, rows=[("one", [Cell(1.0)])])
    wrong = {
        "cells": [replace(sections[1], tables=[ragged])],
        "identifier": [sections[1], sections[1]],
        "text": [replace(sections[1], title="\udc80")],  # a letter that cannot be written
    }
    page = tmp_path / "report.html"
    report.build([], page, title="old", summary={})
    old = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError):
        report.build(wrong[fault], page, title="", summary={})
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == old


def test_without_jinja_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"jinja2.*robustnmf\[report\]"):
        report.build([], tmp_path / "report.html", title="", summary={})


# From here on in a browser.


@pytest.fixture(scope="module")
def chromium():
    with browser.start() as running:
        yield running


@pytest.fixture
def show(chromium, path):
    pages = []

    def show(**options):
        pages.append(browser.show(chromium, path, **options))
        return pages[-1]

    yield show
    for page in pages:
        page.close()


def column(page, place):
    return page.evaluate(f"[...document.querySelector('tbody').rows].map(row => row.cells[{place}].dataset.key)")


def heading(place):
    return f"thead th:nth-child({place + 1}) button"


def orders(page):
    return page.evaluate("[...document.querySelectorAll('thead th')].map(th => th.ariaSort).filter(Boolean)")


def test_browser_finds_no_fault_and_draws_every_figure(show):
    page = show()
    assert browser.errors(page) == []
    sizes = page.evaluate("[...document.querySelectorAll('figure svg')].map(s => [s.clientWidth, s.clientHeight])")
    assert len(sizes) == 2
    assert all(width > 300 and height > 100 for width, height in sizes)
    # A picture inside a drawing is allowed in by the page's own rules.
    assert page.evaluate("document.querySelector('figure svg image').getBoundingClientRect().width") > 50


def test_browser_reports_faults_of_a_page(chromium, tmp_path):
    file = tmp_path / "wrong.html"
    rules = "default-src 'none'; script-src 'unsafe-inline'"
    picture = f'<meta http-equiv="Content-Security-Policy" content="{rules}"><img src="picture.png">'
    file.write_text(f"{picture}<script>console.error('told'); missing()</script>")
    page = browser.show(chromium, file)
    refused, told, thrown = browser.errors(page)
    assert "picture.png" in refused
    assert "told" in told
    assert "missing is not defined" in thrown
    page.close()


def test_a_click_on_a_heading_sorts_and_another_turns_the_order_round(show):
    page = show()
    page.click(heading(1))
    assert column(page, 1) == ["8.0", "12.5", "30.0"]
    assert orders(page) == ["ascending"]
    page.click(heading(1))
    assert column(page, 1) == ["30.0", "12.5", "8.0"]
    assert orders(page) == ["descending"]
    page.click(heading(0))
    assert column(page, 0) == ["5.0", "10.0", "40.0"]
    assert orders(page) == ["ascending"]
    assert browser.errors(page) == []


def test_labels_without_a_number_are_sorted_by_their_letters(show):
    page = show()
    button = "#speed thead button"
    for labels in (["dense", "sparse"], ["sparse", "dense"]):
        page.click(button)
        assert page.evaluate("[...document.querySelectorAll('#speed tbody th')].map(th => th.textContent)") == labels


def test_rows_without_a_number_come_last_either_way(show):
    page = show()
    for numbers in (["9.0", "9.5"], ["9.5", "9.0"]):
        page.click(heading(2))
        assert column(page, 2) == [*numbers, ""]


@pytest.mark.parametrize("key", ["Enter", " "])
def test_headings_obey_the_keyboard(show, key):
    page = show()
    page.focus(heading(1))
    page.keyboard.press(key)
    assert column(page, 1) == ["8.0", "12.5", "30.0"]
    page.keyboard.press(key)
    assert column(page, 1) == ["30.0", "12.5", "8.0"]


GROUND = "getComputedStyle(document.body).backgroundColor"
LABEL = "document.getElementById('theme').textContent"
INK = "getComputedStyle(document.querySelector('figure svg')).color"


def test_colours_follow_the_system_until_the_button_says_otherwise(show, path):
    page = show()
    light = [page.evaluate(GROUND), page.evaluate(INK)]
    page.emulate_media(color_scheme="dark")
    dark = [page.evaluate(GROUND), page.evaluate(INK)]
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    seen = []
    for _ in range(3):
        page.click("#theme")
        seen.append((page.evaluate(LABEL), page.evaluate(GROUND)))
    assert seen == [("Colours: light", light[0]), ("Colours: dark", dark[0]), ("Colours: auto", dark[0])]
    # The choice lasts; but Chromium may lose what a page stored in the moment before another takes its place.
    limit = time.monotonic() + browser.PATIENCE
    while page.evaluate(GROUND) != light[0] and time.monotonic() < limit:
        while page.evaluate(LABEL) != "Colours: light":
            page.click("#theme")
        page.reload()
    assert page.evaluate(GROUND) == light[0]
    assert browser.errors(page) == []


def test_it_is_printed_dark_on_white(show):
    page = show(dark=True)
    page.click("#theme")
    page.click("#theme")
    page.emulate_media(media="print")
    assert page.evaluate(GROUND) == "rgb(255, 255, 255)"


# Contrast of every text with what it stands on, by the formula of WCAG; grounds may let those below shine through.
CONTRAST = """(() => {
  const pen = Object.assign(document.createElement('canvas'), {width: 1, height: 1}).getContext('2d');
  const paint = colours => {
    for (const colour of colours) { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }
    const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map(
      c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const worst = {};
  for (const element of document.querySelectorAll('body *:not(svg *):not(script)')) {
    if (![...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())) continue;
    const grounds = [];
    for (let at = element; at; at = at.parentElement) grounds.unshift(getComputedStyle(at).backgroundColor);
    const [a, b] = [paint(grounds), paint([...grounds, getComputedStyle(element).color])].sort((x, y) => y - x);
    const name = element.tagName + '.' + element.className;
    worst[name] = Math.min(worst[name] ?? 99, (a + 0.05) / (b + 0.05));
  }
  return worst;
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_can_be_read_on_its_ground(show, dark):
    contrasts = show(dark=dark).evaluate(CONTRAST)
    assert len(contrasts) > 15
    assert {name: value for name, value in contrasts.items() if value < 4.5} == {}


@pytest.mark.parametrize("width", [390, 800, 1280, 1920])
def test_the_page_does_not_move_sideways(show, width):
    page = show(width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("innerWidth") == width  # a phone would zoom out
    wide = page.evaluate(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, .drawing, .hidden')"
        f" && e.getBoundingClientRect().right > {width}).map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == []


def test_on_a_phone_the_table_moves_inside_its_frame_and_keeps_its_labels(show):
    page = show(width=390)
    assert page.evaluate("(s => s.scrollWidth > s.clientWidth)(document.querySelector('.scroll'))")
    page.evaluate("document.querySelector('.scroll').scrollLeft = 300")
    assert page.evaluate("document.querySelector('tbody th').getBoundingClientRect().left") >= 0
