"""The page to explore a factorisation: what it shows is what the model says, and only who has the token can ask."""

import csv
import importlib
import io
import json
import re
import runpy
import socket
import subprocess
import sys
import threading
import time
from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from typer.testing import CliRunner

import browser
from conftest import make_data
from robustnmf import RobustNMF, plots
from robustnmf.cli.app import app
from robustnmf.formats import Axis, LabelledMatrix
from robustnmf.plots.grids import image_of
from robustnmf.view import Study, exports, views, write_page
from robustnmf.view import study as study_module
from robustnmf.view.server import HOST, MOST_STUDIES, Studies, application, uploads
from robustnmf.view.study import StudyError

starlette = pytest.importorskip("starlette.testclient")
uvicorn = pytest.importorskip("uvicorn")

DOCS = Path(__file__).parents[1] / "docs"
TOKEN = "right"
HOSTILE = "<img src=x onerror=alert(1)>"
SAMPLE = make_data(40, 12)
DATES = [f"2024-01-{day:02d}" for day in range(1, 32)] + [f"2024-02-{day:02d}" for day in range(1, 10)]
NAMES = [HOSTILE, *(f"f{j}" for j in range(1, 12))]


def csv_bytes(X=SAMPLE.X, dates=DATES):
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["date", *NAMES])
    writer.writerows([[date, *row] for date, row in zip(dates, X.tolist(), strict=True)])
    return text.getvalue().encode()


def write_cube(path, cube):
    """Write a cube (y, x, wavelength) whose wavelengths are in nanometres."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        data, scale = file.create_dataset("cube", data=cube), file.create_dataset("w", data=400.0 + np.arange(12) / 7)
        scale.make_scale("wavelength")
        scale.attrs["units"] = "nm"
        for axis, label in enumerate(("y", "x", "wavelength")):
            data.dims[axis].label = label
        data.dims[2].attach_scale(scale)
    return path


def wait(study):
    end = time.monotonic() + 120
    while study.job.state == "running":
        assert time.monotonic() < end
        time.sleep(0.02)
    return study.job


@pytest.fixture(scope="module")
def fitted():
    study = Study(LabelledMatrix(SAMPLE.X, Axis(DATES), Axis(NAMES, units=["g"] * 12)), "table")
    study.start_fit(3)
    assert wait(study).state == "done", study.job.message
    return study


@pytest.fixture
def studies():
    return Studies()


@pytest.fixture
def client(studies):
    with uploads() as folder:
        app = application(studies, TOKEN, folder, max_bytes=2**20)
        yield starlette.TestClient(app, f"http://{HOST}", headers={"Authorization": f"Bearer {TOKEN}"})


def upload(client, name="air.csv", content=None):
    return client.post("/api/studies", params={"name": name}, content=csv_bytes() if content is None else content)


# --- What is shown ----------------------------------------------------------------------------------------------------


def test_entries_of_a_sample_are_those_of_the_data_and_the_model(fitted):
    model = fitted.fitted.model
    found = views.sample(fitted, 7)
    assert_allclose(found["measured"], SAMPLE.X[7], rtol=1e-5)
    explained = model.transform(SAMPLE.X[7:8]) @ model.components_
    assert_allclose(found["explained"], explained[0], rtol=1e-4, atol=1e-8)
    assert found["outlier"] == model.outliers_[7].astype(int).tolist()
    width = model.noise_.width(explained, np)
    assert_allclose(found["ratio"], ((SAMPLE.X[7] - explained) / width)[0], rtol=1e-3, atol=1e-3)


def test_entries_of_a_feature_are_a_column(fitted):
    found = views.feature(fitted, 4)
    assert_allclose(found["measured"], SAMPLE.X[:, 4], rtol=1e-5)
    assert found["outlier"] == fitted.fitted.model.outliers_[:, 4].astype(int).tolist()


def test_a_long_line_keeps_its_outliers(fitted, monkeypatch):
    monkeypatch.setattr(views, "MOST_POINTS", 10)
    found = views.feature(fitted, 4)
    assert len(found["places"]) == 10
    wrong = fitted.fitted.model.outliers_[:, 4]
    assert [bool(flag) for flag in found["outlier"]] == [bool(cell.any()) for cell in wrong.reshape(10, 4)]
    part = views.feature(fitted, 4, 5, 12)
    assert part["places"] == list(range(5, 12))


def test_the_map_has_the_share_of_outliers_of_each_cell(fitted):
    found = views.outlier_map(fitted, (0, 40), (0, 12), (20, 6))
    cells = np.frombuffer(b64decode(found["cells"]), np.uint8).reshape(20, 6)
    expected = fitted.fitted.model.outliers_.reshape(20, 2, 6, 2).mean(axis=(1, 3))
    np.testing.assert_array_equal(cells, np.ceil(255 * expected))
    window = views.outlier_map(fitted, (8, 12), (-5, 2), (50, 50))
    assert (window["rows"], window["columns"], window["height"], window["width"]) == ([8, 12], [0, 2], 4, 2)


def test_outliers_are_listed_from_the_worst_on(fitted):
    found = views.outlier_list(fitted)
    assert len(found) == fitted.fitted.model.outliers_.sum()
    ratios = [abs(one["ratio"]) for one in found]
    assert ratios == sorted(ratios, reverse=True)
    assert all(fitted.fitted.model.outliers_[one["sample"], one["feature"]] for one in found)


def test_the_histogram_counts_every_entry(fitted):
    found = views.residual_histogram(fitted)
    assert sum(found["outliers"]) == fitted.fitted.model.outliers_.sum()
    assert sum(found["kept"]) + sum(found["outliers"]) == SAMPLE.X.size


def test_the_overview_has_times_units_and_shares(fitted):
    found = views.overview(fitted)
    assert np.array(found["times"]).astype("datetime64[ms]").astype("datetime64[D]").astype(str).tolist() == DATES
    assert found["units"] == "g" and found["samples"] == DATES and found["features"] == NAMES
    assert sum(found["fit"]["shares"]) == pytest.approx(1, abs=1e-4)
    json.dumps(found, allow_nan=False)


def test_percentages_of_a_feature_are_those_of_all_that_is_explained(fitted):
    percent = np.array(views.components(fitted)["percent"])
    assert_allclose(percent.sum(axis=0), 100, rtol=1e-4)


def test_images_are_drawn_from_the_grid():
    grid = Axis(grid=(3, 4), grid_names=("y", "x"))
    study = Study(LabelledMatrix(SAMPLE.X, features=grid), "images")
    study.start_fit(2)
    assert wait(study).state == "done"
    pictures = views.sample(study, 0)["pictures"]
    assert set(pictures) == {"data", "clean", "outliers"}
    assert (pictures["data"]["height"], pictures["data"]["width"]) == (3, 4)
    assert len(views.components(study)["images"]) == 2


def pixels(picture):
    """Return the bytes of a picture as an array."""
    flat = np.frombuffer(b64decode(picture["bytes"]), np.uint8)
    return flat.reshape(picture["height"], picture["width"], *([4] if picture["colour"] else []))


def fitted_images(X, *, shape, names, rank=2):
    study = Study(LabelledMatrix(X, features=Axis(grid=shape, grid_names=names)), "images")
    study.start_fit(rank)
    assert wait(study).state == "done", study.job.message
    return study


def test_pictures_in_colour_stay_in_colour():
    X = SAMPLE.X.copy()
    X[0, 4] = np.nan
    picture = views.sample(fitted_images(X, shape=(2, 2, 3), names=("y", "x", "c")), 0)["pictures"]["data"]
    found, image = pixels(picture), X[0].reshape(2, 2, 3)
    seen = ~np.isnan(image).any(axis=2)
    np.testing.assert_array_equal(found[..., 3], 255 * seen)
    brightest = found[seen][:, :3].argmax(axis=1)
    assert found[seen].shape == (3, 4) and len({*map(tuple, found[seen][:, :3].tolist())}) == 3
    np.testing.assert_array_equal(brightest, image[seen].argmax(axis=1))


def test_channels_stand_side_by_side_with_nothing_between_them():
    study = fitted_images(SAMPLE.X, shape=(3, 2, 2), names=("c", "y", "x"))
    pictures = views.sample(study, 5)["pictures"]
    found, channels = pixels(pictures["data"]), SAMPLE.X[5].reshape(3, 2, 2)
    assert found.shape == (2, 3 * 2 + 2) and not found[:, [2, 5]].any()
    top = SAMPLE.X[5][~study.fitted.outliers[5]].max()
    for place, channel in enumerate(channels):
        expected = np.clip(np.round(255 * channel / top), 1, 255)
        np.testing.assert_array_equal(found[:, 3 * place : 3 * place + 2], expected)
    mask = pixels(pictures["outliers"])
    assert np.count_nonzero(mask) == study.fitted.outliers[5].sum()
    assert pixels(views.components(study)["images"][0]).shape == found.shape


def test_a_large_image_keeps_its_proportions():
    X = np.tile(SAMPLE.X[:4, :1], (1, 300 * 500)) + np.arange(300 * 500) / 1e5
    study = Study(LabelledMatrix(X, features=Axis(grid=(300, 500), grid_names=("y", "x"))), "large")
    study.take_model(RobustNMF(1, method="l2", random_state=0).fit(X))
    picture = views.sample(study, 0)["pictures"]["data"]
    assert (picture["height"], picture["width"]) == (150, 250)


def test_a_cube_has_the_units_of_its_scale_on_the_scale_alone(tmp_path):
    study = Study.open(write_cube(tmp_path / "cube.h5", SAMPLE.X.reshape(5, 8, 12)))
    study.start_fit(2)
    assert wait(study).state == "done"
    found = views.overview(study)
    assert found["units"] == "" and found["feature_axis"]["units"] == ["nm"] * 12
    assert found["features"][1] == "400.14286"
    assert_allclose(found["feature_axis"]["numbers"], 400 + np.arange(12) / 7, rtol=1e-5)
    svg = exports.export(study, "contributions", "svg")[0].decode()
    assert "nm" not in re.sub(r"<[^>]*>", "", svg)
    pictures = views.feature(study, 3)["pictures"]
    assert pixels(pictures["data"]).shape == (5, 8)
    np.testing.assert_array_equal(pixels(pictures["outliers"]) > 0, study.fitted.outliers[:, 3].reshape(5, 8))


def test_exported_tables_name_pixels_by_their_places():
    study = fitted_images(SAMPLE.X, shape=(3, 4), names=("y", "x"))
    heading = exports.export(study, "components", "csv")[0].decode().splitlines()[0]
    assert next(csv.reader([heading]))[1:] == [f"y {y}, x {x}" for y in range(3) for x in range(4)]


# --- What the user decides --------------------------------------------------------------------------------------------


def test_a_rejected_entry_has_no_influence_on_the_next_fit():
    study = Study(LabelledMatrix(SAMPLE.X), "table")
    study.judge(3, 4, "reject")
    study.start_fit(3)
    assert wait(study).state == "done"
    weights = np.ones(SAMPLE.X.shape)
    weights[3, 4] = 0
    expected = RobustNMF(3, random_state=0).fit(SAMPLE.X, weights=weights)
    assert_allclose(study.fitted.components, expected.components_)
    assert study.is_outlier([3])[0, 4]
    study.judge(3, 4, "accept")
    assert not study.is_outlier([3])[0, 4]
    study.judge(3, 4, None)
    assert not study.verdicts


def test_a_refit_goes_on_from_where_the_fit_stands():
    study = Study(LabelledMatrix(SAMPLE.X), "table")
    study.start_fit(3)
    assert wait(study).state == "done"
    before, place = study.fitted, tuple(np.argwhere(~study.fitted.outliers)[7].tolist())
    study.judge(*place, "reject")
    study.start_refit()
    assert wait(study).state == "done", study.job.message
    assert study.fitted is not before and study.fitted.steps == ((), (place,))
    weights = np.ones(SAMPLE.X.shape)
    weights[place] = 0
    anew = RobustNMF(3, random_state=0).fit(SAMPLE.X, weights=weights)
    kept = ~(study.fitted.outliers | anew.outliers_) & (weights > 0)
    squares = [
        ((SAMPLE.X - model.transform(SAMPLE.X, weights=weights) @ model.components_)[kept] ** 2).sum()
        for model in (study.fitted.model, anew)
    ]
    assert squares[0] <= 1.01 * squares[1]
    assert np.mean(study.fitted.outliers != anew.outliers_) < 0.01
    assert not np.array_equal(study.fitted.components, before.components)


def test_what_cannot_be_gone_on_with_is_fitted_anew():
    study = Study(LabelledMatrix(SAMPLE.X), "table")
    study.start_fit(3, method="l2", max_iter=5)
    assert wait(study).state == "done"
    study.judge(3, 4, "reject")
    study.start_refit()
    assert wait(study).state == "done" and study.fitted.steps == (((3, 4),),)
    assert study.fitted.model.method == "l2" and study.fitted.components.shape == (3, 12)


def test_the_script_repeats_fit_and_refit(studies, client, tmp_path, monkeypatch):
    number = upload(client).json()["id"]
    study = studies[number]
    study.start_fit(3)
    wait(study)
    study.judge(5, 6, "reject")
    study.start_refit()
    wait(study)
    content = client.get(f"/api/studies/{number}/export/script.py").content
    assert b"else 'air.csv'" in content  # not the copy on the server, which does not stay
    found = run_script(content, tmp_path, monkeypatch)
    assert_allclose(found["model"].components_, study.fitted.components)
    np.testing.assert_array_equal(found["outliers"], study.is_outlier(slice(None)))


def run_script(content, folder, monkeypatch):
    """Run an exported program in a folder with the file that was dropped, and return what it has found."""
    (folder / "air.csv").write_bytes(csv_bytes())
    (folder / "study.py").write_bytes(content)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["study.py"])
    return runpy.run_path("study.py")


def test_the_script_reads_the_uncertainties_again(tmp_path, monkeypatch):
    data, uncertainties = tmp_path / "air.csv", tmp_path / "errors.csv"
    data.write_bytes(csv_bytes())
    uncertainties.write_bytes(csv_bytes(0.1 + np.sqrt(SAMPLE.X)))
    study = Study.open(data, uncertainties)
    study.start_fit(3)
    assert wait(study).state == "done"
    found = run_script(exports.script(study).encode(), tmp_path, monkeypatch)
    assert_allclose(found["model"].components_, study.fitted.components)
    without = RobustNMF(3, random_state=0).fit(SAMPLE.X)
    assert not np.allclose(found["model"].components_, without.components_)


def test_uncertainties_that_a_file_tells_are_used():
    matrix = LabelledMatrix(SAMPLE.X, uncertainties=0.1 + np.sqrt(SAMPLE.X))
    study = Study(matrix, "table")
    study.start_fit(3)
    assert wait(study).state == "done"
    assert_allclose(study.fitted.components, RobustNMF(3, random_state=0).fit(matrix).components_)


def test_a_search_for_the_rank_shows_what_is_found_so_far(monkeypatch):
    study, seen = Study(LabelledMatrix(SAMPLE.X), "table"), []
    see = study_module.auto_rank

    def watched(values, *, callback, **options):
        def look(found):
            callback(found)
            seen.append(views.job(study)["ranks"]["ranks"])
            if len(seen) == 2:
                study.stop()

        return see(values, callback=look, **options)

    monkeypatch.setattr(study_module, "auto_rank", watched)
    study.start_rank(method="l2", max_iter=5)
    job = wait(study)
    assert job.state == "cancelled" and "what was tried" in job.message
    assert seen == [[1], [1, 2]] and views.overview(study)["ranks"]["ranks"] == [1, 2]


def test_a_cancelled_fit_leaves_the_model_as_it_was(fitted):
    before, revision = fitted.fitted, fitted.revision
    fitted.start_fit(5)
    fitted.stop()
    job = wait(fitted)
    assert job.state in ("cancelled", "done")
    if job.state == "cancelled":
        assert fitted.fitted is before and fitted.revision == revision
    fitted.fitted = before


def test_a_fit_that_fails_says_why():
    study = Study(LabelledMatrix(np.full((6, 5), -1.0)), "negative")
    study.start_fit(2)
    assert wait(study).state == "failed" and "egative" in study.job.message
    with pytest.raises(StudyError, match="There is no model yet"):
        views.components(study)


def test_the_folder_of_a_fit_is_opened_with_its_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "air.csv").write_bytes(csv_bytes())
    arguments = ["fit", "air.csv", "-k", "2", "--method", "l2", "--max-iter", "5", "--no-report", "-q"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    study = Study.open(tmp_path / "air-robustnmf")
    np.testing.assert_array_equal(study.matrix.values, SAMPLE.X)
    assert study.fitted.components.shape == (2, 12) and views.overview(study)["features"] == NAMES
    (tmp_path / "air.csv").rename(tmp_path / "other.csv")
    with pytest.raises(StudyError, match=r"air\.csv, is not there"):
        Study.open(tmp_path / "air-robustnmf")


# --- The server -------------------------------------------------------------------------------------------------------


def test_a_study_from_a_dropped_file_to_the_script(client, studies, tmp_path):
    number = upload(client).json()["id"]
    path = f"/api/studies/{number}"
    assert client.get(path).json()["shape"] == [40, 12]
    client.post(f"{path}/fit", content=json.dumps({"rank": 3}))
    assert wait(studies[number]).state == "done"
    assert client.get(f"{path}/job").json()["state"] == "done"
    assert client.get(path).json()["fit"]["rank"] == 3
    for view in (
        "components",
        "contributions",
        "outliers",
        "histogram",
        "sample/1",
        "feature/2",
        "map?bottom=40&right=12",
    ):
        assert client.get(f"{path}/{view}").status_code == 200, view
    told = client.post(f"{path}/verdict", content=json.dumps({"sample": 1, "feature": 2, "verdict": "reject"}))
    assert told.json()["verdicts"] == [[1, 2, "reject"]]
    script, data = tmp_path / "study.py", tmp_path / "moved.csv"
    script.write_bytes(client.get(f"{path}/export/script.py").content)
    data.write_bytes(csv_bytes())
    done = subprocess.run([sys.executable, script, data], capture_output=True, text=True, check=True)
    assert "components have shape (3, 12)" in done.stdout


@pytest.mark.parametrize("name", ["components", "codes", "outliers", "cleaned"])
def test_tables_are_exported(client, studies, fitted, name):
    number = studies.add(fitted)
    rows = list(csv.reader(io.StringIO(client.get(f"/api/studies/{number}/export/{name}.csv").text)))
    lengths = {"components": 3, "codes": 40, "outliers": fitted.fitted.outliers.sum(), "cleaned": 40}
    assert len(rows) == 1 + lengths[name]
    if name == "cleaned":
        kept = ~fitted.fitted.outliers
        values = np.array([row[1:] for row in rows[1:]], dtype=float)
        np.testing.assert_array_equal(values[kept], SAMPLE.X[kept])


@pytest.mark.parametrize("kind", ["svg", "png"])
@pytest.mark.parametrize("name", ["components", "contributions", "explained_share", "outlier_map"])
def test_pictures_are_exported(client, studies, fitted, name, kind):
    content = client.get(f"/api/studies/{studies.add(fitted)}/export/{name}.{kind}").content
    assert content.startswith(b"\x89PNG" if kind == "png" else b"<?xml")


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({"Authorization": "Bearer wrong"}, 401, "token is wrong"),
        ({"Authorization": ""}, 401, "token is wrong"),
        ({"Origin": "http://evil.example"}, 403, "another page"),
        ({"Host": "evil.example"}, 403, "answers only to 127.0.0.1"),
    ],
)
def test_other_pages_and_wrong_tokens_are_refused(client, headers, status, words):
    for method, path in (("GET", "/api/studies"), ("POST", "/api/studies")):
        answer = client.request(method, path, headers=headers)
        assert answer.status_code == status and words in answer.json()["error"]


def test_the_page_may_load_nothing_from_elsewhere(client):
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    addresses = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    assert addresses and all("//" not in address for address in addresses)
    for name in ("app.js", "charts.js", "source.js", "style.css"):
        text = client.get(f"/{name}").text.replace("http://www.w3.org/2000/svg", "")
        assert "http" not in text and "innerHTML" not in text and "eval(" not in text


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"no,numbers\nat,all\n", "table of numbers"),
        ("../../etc/passwd", b"x", "known format"),
        ("a.<script>", b"x", "known format"),
        ("a.npy", b"\x93NUMPY broken", "NumPy"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_in_words(client, name, content, words):
    answer = upload(client, name, content)
    assert answer.status_code == 400 and words in answer.json()["error"]


def test_a_file_that_is_too_large_is_refused_before_it_is_taken(client):
    answer = client.post("/api/studies", content=b"x", headers={"Content-Length": str(10 * 2**30)})
    assert answer.status_code == 413 and "robustnmf view" in answer.json()["error"]

    def endless():
        yield from (b"0" * 2**16 for _ in range(64))

    answer = client.post("/api/studies", content=endless())  # it declares no length
    assert answer.status_code == 413


def test_dropped_files_are_removed_in_the_end():
    with uploads() as folder:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        upload(starlette.TestClient(application(Studies(), TOKEN, folder), f"http://{HOST}", headers=headers))
        assert any(path.suffix == ".csv" for path in folder.iterdir())
    assert not folder.exists()


def test_a_second_window_is_told_of_what_the_first_has_changed(client, studies, fitted):
    path, revision = f"/api/studies/{studies.add(fitted)}/verdict", fitted.revision
    content = {"sample": 0, "feature": 0, "verdict": "reject", "revision": revision}
    assert client.post(path, content=json.dumps(content)).status_code == 200
    answer = client.post(path, content=json.dumps(content))
    assert answer.status_code == 409 and "Another window" in answer.json()["error"]
    fitted.verdicts.clear()


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("verdict", {"sample": 99, "feature": 0, "verdict": "reject"}, 400),
        ("verdict", {"sample": "0", "feature": 0, "verdict": "reject"}, 400),
        ("verdict", {"sample": 0, "feature": 0, "verdict": "eat"}, 400),
        ("fit", {"rank": 13}, 400),
        ("fit", [1], 400),
        ("dance", {}, 404),
    ],
)
def test_wrong_requests_are_refused_in_words(client, studies, fitted, path, content, status):
    answer = client.post(f"/api/studies/{studies.add(fitted)}/{path}", content=json.dumps(content))
    assert answer.status_code == status and answer.json()["error"]


@pytest.mark.parametrize("path", ["99", "1/nothing", "1/sample/40", "1/export/nothing.csv"])
def test_what_is_not_there_is_not_found(client, studies, fitted, path):
    studies.add(fitted)
    assert client.get(f"/api/studies/{path}").status_code == 404


def test_the_oldest_study_is_closed_for_a_new_one(studies, fitted):
    first = studies.add(fitted)
    for _ in range(MOST_STUDIES):
        studies.add(fitted)
    with pytest.raises(LookupError, match="not open any more"):
        studies[first]


# --- The page in a browser --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium():
    with browser.start() as found:
        yield found


@pytest.fixture
def address():
    """Serve the page on this machine; give its address with the token."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    with uploads() as folder:
        app = application(Studies(), TOKEN, folder)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/#token={TOKEN}"
        server.should_exit = True
        thread.join(20)
    listener.close()


def open_page(chromium, address, tmp_path, *, name="air.csv", content=None, **options):
    """Open the page and a file in it, and fit it."""
    page = chromium.new_page(**options)
    page.set_default_timeout(1000 * browser.PATIENCE)
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address)
    page.wait_for_selector("#start:not([hidden])")
    file = tmp_path / name
    file.write_bytes(csv_bytes() if content is None else content)
    page.set_input_files("#open", file)
    page.wait_for_selector("#fit:not([hidden])")
    page.fill("#rank", "3")
    page.press("#rank", "Enter")
    page.wait_for_selector("#outliers :is(tbody tr, caption)")
    return page, requests


def test_a_table_is_opened_fitted_judged_exported_and_still_there_after_a_reload(chromium, address, tmp_path):
    page, requests = open_page(chromium, address, tmp_path, viewport={"width": 1280, "height": 900})
    page.click("#outliers tbody tr:nth-child(2)")
    page.focus("#map")
    page.keyboard.press("r")
    page.locator("#entry-facts", has_text="rejected").wait_for()
    page.click("#again")
    page.wait_for_selector("#cancel:not([hidden])")
    page.wait_for_selector("#cancel", state="hidden")
    page.select_option("#export", "components.csv")
    with page.expect_download() as download:
        page.click("#save")
    assert download.value.path().read_text().startswith("component,")
    assert page.inner_text("#message") == ""
    page.reload()
    page.wait_for_selector("#outliers tbody tr")
    assert "3" in page.inner_text("#facts")
    here = address.split("#")[0]
    assert all(url.startswith((here, "data:", "blob:")) for url in requests), requests
    assert HOSTILE in page.inner_text("#neighbours") + page.inner_text("#outliers")  # shown as text, not run
    assert browser.errors(page) == []


def test_the_page_can_be_used_on_a_phone_in_the_dark_with_keys_alone(chromium, address, tmp_path):
    size = {"width": 390, "height": 844}
    page, _ = open_page(chromium, address, tmp_path, viewport=size, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(map(int, re.findall(r"\d+", background)[:3])) < 80
    second = page.inner_text("#outliers tbody tr:nth-child(2)").split()[0]
    page.keyboard.press("n")  # from the first outlier to the second
    page.locator("#entry-facts", has_text=second).wait_for()
    page.keyboard.press("a")
    page.locator("#entry-facts", has_text="accepted").wait_for()
    assert browser.errors(page) == []


def test_large_entries_are_marked_at_the_edge_of_the_axis(chromium, address, tmp_path):
    X = SAMPLE.X.copy()
    X[[7, 20], 4] = (1e4, 2.5e4)
    large = X[X[:, 4] > 5, 4]  # the others are about 1
    page, _ = open_page(chromium, address, tmp_path, content=csv_bytes(X))
    page.locator("#outliers tbody tr", has_text="25000").click()
    marks = page.locator("#feature-line .beyond")
    page.locator("#feature-line", has_text=f"above the axis: {large.size}, up to 25000").wait_for()
    titles = marks.locator("title").all_text_contents()
    assert [float(title.split()[0]) for title in titles] == large.tolist()
    marks.nth(large.tolist().index(1e4)).click()
    page.locator("#entry-facts", has_text="10000").wait_for()
    assert browser.errors(page) == []


def test_lines_leave_long_gaps_of_time_empty_as_plots_do(chromium, address, tmp_path):
    days = np.datetime64("2024-01-01") + np.r_[0:15, 200:225]
    page, _ = open_page(chromium, address, tmp_path, content=csv_bytes(dates=[str(day) for day in days]))
    for line in ("#feature-line svg path:nth-of-type(2)", "#contributions svg path:nth-of-type(2)"):
        assert page.get_attribute(line, "d").count("M") == 2, line
    axes = plots.contributions(RobustNMF(1, random_state=0).fit(SAMPLE.X), SAMPLE.X, index=days, kind="lines")
    assert np.isnan(axes.lines[0].get_ydata()).sum() == 1  # the same one gap


def test_pixels_are_named_and_found_by_their_places(chromium, address, tmp_path):
    stack = io.BytesIO()
    X = np.tile(SAMPLE.X, (1, 2)).reshape(40, 4, 6)
    X[9, 2, 3] += 500
    np.save(stack, X)
    page, _ = open_page(chromium, address, tmp_path, name="stack.npy", content=stack.getvalue())
    assert "pixel (2, 3)" in page.inner_text("#outliers tbody tr:first-child")
    canvas = page.locator("#pictures canvas").first
    box = canvas.bounding_box()
    canvas.click(position={"x": 4.5 / 6 * box["width"], "y": 1.5 / 4 * box["height"]})
    page.locator("#feature-title", has_text="Pixel (1, 4)").wait_for()
    box, ring = canvas.bounding_box(), page.locator("#pictures .ring").first.bounding_box()
    assert ring["x"] + ring["width"] / 2 == pytest.approx(box["x"] + 4.5 / 6 * box["width"], abs=2)
    assert ring["y"] + ring["height"] / 2 == pytest.approx(box["y"] + 1.5 / 4 * box["height"], abs=2)
    page.click("#play")
    page.locator("#sample-title", has_text=re.compile(r"Sample (1[2-9]|[23]\d)")).wait_for()  # it was 9
    page.click("#play")
    assert browser.errors(page) == []


def test_a_click_on_a_channel_finds_its_pixel(chromium, fitted, tmp_path):
    page, _ = show_from_disk(chromium, write_page(fitted, tmp_path / "page"))
    shape, places = (5, 3, 4), [(0, 0, 0), (2, 1, 3), (3, 2, 0), (4, 0, 2)]
    sheet = image_of(np.arange(60.0), shape)
    ask = """([height, width, shape, y, x]) => {
        const box = { left: 10, top: 20, width: 3 * width, height: 3 * height };
        const canvas = { height, width, getBoundingClientRect: () => box };
        return pixelAt({ clientX: 10 + 3 * (x + 0.5), clientY: 20 + 3 * (y + 0.5) }, canvas, shape);
    }"""
    for place in places:
        ((y, x),) = np.argwhere(sheet == np.ravel_multi_index(place, shape)).tolist()
        assert page.evaluate(ask, [*sheet.shape, shape, y, x]) == sheet[y, x]
    ((y, x),) = np.argwhere(np.isnan(sheet))[:1].tolist()
    assert page.evaluate(ask, [*sheet.shape, shape, y, x]) is None


def test_a_cube_shows_maps_and_a_band_as_a_picture(chromium, address, tmp_path):
    cube = write_cube(tmp_path / "made.h5", np.abs(SAMPLE.X).reshape(5, 8, 12)).read_bytes()
    page, _ = open_page(chromium, address, tmp_path, name="cube.h5", content=cube)
    assert page.locator("#contribution-maps canvas").count() == 3 and not page.is_visible("#contributions")
    canvas = page.locator("#feature-pictures canvas").first
    box = canvas.bounding_box()
    canvas.click(position={"x": 6.5 / 8 * box["width"], "y": 2.5 / 5 * box["height"]})
    page.locator("#sample-title", has_text="Sample y 2, x 6").wait_for()
    assert re.match(r"Wavelength 40[01][\d.]* nm$", page.inner_text("#feature-title"))
    assert "over wavelength in nm" in page.inner_text("#sample-line")
    assert browser.errors(page) == []


def test_data_without_outliers_says_so(chromium, address, tmp_path):
    rng = np.random.default_rng(0)
    clean = (rng.random((40, 3)) @ rng.random((3, 12)) + 0.1) * (1 + 0.02 * rng.standard_normal((40, 12)))
    page, _ = open_page(chromium, address, tmp_path, content=csv_bytes(clean))
    page.keyboard.press("n")
    page.locator("#message", has_text="No entry is an outlier").wait_for()
    assert "No entry is an outlier" in page.inner_text("#outliers")


def test_a_file_is_dropped_and_two_windows_agree(chromium, address):
    first = chromium.new_page()
    first.set_default_timeout(1000 * browser.PATIENCE)
    first.goto(address)
    first.wait_for_selector("#start:not([hidden])")
    given = first.evaluate_handle(
        "text => { const d = new DataTransfer(); d.items.add(new File([text], 'air.csv')); return d; }",
        csv_bytes().decode(),
    )
    first.dispatch_event("#start", "drop", {"dataTransfer": given})
    first.wait_for_selector("#fit:not([hidden])")
    first.fill("#rank", "99")
    first.press("#rank", "Enter")
    first.locator("#message", has_text="from 1 to 12; got 99").wait_for()
    first.fill("#rank", "3")
    first.press("#rank", "Enter")
    first.wait_for_selector("#outliers tbody tr")
    second = chromium.new_page()
    second.set_default_timeout(1000 * browser.PATIENCE)
    second.goto(address)
    second.wait_for_selector("#outliers tbody tr")
    first.keyboard.press("r")
    first.locator("#entry-facts", has_text="rejected").wait_for()
    second.keyboard.press("a")  # rests on an earlier state: it is refused, and the present one is shown
    second.locator("#message", has_text="Another window").wait_for()
    second.locator("#entry-facts", has_text="rejected").wait_for()
    first.close()
    second.close()


def press_until(page, key, selector, most=60):
    """Press a key until an element has the focus."""
    for _ in range(most):
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press(key)
    raise AssertionError(f"{selector} cannot be reached with {key}")


def test_keys_alone_are_enough_to_fit_judge_and_export(chromium, address, tmp_path):
    page, _ = open_page(chromium, address, tmp_path)
    press_until(page, "Tab", "#outliers tbody tr:nth-child(3)")
    page.keyboard.press("Enter")
    name = page.inner_text("#outliers tbody tr:nth-child(3)").split()[0]
    page.locator("#entry-facts", has_text=name).wait_for()
    page.keyboard.press("r")
    page.locator("#entry-facts", has_text="rejected").wait_for()
    press_until(page, "Shift+Tab", "#components button", most=300)
    page.keyboard.press("Enter")
    page.locator("#profile", has_text="of the component").wait_for()
    press_until(page, "Shift+Tab", "#export", most=60)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    press_until(page, "Tab", "#save")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert download.value.suggested_filename == page.input_value("#export") == "contributions.svg"
    assert browser.errors(page) == []


def test_a_wrong_token_is_told_in_words(chromium, address):
    page = chromium.new_page()
    page.goto(address.replace(TOKEN, "wrong"))
    page.wait_for_selector("#message:not([hidden])")
    assert "token is wrong" in page.inner_text("#message")


def show_from_disk(chromium, path):
    """Open a page from a disk; return it and the list to which its requests are added."""
    page, requests = chromium.new_page(), []
    page.set_default_timeout(1000 * browser.PATIENCE)
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.resolve().as_uri())
    return page, requests


def assert_alone(page, requests):
    """Check that a page from a disk has asked for nothing but what lies beside it."""
    assert len(requests) > 4 and all(url.startswith(("file:", "data:")) for url in requests)
    assert browser.errors(page) == []


def test_a_stored_page_needs_no_server(chromium, fitted, tmp_path):
    path = write_page(fitted, tmp_path / "page")
    page, requests = show_from_disk(chromium, path)
    page.wait_for_selector("#outliers tbody tr")
    page.click("#outliers tbody tr:nth-child(2)")
    page.locator("#entry-facts", has_text="outlier").wait_for()
    assert not page.is_visible("#verdicts") and not page.is_visible("#fit-form")
    assert_alone(page, requests)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["faces", "air"])
def test_an_exploration_of_the_documentation_answers_a_click(chromium, tmp_path, monkeypatch, name):
    monkeypatch.syspath_prepend(DOCS)
    explorations = importlib.import_module("explorations")
    path = write_page(explorations.EXPLORATIONS[name](), tmp_path / name)
    assert sum(file.stat().st_size for file in path.parent.iterdir()) < 4e6
    page, requests = show_from_disk(chromium, path)
    row = page.locator("#outliers tbody tr:nth-child(5)")
    row.click()
    page.locator("#entry-facts", has_text="the model says").wait_for()
    sample, feature, measured = row.locator("td").all_inner_texts()[:3]
    told = page.inner_text("#entry-facts")
    assert name != "faces" or re.search(r"\by \d+, x \d+", told)
    assert all(text in told for text in (sample, feature, measured, "outlier"))
    assert page.locator("#pictures canvas").count() == (3 if name == "faces" else 0)
    assert_alone(page, requests)
