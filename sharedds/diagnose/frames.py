"""What a frame of a stack is busy with: reading, decoding, transforming, collating.

Python shows no frames of C functions, and most of what a dataset does happens in them: ``read()``
of a file, ``decode_jpeg``, ``tensor.sum()``. The compiler keeps the place in the source of every
instruction, so the call that runs can be read there, and the object behind its name tells the rest.
Nothing of the user's is called for that: names are looked up, never evaluated.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import linecache
import os
import re
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FrameType, ModuleType
from typing import Any

import numpy as np

__all__ = ["STAGES", "Kind", "classify", "describe"]

STAGES = ("read", "decode", "transform", "collate", "other")


@dataclass(frozen=True, slots=True)
class Kind:
    """What a frame says.

    Attributes:
        stage: One of ``STAGES``; None if it says nothing.
        is_sure: Whether it holds whatever called it; else a transform further out has precedence.
    """

    stage: str | None
    is_sure: bool = True


_NOTHING = Kind(None)

#: Names of attributes whose call is a transform, in whatever class.
_TRANSFORM_NAMES = re.compile(
    r"_?(target_|image_|joint_|img_|train_|val_)?(transforms?|augment|augmentations?|aug|preprocess)"
)
_READ_CALLS = frozenset(
    {
        "open",
        "read",
        "readinto",
        "readline",
        "readlines",
        "pread",
        "preadv",
        "read_bytes",
        "read_text",
        "fromfile",
        "memmap",
        "stat",
        "seek",
        "scandir",
        "listdir",
        "advise",
        "madvise",
        "posix_fadvise",
    }
)
_DECODE_CALLS = frozenset(
    {
        "imdecode",
        "imread",
        "decode_jpeg",
        "decode_image",
        "decode_png",
        "decompress",
        "loads",
        "frombuffer",
        "decode_jpeg_header",
        "unpackb",
    }
)
_CHANGES_OF_PICTURES = frozenset(
    {
        "resize",
        "crop",
        "rotate",
        "transpose",
        "filter",
        "thumbnail",
        "transform",
        "reduce",
        "paste",
        "point",
        "blend",
        "alpha_composite",
        "quantize",
        "effect_spread",
    }
)

# What modules do, by their dotted names; the longest that fits decides. The second value is
# whether it is sure: a picture resized by Pillow while it is decoded is decoded, and one that is
# resized by a transform is transformed.
_MODULES: dict[str, Kind] = {
    "sharedds.store": Kind("read"),
    "sharedds.handles": Kind("read"),
    "sharedds.packed": Kind("read"),
    "sharedds.datasets.sources": Kind("read"),
    "sharedds.codecs": Kind("decode"),
    "sharedds.views": Kind("transform"),
    "_io": Kind("read"),
    "io": Kind("read"),
    "posix": Kind("read"),
    "mmap": Kind("read"),
    "pathlib": Kind("read"),
    "lmdb": Kind("read"),
    "h5py": Kind("read"),
    "zarr": Kind("read"),
    "fsspec": Kind("read"),
    "s3fs": Kind("read"),
    "boto3": Kind("read"),
    "botocore": Kind("read"),
    "urllib3": Kind("read"),
    "socket": Kind("read"),
    "ssl": Kind("read"),
    "sqlite3": Kind("read"),
    "tarfile": Kind("read"),
    "zipfile": Kind("read"),
    "pyarrow": Kind("read"),
    "numpy.lib.npyio": Kind("read"),
    "numpy.lib._npyio_impl": Kind("read"),
    "numpy.lib.format": Kind("read"),
    "numpy.lib._format_impl": Kind("read"),
    "torch.serialization": Kind("read"),
    "safetensors": Kind("read"),
    "PIL.ImageFile": Kind("decode"),
    "PIL.Image": Kind("decode", is_sure=False),
    "PIL": Kind("decode", is_sure=False),
    "simplejpeg": Kind("decode"),
    "turbojpeg": Kind("decode"),
    "imageio": Kind("decode"),
    "torchvision.io": Kind("decode"),
    "torchvision.transforms": Kind("transform"),
    "torchvision.datasets.folder": _NOTHING,
    "nibabel": Kind("decode"),
    "pydicom": Kind("decode"),
    "pylibjpeg": Kind("decode"),
    "SimpleITK": Kind("decode"),
    "tifffile": Kind("decode"),
    "imagecodecs": Kind("decode"),
    "openslide": Kind("decode"),
    "pyvips": Kind("decode"),
    "skimage.io": Kind("decode"),
    "skimage": Kind("transform", is_sure=False),
    "numcodecs": Kind("decode"),
    "blosc": Kind("decode"),
    "gzip": Kind("decode"),
    "bz2": Kind("decode"),
    "lzma": Kind("decode"),
    "_bz2": Kind("decode"),
    "_lzma": Kind("decode"),
    "zlib": Kind("decode"),
    "pickle": Kind("decode"),
    "_pickle": Kind("decode"),
    "json": Kind("decode"),
    "msgspec": Kind("decode"),
    "soundfile": Kind("decode"),
    "torchaudio": Kind("decode", is_sure=False),
    "decord": Kind("decode"),
    "av": Kind("decode"),
    "cv2": Kind("transform", is_sure=False),
    "scipy.ndimage": Kind("transform", is_sure=False),
    "torch.nn.functional": Kind("transform", is_sure=False),
    "monai.transforms": Kind("transform", is_sure=False),
    "monai.data.image_reader": Kind("decode"),
    "torchio.transforms": Kind("transform", is_sure=False),
    "torchio.data.io": Kind("decode"),
    "albumentations": Kind("transform"),
    "kornia": Kind("transform"),
    "torch.utils.data._utils.collate": Kind("collate"),
    "torch.utils.data._utils.fetch": _NOTHING,
}

_calls: dict[tuple[CodeType, int, bool], Kind] = {}
_of_modules: dict[str, Kind] = {}


def classify(frame: FrameType | None, *, is_collating: bool) -> tuple[str, str]:
    """Tell what a stack is busy with.

    Args:
        frame: The innermost frame.
        is_collating: Whether a batch is being made of its samples.

    Returns:
        The stage, and the innermost place outside Python's own library (``file:line function``).
    """
    unsure: str | None = None
    at = frame
    is_innermost = True
    while at is not None:
        kind = _kind_of_frame(at, is_innermost=is_innermost)
        if kind.stage is not None:
            if kind.is_sure:
                return kind.stage, describe(frame)
            unsure = unsure or kind.stage
        is_innermost = False
        at = at.f_back
    if is_collating:
        return "collate", describe(frame)
    return unsure or "other", describe(frame)


def describe(frame: FrameType | None) -> str:
    """Return the innermost place of a stack that is not in Python's own library."""
    at = frame
    while at is not None and at.f_code.co_filename.startswith((_LIBRARY, "<frozen")):
        if "site-packages" in at.f_code.co_filename:
            break
        at = at.f_back
    at = at or frame
    if at is None:
        return "?"
    file = at.f_code.co_filename
    for root in ("site-packages" + os.sep, os.sep + "sharedds" + os.sep):
        if root in file:
            file = file[file.rindex(root) + (len(root) if "site" in root else 1) :]
            break
    else:
        file = os.path.relpath(file) if file.startswith(os.getcwd() + os.sep) else file
    return f"{file}:{at.f_lineno} {at.f_code.co_name}"


_LIBRARY = os.path.dirname(os.__file__)


def _kind_of_frame(frame: FrameType, *, is_innermost: bool) -> Kind:
    """What a frame says, by the call that it makes and by the module it is in."""
    place = (frame.f_code, frame.f_lasti, is_innermost)
    kind = _calls.get(place)
    if kind is None:
        kind = _kind_of_call(frame, is_innermost=is_innermost)
        if kind.stage is None:
            kind = _kind_of_module(str(frame.f_globals.get("__name__", "")))
            if kind.stage == "decode" and frame.f_code.co_name in _CHANGES_OF_PICTURES:
                kind = Kind("transform", is_sure=False)
        _calls[place] = kind
    return kind


def _kind_of_module(name: str) -> Kind:
    kind = _of_modules.get(name)
    if kind is None:
        parts = name.split(".")
        kind = _NOTHING
        for length in range(len(parts), 0, -1):
            found = _MODULES.get(".".join(parts[:length]))
            if found is not None:
                kind = found
                break
        if name.startswith("PIL.") and name.endswith("ImagePlugin"):
            kind = Kind("decode")
        _of_modules[name] = kind
    return kind


# --- the call that a frame makes -----------------------------------------------------------------


def _kind_of_call(frame: FrameType, *, is_innermost: bool) -> Kind:
    node = _expression(frame)
    if isinstance(node, ast.Call):
        name = _last_name(node.func)
        if _TRANSFORM_NAMES.fullmatch(name):
            # An `Image.transform` of a library is no attribute that somebody has set.
            module = str(frame.f_globals.get("__name__", ""))
            return _NOTHING if module.startswith(("PIL", "torch.")) else Kind("transform")
        if not is_innermost:
            return _NOTHING  # the frame further in has spoken for itself
        return _kind_of_callee(frame, node.func, name)
    if isinstance(node, ast.Subscript) and is_innermost:
        owner = _look_up(frame, node.value)
        if isinstance(owner, np.memmap):
            return Kind("read")
        module = type(owner).__module__
        return _kind_of_module(module) if module.startswith(("h5py", "zarr")) else _NOTHING
    return _NOTHING


def _kind_of_callee(frame: FrameType, function: ast.expr, name: str) -> Kind:
    found = _look_up(frame, function)
    owner = _look_up(frame, function.value) if isinstance(function, ast.Attribute) else None
    modules = []
    if owner is not None and not isinstance(owner, ModuleType | type):
        modules.append(type(owner).__module__)
    if found is not None:
        modules.append(getattr(found, "__module__", None) or "")
    if isinstance(owner, ModuleType):
        modules.append(owner.__name__)
    if found is builtins.open:
        return Kind("read")
    if name in _READ_CALLS and not (owner is not None and modules and "PIL" in modules[0]):
        return Kind("read")
    if name in _DECODE_CALLS:
        return Kind("decode")
    for module in modules:
        kind = _kind_of_module(module)
        if kind.stage is not None:
            if kind.stage == "decode" and name in _CHANGES_OF_PICTURES:
                return Kind("transform", is_sure=False)
            return kind
    return _NOTHING


def _expression(frame: FrameType) -> ast.expr | None:
    """Return the expression that the current instruction of a frame belongs to."""
    code, last = frame.f_code, frame.f_lasti
    place = next(islice(code.co_positions(), last // 2, None), None)
    if place is None:
        return None
    line, end_line, column, end_column = place
    if line is None or end_line is None or column is None or end_column is None:
        return None
    if end_line - line > 50:
        return None
    file, names = code.co_filename, frame.f_globals
    rows = [linecache.getline(file, number, names) for number in range(line, end_line + 1)]
    if not all(rows):
        return None
    # Columns count bytes of UTF-8.
    data = [row.encode() for row in rows]
    data[-1] = data[-1][:end_column]
    data[0] = data[0][column:]
    try:
        return ast.parse(b"(" + b"".join(data) + b")", mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return _last_name(node.value)
    return ""


def _look_up(frame: FrameType, node: ast.expr) -> Any:
    """Return the object behind a name such as ``self.file.read``, without running any code."""
    if isinstance(node, ast.Name):
        for names in (frame.f_locals, frame.f_globals, vars(builtins)):
            if node.id in names:
                return names[node.id]
        return None
    if isinstance(node, ast.Attribute):
        owner = _look_up(frame, node.value)
        if owner is None:
            return None
        with contextlib.suppress(AttributeError):
            own = object.__getattribute__(owner, "__dict__")  # not what the class makes of it
            if node.attr in own:
                return own[node.attr]
        for kind in type(owner).__mro__:
            if node.attr in vars(kind):
                found = vars(kind)[node.attr]
                return None if isinstance(found, property) else found
        return None
    return None
