"""Images in each kind of file."""

import contextlib
import gzip
import io
import tracemalloc
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def make_pixels(n=12, height=6, width=6, seed=0):
    return np.random.default_rng(seed).integers(1, 256, (n, height, width), dtype=np.uint8)


def png(pixels, **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", **options)
    return file.getvalue()


def idx(pixels, code=8):
    header = bytes([0, 0, code, pixels.ndim]) + b"".join(n.to_bytes(4, "big") for n in pixels.shape)
    return header + pixels.tobytes()


def write(path, kind, pixels):
    """Write images in one of the kinds of files, and return the path."""
    path = path / f"images{'' if kind in ('folder', 'idx') else '.' + kind}"
    pictures = {f"{i:03}.png": png(image) for i, image in enumerate(pixels)} if kind in ("folder", "zip") else {}
    if kind == "npy":
        np.save(path, pixels)
    elif kind == "npz":
        np.savez(path, images=pixels)
    elif kind in ("idx", "gz"):
        path.write_bytes(idx(pixels) if kind == "idx" else gzip.compress(idx(pixels)))
    elif kind == "folder":
        (path / "sub").mkdir(parents=True)
        for name, content in pictures.items():
            (path / "sub" / name).write_bytes(content)
        (path / "notes.txt").write_text("no picture")
        (path / ".hidden.png").write_bytes(b"no picture")
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.mkdir("sub")
            archive.writestr("__MACOSX/000.png", b"no picture")
            for name, content in pictures.items():
                archive.writestr(f"sub/{name}", content)
    elif kind == "parquet":
        column = [{"bytes": png(image), "path": None} for image in pixels]
        pq.write_table(pa.table({"image": column, "label": list(range(len(pixels)))}), path)
    return path


@contextlib.contextmanager
def traced():
    """Measure the largest memory that Python and NumPy held; torch's own, such as the result, is not counted."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
