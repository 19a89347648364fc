"""The page in a real browser, and what it is made of."""

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hasten.records import (
    Effect,
    Finding,
    Gate,
    HotLine,
    Phase,
    Place,
    Plan,
    Proof,
)
from hasten.report import html
from hasten.report.edits import Edits

_spec = importlib.util.spec_from_file_location("browser", Path(__file__).with_name("browser.py"))
browsers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(browsers)

CHARTS = ("steps", "strips", "course", "losses")
SECTIONS = (
    "step", "levers", "pairs", "findings", "lines", "time", "maths", "trust", "machine", "use",
)  # fmt: skip
DIFF = (
    "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-x = 1\n+x = 2  # a long line" + 60 * " x" + "\n"
)
EDITS = Edits(diff=DIFF, notes=("channels_last: a note, and a line to write:\n    x = 3",))
UNFOLD = "document.querySelectorAll('details').forEach(e => { e.open = true; })"
PRESENT = """
[...document.querySelectorAll(%s)].map(e => {
    const box = e.getBoundingClientRect();
    return box.width > 100 && box.height > 40;
})
"""
UNNAMED = """
[...document.querySelectorAll('[role=img], [role=region], [tabindex], summary, a')].filter(e =>
    !(e.getAttribute('aria-label') || e.textContent).trim()).map(e => e.outerHTML)
"""
# WCAG 2.1, https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio; backgrounds that let through are
# followed up to the page.
PALE = """
(() => {
    const parse = c => c.match(/[\\d.]+/g).map(Number);
    const light = c => {
        const [r, g, b] = c.slice(0, 3).map(v => v / 255)
            .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = e => {
        for (; e; e = e.parentElement) {
            const c = parse(getComputedStyle(e).backgroundColor);
            if (c.length < 4 || c[3] > 0) return c;
        }
        return [255, 255, 255];
    };
    const found = [];
    for (const e of document.querySelectorAll('body *')) {
        if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
        const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) found.push([e.tagName, e.className, e.textContent.slice(0, 30), ratio]);
    }
    return found;
})()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = browsers.find()
    if program is None:
        pytest.skip(f"none of {', '.join(browsers.NAMES)} is installed")
    browser = browsers.Browser(program, tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


@pytest.fixture
def page(raced, tmp_path, lines):
    path = tmp_path / "report.html"
    path.write_text(
        html.render_tuning(raced, plan_path=tmp_path / "hasten.toml", snippets=lines, edits=EDITS)
    )
    return path


@pytest.fixture
def tell(tmp_path, lines):
    def tell(tuning, **more):
        return html.render_tuning(
            tuning, plan_path=tmp_path / "hasten.toml", snippets=lines, **more
        )

    return tell


@pytest.fixture
def seen(profiled, profile, machine):
    return profiled(profile, machine, ("A note.",))


@pytest.mark.child
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_shows_everything_and_asks_for_nothing(browser, page, scheme, width):
    browser.open(page, width=width, scheme=scheme)
    assert not browser.run("document.querySelector('#evidence').open")
    browser.run(UNFOLD)
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]
    for selectors in ([f"figure.{name}" for name in CHARTS], [f"section#{n}" for n in SECTIONS]):
        for selector in selectors:
            assert browser.run(PRESENT % json.dumps(selector)) == [True], selector
    assert browser.run("document.documentElement.scrollWidth") == width
    assert browser.run(UNNAMED) == []
    assert browser.run(PALE) == []
    dark = browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(15, 20, 25)"
    assert dark is (scheme == "dark")


@pytest.mark.child
def test_the_keyboard_reaches_the_report_and_its_points(browser, page):
    browser.open(page)
    browser.run(UNFOLD)
    browser.press("Tab")
    assert browser.run("document.activeElement.className") == "skip"
    seen = set()
    for _ in range(90):
        browser.press("Tab")
        seen.add(browser.run("document.activeElement.className || document.activeElement.tagName"))
    assert {"A", "SUMMARY", "segment fill-data", "line", "scroll"} <= seen


@pytest.mark.child
def test_a_stretch_of_a_bar_is_as_long_as_its_time(browser, page):
    browser.open(page)
    width = "document.querySelectorAll('.stack')[{}].querySelector('.fill-data').offsetWidth"
    before, after = (browser.run(width.format(index)) for index in (0, 1))
    assert after / before == pytest.approx(5.2 / 14.8, abs=0.01)


@pytest.mark.child
def test_what_the_user_wrote_stays_text(browser, raced, tell, tmp_path):
    evil = "`<video>` <script>document.title='x'</script><img src=x onerror=alert(1)>\"'&amp;"
    place = Place(path=f"{raced.workload.cwd}/{evil}.py", line=3, source=f"x = '{evil}'")
    workload = replace(raced.workload, argv=(f"{evil}.py", evil))
    finding = Finding(name="odd", message=evil, remedy=evil, places=(place,))
    seen = replace(
        raced.diagnosis, findings=(finding,), hot_lines=(HotLine(place=place, share_ratio=0.3),)
    )
    path = tmp_path / "odd.html"
    text = tell(
        replace(raced, workload=workload, diagnosis=seen, notes=(evil,)),
        edits=Edits(diff=f"+{evil}\n", notes=(evil,)),
    )
    path.write_text(text)
    browser.open(path)
    assert browser.complaints() == []
    assert browser.requests() == [path.as_uri()]
    assert browser.run("document.querySelectorAll('script, img, video').length") == 0
    assert browser.run("document.querySelector('.hot .source code').textContent") == place.source
    assert browser.run("document.querySelector('.diff .add').textContent") == f"+{evil}\n"


@pytest.mark.child
@pytest.mark.parametrize("kind", ["nothing", "tuning", "seen"])
def test_a_page_of_little_shows_no_empty_section(browser, request, tell, tmp_path, kind):
    path = tmp_path / "small.html"
    found = request.getfixturevalue(kind)
    path.write_text(html.render_profile(found) if kind == "seen" else tell(found))
    browser.open(path, width=360)
    assert browser.complaints() == []
    assert browser.run("document.documentElement.scrollWidth") == 360
    sizes = "[...document.querySelectorAll('section')].map(e => e.children.length)"
    assert min(browser.run(sizes)) >= 1
    targets = (
        "[...document.querySelectorAll('nav a')].filter(a => !document.querySelector("
        "a.getAttribute('href'))).length"
    )
    assert browser.run(targets) == 0


def test_every_word_of_the_answer_is_on_the_page(raced, tell):
    text = tell(raced)
    for said in (
        "1.43x faster.", "95% interval 1.38x to 1.49x", "few-workers",
        "hasten findings few-workers", "No C compiler is installed.", "Pass --shm-size.",
        "It needs --numerics precision.", "torch.set_num_threads(2)", "train.py:7",
        "images = slow(images)", "Gradients are 1.3 times the floor apart.",
        "AMD EPYC 9V74 80-Core Processor", "Set OMP_NUM_THREADS=2.", "The script sets no seed",
        "120 pairs in 6.5 s, faster in 120",
    ):  # fmt: skip
        assert said in text, said
    assert "edits of your source" not in text


def test_a_diff_stands_with_its_notes_and_is_the_same_only_where_it_is_whole(raced, tell):
    text = tell(raced, edits=EDITS)
    assert "Or apply the same as edits of your source" in text
    assert "<li>channels_last: a note, and a line to write:\n    x = 3</li>" in text
    text = tell(raced, edits=replace(EDITS, missing=("ranks",)))
    assert "Or apply a part of it as edits of your source" in text


def test_a_bundle_has_a_short_name_and_is_spelt_out(raced):
    three = Plan().with_lever("a", 1).with_lever("b", 2).with_lever("c", "x y")
    bundle = replace(raced.races[0], candidate=three)
    known = replace(raced, races=(bundle,), confirmed=replace(raced.confirmed, candidate=three))
    strip = html.races.strips(known).races[0]
    assert strip.name == "3 levers together"
    assert strip.detail.startswith("a=1, b=2, c=x y: ")


def test_a_stray_pair_does_not_press_the_others_together(raced):
    stray = replace(raced.confirmed.pairs[0], candidate_s=1e-9)
    known = (stray, *raced.confirmed.pairs[1:])
    usual = html.races.strips(raced).fresh[0]
    seen = html.races.strips(replace(raced, confirmed=replace(raced.confirmed, pairs=known)))
    row = seen.fresh[0]
    assert row.strays.startswith("M1000 ")
    assert "1 outside of the picture" in row.detail
    assert row.band == pytest.approx(usual.band, abs=3.0)


def test_an_interval_that_says_nothing_is_not_drawn(raced):
    wide = replace(raced.confirmed.speedup, low_ratio=1e-3, high_ratio=1e3)
    seen = html.races.strips(replace(raced, confirmed=replace(raced.confirmed, speedup=wide)))
    assert seen.fresh[0].band == ()
    assert "too few pairs" in seen.fresh[0].figure


def test_a_step_that_hangs_is_cut_off_and_told(watched):
    hung = replace(watched[0], phase_ns={Phase.DATA: int(60e9)})
    usual, seen = html.curves.course(watched), html.curves.course((*watched[1:], hung))
    assert seen.slowest[0].wall == "1m 00s"
    assert "1 of them reaches beyond the picture" in seen.message
    assert "beyond" not in usual.message
    heights = [float(n) for layer in seen.layers for n in re.findall(r"V([\d.]+)", layer.path)]
    assert min(heights) >= 0.0


def test_columns_of_the_ledger_add_up_to_the_step(watched):
    chart = html.curves.course(watched[:2])
    tops, bottoms = [], []
    for layer in chart.layers:
        _, top, _, bottom, _ = map(float, re.findall(r"[\d.]+", layer.path.partition("z")[0]))
        tops.append(top)
        bottoms.append(bottom)
    assert bottoms[0] == 1000.0
    assert bottoms[1:] == pytest.approx(tops[:-1], abs=0.11)


def test_losses_that_are_no_numbers_leave_a_gap():
    own, nan = (3.0, 2.0, float("nan"), 1.0), float("nan")
    proof = Proof(effect=Effect.EXACT, baseline_losses=own, candidate_losses=own)
    chart = html.curves.losses(proof)
    assert chart.baseline.count("M") == 2
    assert "nan" not in chart.baseline
    assert "the same, to the last bit" in chart.message
    assert (
        html.curves.losses(replace(proof, baseline_losses=(nan,) * 4, candidate_losses=())) is None
    )
    assert html.curves.losses(Proof(effect=Effect.EXACT)) is None


def test_losses_that_differ_are_told():
    proof = Proof(
        effect=Effect.DISTRIBUTION, baseline_losses=(2.0, 1.0), candidate_losses=(2.0, 1.1),
        gates=(Gate(name="G5 learning", passed=True, message="No worse."),),
    )  # fmt: skip
    assert "differs by 0.091 of its value at most" in html.curves.losses(proof).message


def test_a_finding_says_whether_the_plan_mends_it(raced):
    def help_for(tuning):
        return html.sections.findings(raced.diagnosis, raced.workload, tuning)[0].help

    assert help_for(None) == "The lever loader_workers does it without an edit."
    planned = replace(raced, plan=Plan().with_lever("loader_workers", 2))
    assert help_for(planned) == "The plan has loader_workers=2."
    assert html.sections.findings(raced.diagnosis, raced.workload, None)[-1].help == "By hand."


def test_a_share_says_what_it_is_of(raced, tell):
    few = replace(raced.diagnosis.findings[0], is_of_all=True)
    of_all = replace(raced, diagnosis=replace(raced.diagnosis, findings=(few,)))
    assert "<strong>43%</strong> of the step <small>" in tell(raced)
    assert "<strong>43%</strong> of the time <small>" in tell(of_all)


def test_a_path_outside_of_the_folder_is_told_whole(raced):
    hot = HotLine(place=Place(path="/elsewhere/lib.py", line=2), share_ratio=0.5, phase="between")
    told = html.sections.hot_lines(replace(raced.diagnosis, hot_lines=(hot,)), raced.workload)
    assert told[0].place == "/elsewhere/lib.py:2"
    assert told[0].colour == "none"


def test_what_a_user_s_words_hold_stays_text(raced, tell):
    tag = "<script>alert('x')</script>&amp;"
    argv = (f"{tag}.py", "--name", tag)
    hostile = replace(
        raced, workload=replace(raced.workload, argv=argv), notes=(f"A note: {tag}",),
        proof=replace(raced.proof, gates=(Gate(name=tag, passed=True, message=tag),)),
        levers=tuple(replace(row, why=tag) for row in raced.levers),
    )  # fmt: skip
    text = tell(hostile, edits=Edits(diff=f"{DIFF}+{tag}\n", notes=(tag,)))
    assert "<script" not in text
    assert "&lt;script&gt;alert" in text
    assert "&amp;amp;" in text
