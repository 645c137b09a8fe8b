"""Check, decode, encode and resize pictures.

JPEG goes through libjpeg-turbo (simplejpeg) straight from the caller's buffer. The other formats go
through Pillow's reader of exactly the format that the content shows. Nothing here changes a global
setting of any library, and everything may run in many threads at once.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import BmpImagePlugin, GifImagePlugin, Image, ImageCms, WebPImagePlugin

from sharedds.codecs import jpeg, png, tiff
from sharedds.codecs.animated import first_gif_frame
from sharedds.codecs.encoding import encode_image, resize
from sharedds.codecs.formats import probe
from sharedds.codecs.header import BytesLike, ImageHeader, as_bytes_like, limit_pixels, reading
from sharedds.codecs.jpeg import encode_jpeg
from sharedds.codecs.pixels import (
    Background,
    Samples,
    change_depth,
    finish,
    orient,
    require_options,
)
from sharedds.codecs.scratch import Scratch
from sharedds.errors import DecodeError

__all__ = [
    "DEFAULT_MAX_PIXELS",
    "check",
    "decode",
    "encode_image",
    "encode_jpeg",
    "resize",
]

DEFAULT_MAX_PIXELS = 200_000_000
WHITE: Background = (255, 255, 255)

_TO_RGB = frozenset({"CMYK", "YCbCr", "RGBX", "HSV"})
_TO_RGBA = {"RGBa": "RGBA", "PA": "RGBA", "La": "LA"}


def check(data: BytesLike, *, max_pixels: int | None = DEFAULT_MAX_PIXELS) -> ImageHeader:
    """Prove that a picture decodes whole, and return what its headers say.

    All compressed data is decoded: JPEG at 1/8 scale, which still reads every code in the file.

    Args:
        data: The whole file.
        max_pixels: Largest width times height that is accepted; None accepts any.

    Raises:
        DecodeError: The file is damaged, truncated or not a supported picture.
        ImageTooLargeError: The picture has more than ``max_pixels`` pixels.
    """
    data = as_bytes_like(data)
    header = probe(data, max_pixels=max_pixels)
    if header.format == "jpeg":
        jpeg.check_pixels(data, header)
    elif header.format == "png":
        png.check_pixels(data, max_pixels)
    else:
        _read_samples(data, header, "RGB", max_pixels)
    return header


def decode(
    data: BytesLike,
    *,
    mode: str = "RGB",
    depth: str = "keep",
    background: Background = WHITE,
    orientation: int | None = None,
    max_pixels: int | None = DEFAULT_MAX_PIXELS,
    header: ImageHeader | None = None,
    at_least: tuple[int, int] | None = None,
    factor: int = 1,
    rows: int | None = None,
    scratch: Scratch | None = None,
) -> NDArray[Any]:
    """Decode a picture to an array.

    Args:
        data: The whole file; JPEG is read in place from any buffer.
        mode: ``"RGB"``: grey is replicated, alpha is laid over ``background``. ``"L"``: grey; the
            stored luma of a JPEG. ``"RGBA"``. ``"keep"``: the stored channels, a palette as RGB or
            RGBA, 1-bit as 0 and 255, CMYK and other colour spaces as RGB. ``"index"``: palette
            indices or grey values exactly as stored, for label masks.
        depth: ``"keep"``: uint8, uint16, int32 or float32 as stored. ``"8"``: 0..65535 scaled
            linearly to 0..255. ``"16"``: 0..255 times 257.
        background: Red, green and blue (0..255) under transparent pixels.
        orientation: EXIF orientation to undo; None takes it from the file, 1 leaves as stored.
        max_pixels: Largest width times height that is accepted; None accepts any.
        header: What :func:`probe` or :func:`check` said of these bytes, to save looking again.
        at_least: (height, width) before the orientation is undone. A picture that is going to be
            shrunk to this size or a larger one may come smaller than stored, but not below it.
        factor: 2, 4 or 8: a JPEG shrinks by this while it is decoded, its sides rounded up. All
            else, and a few rare kinds of JPEG, come in full size.
        rows: Of a JPEG the first so many rows, as stored, are enough; those below may be missing.
            Only for files that are known to be sound: damage may go unnoticed.
        scratch: Where the pixels of a JPEG go that is not turned: the array returned is good until
            it is lent again.

    Returns:
        (H, W, C) array, C-contiguous and writable; the first frame of an animation.

    Raises:
        DecodeError: The file is damaged, truncated, not a supported picture, or has no such form.
        ImageTooLargeError: The picture has more than ``max_pixels`` pixels.
        OptionError: An option has a value that does not exist.
    """
    require_options(mode, depth, background, orientation)
    data = as_bytes_like(data)
    if header is None:
        header = probe(data, max_pixels=max_pixels)
    else:
        limit_pixels(header.width, header.height, max_pixels)
    if header.format == "jpeg":
        colorspace = _colorspace(header, mode)
        array = jpeg.decode_pixels(
            data, header, colorspace, at_least, factor=factor, rows=rows, scratch=scratch
        )
        if depth != "keep":
            array = change_depth(array, depth)
    else:
        samples = _read_samples(data, header, mode, max_pixels)
        array = finish(samples, mode=mode, depth=depth, background=background)
    array = orient(array, header.orientation if orientation is None else orientation)
    return array if array.flags.writeable else array.copy()


def _colorspace(header: ImageHeader, mode: str) -> str:
    if mode == "index" and header.channels != 1:
        raise DecodeError("mode='index' needs a palette or grey picture; this JPEG stores colours")
    if mode == "L" or (header.channels == 1 and mode in ("keep", "index")):
        return "GRAY"
    return "RGBA" if mode == "RGBA" else "RGB"


# --- the other formats ---------------------------------------------------------------------------


def _read_samples(
    data: BytesLike, header: ImageHeader, mode: str, max_pixels: int | None
) -> Samples:
    if header.format == "png":
        return _from_png(png.read_pixels(data, max_pixels), header)
    if header.format == "tiff":
        return _from_tiff(tiff.read_picture(data, max_pixels), header, mode)
    if header.format not in ("gif", "webp", "bmp"):
        raise DecodeError(f"a header of format {header.format!r} does not belong to a picture")
    with reading({"gif": "GIF", "webp": "WebP", "bmp": "BMP"}[header.format]):
        if header.format == "gif":
            image: Image.Image = GifImagePlugin.GifImageFile(io.BytesIO(first_gif_frame(data)))
        elif header.format == "webp":
            image = WebPImagePlugin.WebPImageFile(io.BytesIO(data))
        else:
            image = BmpImagePlugin.BmpImageFile(io.BytesIO(data))
        with image:
            if image.size != (header.width, header.height):
                raise DecodeError(
                    f"the picture is {image.size[0]} x {image.size[1]} pixels, its header says "
                    f"{header.width} x {header.height}"
                )
            image.load()
            if header.format == "gif" and image.mode == "L":
                # Pillow leaves a grey palette out; here a GIF is a palette picture all the same.
                return _from_grey_palette(image)
            return _from_pillow(image)


def _from_png(pixels: png.PngPixels, header: ImageHeader) -> Samples:
    samples = pixels.samples
    if pixels.palette is not None:
        return Samples(indices=samples, palette=pixels.palette, palette_alpha=pixels.has_alpha)
    alpha: NDArray[Any] | None = None
    full = np.iinfo(samples.dtype).max
    if pixels.key is not None:
        same = (samples == np.array(pixels.key)).all(axis=2, keepdims=True)
        alpha = np.where(same, 0, full).astype(samples.dtype)
    channels = samples.shape[2]
    indices = samples if channels == 1 else None
    if header.bits < 8:
        samples = samples * np.uint8(255 // (2**header.bits - 1))
    if channels in (2, 4):
        samples, alpha = samples[..., :-1], samples[..., -1:]
    return Samples(colour=samples, alpha=alpha, indices=indices)


def _from_tiff(picture: tiff.TiffPicture, header: ImageHeader, mode: str) -> Samples:
    if picture.dropped and mode == "keep":
        raise DecodeError(
            f"TIFF holds {picture.dropped} more channels than can be kept ({header.mode}); "
            "mode='RGB' reads the first three as colours"
        )
    if picture.samples is not None:
        stored = picture.samples
        if stored.shape[2] == 4:
            return Samples(colour=stored[..., :3], alpha=stored[..., 3:])
        return Samples(colour=stored, indices=stored if stored.shape[2] == 1 else None)
    if picture.image is None:
        raise DecodeError("TIFF holds no picture")
    with reading("TIFF"), picture.image as image:
        samples = _from_pillow(image)
    grey, stored_grey = samples.colour, samples.indices
    if samples.palette is not None or grey is None or stored_grey is None:
        return samples
    if grey.dtype == np.uint16 and picture.inverted:
        # Pillow counts from white to black up to 8 bits only.
        return Samples(colour=65535 - grey, indices=grey)
    if grey.dtype == np.uint8:
        if header.bits < 8:
            stored_grey = grey // (255 // (2**header.bits - 1))
        if picture.inverted:
            stored_grey = np.uint8(2**header.bits - 1) - stored_grey
    return Samples(colour=grey, indices=stored_grey)


def _from_grey_palette(image: Image.Image) -> Samples:
    table = np.empty((256, 4), np.uint8)
    table[:, :3] = np.arange(256)[:, None]
    table[:, 3] = 255
    key = image.info.get("transparency")
    if isinstance(key, int):
        table[key, 3] = 0
    return Samples(
        indices=np.asarray(image)[:, :, None],
        palette=table,
        palette_alpha=isinstance(key, int),
    )


def _from_pillow(image: Image.Image) -> Samples:
    """Take the samples out of a loaded picture, whatever its mode."""
    if image.mode == "P":
        table = np.zeros((256, 4), np.uint8)
        table[:, 3] = 255
        colours = image.getpalette("RGB") or []
        count = min(len(colours) // 3, 256)
        table[:count, :3] = np.array(colours[: 3 * count], np.uint8).reshape(count, 3)
        key = image.info.get("transparency")
        if isinstance(key, int):
            table[key, 3] = 0
        elif isinstance(key, bytes):
            table[: len(key), 3] = np.frombuffer(key[:256], np.uint8)
        return Samples(
            indices=np.asarray(image)[:, :, None], palette=table, palette_alpha=key is not None
        )
    if image.mode in _TO_RGB:
        image = image.convert("RGB")
    elif image.mode in _TO_RGBA:
        image = image.convert(_TO_RGBA[image.mode])
    elif image.mode == "LAB":
        image = _from_lab(image)
    array = np.asarray(image)
    if array.ndim == 3:
        if array.shape[2] in (2, 4):
            return Samples(colour=array[..., :-1], alpha=array[..., -1:])
        return Samples(colour=array)
    array = array[:, :, None]
    if array.dtype == np.bool_:
        bits = (array.view(np.uint8) != 0).view(np.uint8)  # Pillow's True is a byte of 255
        return Samples(colour=bits * np.uint8(255), indices=bits)
    if image.mode.startswith("I;16"):
        array = array.astype(np.uint16)  # in the byte order of this machine
    return Samples(colour=array, indices=array if array.dtype.kind in "iu" else None)


def _from_lab(image: Image.Image) -> Image.Image:
    lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    converted = ImageCms.applyTransform(
        image, ImageCms.buildTransform(lab, srgb, "LAB", "RGB"), inPlace=False
    )
    if converted is None:
        raise DecodeError("a picture in LAB colours could not be converted")
    return converted
