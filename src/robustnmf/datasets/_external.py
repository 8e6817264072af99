"""Loaders for data sets that do not come with the package: the caller names the file."""

from __future__ import annotations

import os

import numpy as np
from sklearn.utils import Bunch

from robustnmf.datasets._archive import Axes, count_from_zero, image_fields, read_arrays

IMAGES: Axes = ("n", "rows", "columns")

AR_DESCRIPTION = """\
AR faces, the cropped set of 100 people: for research only, not to be redistributed. A. M. Martinez
and R. Benavente, "The AR Face Database", CVC Technical Report 24, 1998; crop of A. M. Martinez and
A. C. Kak, "PCA versus LDA", IEEE TPAMI 23(2), 2001.
"""

CALTECH101_DESCRIPTION = """\
Caltech-101, features of the images from EfficientNet-Lite0 after the last ReLU6 and global average
pooling. L. Fei-Fei, R. Fergus and P. Perona, "Learning generative visual models from few training
examples", CVPR Workshop, 2004. The pictures were gathered from the web; rights in each are unknown.
"""

SAMSON_DESCRIPTION = """\
Samson hyperspectral scene with reference endmembers and abundances. F. Zhu, Y. Wang, B. Fan, S. Xiang,
G. Meng and C. Pan, "Spectral unmixing via data-guided sparsity", IEEE TIP 23(12), 2014. Terms unknown;
spread freely for research.
"""

VIDEO_HALL_DESCRIPTION = """\
Grey frames of a hall seen by a fixed camera, people walking through. X. Zhou, C. Yang and W. Yu,
"Moving object detection by detecting contiguous outliers in the low-rank representation", IEEE TPAMI
35(3), 2013. Terms unknown.
"""


def load_ar(path: str | os.PathLike[str]) -> Bunch:
    """Return the AR faces, 26 shots of each of 100 people, from a file.

    Parameters
    ----------
    path : str or path-like
        An .npz archive with the arrays ``images`` (n, rows, columns); ``labels`` (n,), people
        counted from 1; ``shot`` (n,), 1 to 26; ``session`` (n,), 1 or 2; and ``occlusion`` (n,),
        one of ``"none"``, ``"sunglasses"``, ``"scarf"``.

    Returns
    -------
    Bunch
        A dictionary whose keys are attributes too:

        data : ndarray of shape (n, rows * columns), float64
            One image per row, its pixels line by line.
        images : ndarray of shape (n, rows, columns)
            The same, upright.
        target : ndarray of shape (n,), int
            The person, counted from 0.
        shot, session, occlusion : ndarray of shape (n,)
            As in the archive. Shots 1 to 4 are neutral, smile, anger, scream; 5 to 7 light from left,
            right, both; 8 to 10 sunglasses; 11 to 13 scarf; 14 to 26 the same in session 2.
        image_shape : tuple of int
            ``(rows, columns)``.
        DESCR : str
            Where the data comes from, and its terms.

    Notes
    -----
    The AR database is restricted: it is for research only and must not be redistributed, neither the
    file nor pictures made of it. Ask its authors for access.

    In the usual crop of 100 people, shot 14 of person 77 (target 76) shows no face, and shots 21 and 22
    of person 46 (target 45) are the same picture.

    References
    ----------
    A. M. Martinez and R. Benavente, "The AR Face Database", CVC Technical Report 24, 1998.

    Examples
    --------
    >>> from robustnmf.datasets import load_ar
    >>> faces = load_ar("ar_42x30.npz")  # doctest: +SKIP
    >>> training = faces.data[(faces.session == 1) & (faces.occlusion == "none")]  # doctest: +SKIP
    """
    required: dict[str, Axes] = dict.fromkeys(("labels", "shot", "session", "occlusion"), ("n",))
    arrays = read_arrays(path, {"images": IMAGES, **required})
    return Bunch(
        **image_fields(arrays["images"]),
        target=count_from_zero(arrays["labels"]),
        shot=arrays["shot"],
        session=arrays["session"],
        occlusion=arrays["occlusion"],
        DESCR=AR_DESCRIPTION,
    )


def load_caltech101(path: str | os.PathLike[str]) -> Bunch:
    """Return non-negative features of the Caltech-101 images from a file.

    Parameters
    ----------
    path : str or path-like
        An .npz archive with the arrays ``features`` (n, n_features), integers; ``scale`` (), which
        turns them into network outputs; ``labels`` (n,), categories counted from 1; ``class_names``
        (n_classes,); and ``image_number`` (n,), the number of the image within its category.

    Returns
    -------
    Bunch
        A dictionary whose keys are attributes too:

        data : ndarray of shape (n, n_features), float64
            ``features * scale``, non-negative.
        target : ndarray of shape (n,), int
            The category, counted from 0.
        target_names : ndarray of shape (n_classes,), str
            Names of the categories: ``target_names[target]``.
        image_number : ndarray of shape (n,), int
            ``image_NNNN.jpg`` of its category.
        DESCR : str
            Where the data comes from, and its terms.

    Notes
    -----
    The features are the 1280 outputs of EfficientNet-Lite0, not the 4096 of AlexNet used in the paper.
    ``Faces`` and ``Faces_easy`` are two framings of the same pictures: leave one out when clustering.

    References
    ----------
    L. Fei-Fei, R. Fergus and P. Perona, "Learning generative visual models from few training examples",
    CVPR Workshop, 2004.

    Examples
    --------
    >>> from robustnmf.datasets import load_caltech101
    >>> objects = load_caltech101("caltech101_effnetlite0.npz")  # doctest: +SKIP
    >>> objects.data.shape  # doctest: +SKIP
    (8677, 1280)
    """
    each: Axes = ("n",)
    required = {"features": ("n", "n_features"), "scale": (), "labels": each, "class_names": ("n_classes",)}
    arrays = read_arrays(path, {**required, "image_number": each})
    return Bunch(
        data=arrays["features"] * float(arrays["scale"]),
        target=count_from_zero(arrays["labels"]),
        target_names=arrays["class_names"],
        image_number=arrays["image_number"],
        DESCR=CALTECH101_DESCRIPTION,
    )


def load_samson(path: str | os.PathLike[str]) -> Bunch:
    """Return the Samson hyperspectral scene, one pixel per row, from a file.

    Parameters
    ----------
    path : str or path-like
        An .npz archive with the arrays ``Y`` (n_bands, n_pixels); ``endmembers`` (n_bands, k);
        ``abundances`` (k, n_pixels); ``names`` (k,); and ``shape`` (2,), rows and columns of the scene,
        whose pixels run down the columns.

    Returns
    -------
    Bunch
        A dictionary whose keys are attributes too. Pixels are put in the order of all images here,
        line by line, so that a map of the scene is ``data[:, band].reshape(image_shape)``:

        data : ndarray of shape (n_pixels, n_bands), float64
            The spectrum of each pixel.
        endmembers : ndarray of shape (k, n_bands), float64
            Reference spectra of the materials, comparable with ``components_``.
        abundances : ndarray of shape (n_pixels, k), float64
            Share of each material in each pixel, comparable with the codes; rows sum to 1.
        endmember_names : ndarray of shape (k,), str
            The materials.
        image_shape : tuple of int
            ``(rows, columns)`` of the scene. It is the samples that form a picture, not the features.
        DESCR : str
            Where the data comes from, and its terms.

    Notes
    -----
    Data and endmembers are on different scales, so that ``abundances @ endmembers`` is not `data`:
    score endmembers by their spectral angle.

    References
    ----------
    F. Zhu, Y. Wang, B. Fan, S. Xiang, G. Meng and C. Pan, "Spectral unmixing via data-guided sparsity",
    IEEE Transactions on Image Processing 23(12), 2014.

    Examples
    --------
    >>> from robustnmf.datasets import load_samson
    >>> scene = load_samson("samson.npz")  # doctest: +SKIP
    >>> water = scene.abundances[:, 2].reshape(scene.image_shape)  # doctest: +SKIP
    """
    arrays = read_arrays(
        path,
        {"Y": ("n_bands", "n_pixels"), "endmembers": ("n_bands", "k"), "abundances": ("k", "n_pixels")}
        | {"names": ("k",), "shape": (2,)},
    )
    rows, columns = (int(size) for size in arrays["shape"])
    n_pixels = arrays["Y"].shape[1]
    if rows * columns != n_pixels:
        raise ValueError(
            f"array shape must hold rows and columns of a scene of n_pixels = {n_pixels}; in {path} it holds "
            f"{rows}, {columns}. Check that it is the right data set."
        )
    # Entry (i, j) of this table is the position of that pixel in the archive, where columns run first.
    line_by_line = np.arange(n_pixels).reshape((rows, columns), order="F").ravel()
    return Bunch(
        data=arrays["Y"].T[line_by_line].astype(np.float64),
        endmembers=arrays["endmembers"].T.astype(np.float64),
        abundances=arrays["abundances"].T[line_by_line].astype(np.float64),
        endmember_names=arrays["names"],
        image_shape=(rows, columns),
        DESCR=SAMSON_DESCRIPTION,
    )


def load_video_hall(path: str | os.PathLike[str]) -> Bunch:
    """Return grey frames of a hall with people walking through, from a file.

    Parameters
    ----------
    path : str or path-like
        An .npz archive with the array ``images`` (n, rows, columns).

    Returns
    -------
    Bunch
        A dictionary whose keys are attributes too:

        data : ndarray of shape (n, rows * columns), float64
            One frame per row, in order of time, its pixels line by line.
        images : ndarray of shape (n, rows, columns)
            The same, upright.
        image_shape : tuple of int
            ``(rows, columns)``.
        DESCR : str
            Where the data comes from, and its terms.

    References
    ----------
    X. Zhou, C. Yang and W. Yu, "Moving object detection by detecting contiguous outliers in the low-rank
    representation", IEEE Transactions on Pattern Analysis and Machine Intelligence 35(3), 2013.

    Examples
    --------
    >>> from robustnmf.datasets import load_video_hall
    >>> video = load_video_hall("video_hall.npz")  # doctest: +SKIP
    >>> video.images.shape  # doctest: +SKIP
    (24, 144, 176)
    """
    arrays = read_arrays(path, {"images": IMAGES})
    return Bunch(**image_fields(arrays["images"]), DESCR=VIDEO_HALL_DESCRIPTION)
