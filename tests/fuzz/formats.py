"""One damaged input of each format: a function of a random generator and a folder that returns what to do with it."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hostile import FLOATS, INTEGERS, TEXTS, damage, scalar, to_json, tree, word
from PIL import Image
from samples import Samples

Case = tuple[str, tuple[Any, ...]]  # the name of a target, and its arguments
DTYPES = ("u1", "i1", "<f4", "<f8", "<f2", ">i2", "<i8", "|b1", "<c8", "|O", "<U5", "V8", "<M8[ns]", "<f16", "S3", "x")
PARAMETERS = (
    "size=8",
    "crop=yes",
    "invert=yes",
    "colour=yes",
    "size=3x9",
    "n=2,n_test=1",
    "seed=5",
    "key=a",
    "labels=b",
)
PICTURES = ("PNG", "PNG", "PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")


def pixels(rng: Random) -> np.ndarray:
    """Draw a small array of images, perhaps with values that are no numbers."""
    good, odd = (
        ((5, 6, 6), (5, 6, 6, 3), (4, 16), (3, 7, 5, 4), (2, 1, 1)),
        ((3, 0, 4), (0, 4, 4), (5,), (2, 2, 2, 2, 2), ()),
    )
    shape = rng.choice(good if rng.random() < 0.9 else odd)
    array = np.random.default_rng(rng.randrange(2**32)).random(shape) * 255
    if rng.random() < 0.3 and array.size:
        array.flat[rng.randrange(array.size)] = rng.choice(FLOATS)
    with np.errstate(all="ignore"):
        return array.astype(rng.choice(("u1", "f4", "f8", "f2", ">i2", "i8", "?")))


def npy(rng: Random) -> bytes:
    """Write an array with a header that may lie."""
    array = pixels(rng)
    if rng.random() < 0.3:
        buffer = io.BytesIO()
        np.save(buffer, np.asfortranarray(array) if rng.random() < 0.3 else array)
        return damage(buffer.getvalue(), rng)
    shape = list(array.shape)
    if rng.random() < 0.3 and shape:
        shape[rng.randrange(len(shape))] = rng.choice((*INTEGERS, -5, True, 0.5, None, "3"))
    descr: Any = array.dtype.str if rng.random() < 0.7 else rng.choice((*DTYPES, [("a", "<f4"), ("b", "u1")]))
    header: dict[str, Any] = {
        "descr": descr,
        "fortran_order": rng.choice((False, False, False, True, 0)),
        "shape": tuple(shape),
    }
    if rng.random() < 0.1:
        header = tree(header, rng)
    text = (repr(header) + " " * rng.choice((0, 0, 0, 0, 20, 70_000))).encode(errors="replace") + b"\n"
    version = b"\1\0" if rng.random() < 0.8 else rng.choice((b"\2\0", b"\3\0", b"\xff\0"))
    length = len(text) if rng.random() < 0.9 else rng.choice(INTEGERS)
    size = struct.pack("<H" if version == b"\1\0" else "<I", length % (2**16 if version == b"\1\0" else 2**32))
    body = array.tobytes() * rng.choice((1, 1, 1, 1, 1, 1, 2, 0))
    return b"\x93NUMPY" + version + size + text + body


def zipped(members: dict[str, bytes], rng: Random) -> bytes:
    """Pack members, and let the directory lie about sizes, methods and flags."""
    buffer = io.BytesIO()
    kinds = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content, compress_type=rng.choice(kinds))
    found = bytearray(buffer.getvalue())
    start = found.find(b"PK\1\2")
    if rng.random() < 0.3 and start >= 0:
        place, width = rng.choice(((8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (42, 4)))
        number = rng.choice(INTEGERS) % 2 ** (8 * width)
        found[start + place : start + place + width] = number.to_bytes(width, "little")
    return damage(bytes(found), rng) if rng.random() < 0.2 else bytes(found)


def name_of_member(rng: Random) -> str:
    """Draw the name of a file in an archive."""
    odd = [text for text in TEXTS if text.isprintable() and "\0" not in text]
    return rng.choice(("a", "images", "label", rng.choice(odd), "../up", "/root", word(rng).replace("\0", "")))


def npz(rng: Random) -> bytes:
    """Pack arrays, some of them bombs."""
    members = {f"{name_of_member(rng)}.npy": npy(rng) for _ in range(rng.randint(1, 3))}
    if rng.random() < 0.03:
        members["bomb.npy"] = npy(rng) + bytes(2**25)
    if rng.random() < 0.02:
        members |= {f"k{number}.npy": b"\x93NUMPY" for number in range(2000)}
    return zipped(members, rng)


def idx(rng: Random) -> bytes:
    """Write MNIST's format, perhaps gzipped."""
    array = pixels(rng).astype("u1")
    sizes = [size if rng.random() < 0.7 else rng.choice(INTEGERS) % 2**32 for size in array.shape]
    kind = 8 if rng.random() < 0.7 else rng.randrange(256)
    found = bytes((0, 0, kind, len(sizes) if rng.random() < 0.9 else rng.randrange(256)))
    found += struct.pack(f">{len(sizes)}I", *sizes) + array.tobytes()
    if rng.random() < 0.4:
        found = gzip.compress(found)
    return damage(found, rng) if rng.random() < 0.5 else found


def png_chunks(content: bytes, rng: Random) -> bytes:
    """Change the chunks of a PNG, each with a right checksum."""
    chunks, place = [], 8
    while place + 12 <= len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        chunks.append((content[place + 4 : place + 8], content[place + 8 : place + 8 + length]))
        place += 12 + length
    where = rng.randrange(len(chunks))
    name, body = chunks[where]
    extra = (b"tRNS", b"PLTE", b"zTXt", b"iTXt", b"eXIf", b"iCCP", b"gAMA", b"acTL", b"fcTL", b"IDAT", b"IHDR", b"IEND")
    how = rng.random()
    if how < 0.4:
        name, body = chunks[0]
        field = rng.choice((slice(0, 4), slice(4, 8)))
        head = bytearray(body)
        head[field] = struct.pack(">I", rng.choice((0, 1, 5, 70, 7000, 2**31 - 1, 2**32 - 1)))
        head[8:10] = rng.choice(
            (bytes(head[8:10]), bytes((rng.choice((1, 2, 4, 8, 16, 3)), rng.choice((0, 2, 3, 4, 6, 9)))))
        )
        chunks[0] = name, bytes(head)
    elif how < 0.6:
        packed = zlib.compress(bytes(rng.choice((10, 10**4, 3 * 10**7))))
        chunks.insert(where, (rng.choice(extra), rng.choice((b"", rng.randbytes(20), b"x\0\0" + packed))))
    elif how < 0.8:
        chunks[where] = name, damage(body, rng)
    else:
        chunks.insert(where, chunks[rng.randrange(len(chunks))])
    found = content[:8]
    for name, body in chunks:
        found += struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    return found


def picture(rng: Random) -> bytes:
    """Write a picture of any format and mode, then damage it."""
    mode = rng.choice(("L", "RGB", "RGBA", "P", "1", "LA", "I;16", "I", "F", "CMYK"))
    size, kind, buffer = (rng.choice((6, 6, 9, 1)), rng.choice((6, 6, 1))), rng.choice(PICTURES), io.BytesIO()
    image = Image.effect_noise(size, 80).convert("L" if mode in ("I;16", "LA") else mode)
    try:
        image.convert(mode).save(buffer, format=kind)
    except (OSError, ValueError):
        kind, buffer = "PNG", io.BytesIO()
        image.convert("RGB").save(buffer, format=kind)
    content = buffer.getvalue()
    how = rng.random()
    if how < 0.25:
        return content
    return png_chunks(content, rng) if kind == "PNG" and how < 0.7 else damage(content, rng)


def parquet(rng: Random, samples: Samples) -> bytes:
    """Write a table of odd columns, then damage it perhaps."""
    n = rng.choice((0, 1, 3, 3, 3))
    columns: list[Callable[[], Any]] = [
        lambda: pa.array([[float(rng.choice(FLOATS[4:9]))] * 9 for _ in range(n)], pa.list_(pa.float32())),
        lambda: pa.array([[[1, 2], [3, 4]]] * n, pa.list_(pa.list_(pa.int64()))),
        lambda: pa.array([[1] * rng.randint(0, 3) for _ in range(n)], pa.large_list(pa.uint8())),
        lambda: pa.array([[1, None, 3]] * n, pa.list_(pa.int8())),
        lambda: pa.array([None] * n, pa.list_(pa.float64())),
        lambda: pa.array([[1.0] * 4] * n, pa.list_(pa.float32(), 4)),
        lambda: pa.array([["a"]] * n, pa.list_(pa.string())),
        lambda: pa.array([[[]]] * n, pa.list_(pa.list_(pa.null()))),
        lambda: pa.array([{"bytes": rng.choice((None, picture(rng), b"")), "path": "x"} for _ in range(n)],
                         pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        lambda: pa.array([picture(rng) for _ in range(n)], pa.binary()),
        lambda: pa.array([samples.png] * n, rng.choice((pa.binary(), pa.large_binary()))),
        lambda: pa.array([{"bytes": 3}] * n),
        lambda: pa.array([rng.choice((0, 1, None)) for _ in range(n)], pa.int64()),
        lambda: pa.array(["a"] * n).dictionary_encode(),
        lambda: pa.array([1] * n, pa.timestamp("ns")),
        lambda: pa.array([b"abcd"] * n, pa.binary(4)),
    ]  # fmt: skip
    names = [rng.choice(("image", "label", "y", "a", "b", word(rng))) for _ in range(rng.randint(0, 3))]
    table = pa.Table.from_arrays([rng.choice(columns)() for _ in names], names=names)
    buffer = io.BytesIO()
    pq.write_table(
        table, buffer, compression=rng.choice(("none", "snappy", "gzip", "zstd")), use_dictionary=rng.random() < 0.5
    )
    return damage(buffer.getvalue(), rng) if rng.random() < 0.5 else buffer.getvalue()


def spec(rng: Random) -> str:
    """Draw a DATA argument; honest requests for millions of images are left out."""
    head = rng.choice(
        ("translation", "rotation-scaling", "shear-stretch", "digits", "mnist-mini", "mnist", word(rng), "./x")
    )
    keys = (
        "n",
        "n_test",
        "seed",
        "max_shift",
        "wrap",
        "max_degrees",
        "min_scale",
        "max_scale",
        "min_stretch",
        "size",
        "key",
    )
    values = (*map(str, INTEGERS), *map(str, FLOATS), "3", "40", "yes", "no", "1_000", "28x28", word(rng), "", "-3")
    pairs = [f"{rng.choice(keys)}={rng.choice(values)}" for _ in range(rng.randint(0, 3))]
    small = [f"{key}=20" for key in ("n", "n_test") if head in ("translation", "rotation-scaling", "shear-stretch")]
    pairs += [pair for pair in small if not any(other.startswith(pair[:-2]) for other in pairs)]
    return head + rng.choice((":", ":", ":", "::", "")) + ",".join(pairs)


def toml(rng: Random, samples: Samples) -> bytes:
    """Write a recipe with other values, keys and tables."""
    lines = samples.recipe.splitlines()
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(lines))
        key = lines[place].partition("=")[0]
        value = json.dumps(scalar(rng))
        lines[place] = rng.choice(
            (f"{key} = {value}", f"{word(rng)} = 1", "[learning]", "[[x]]", f'"{word(rng)}" = {{a=1}}', "")
        )
    content = "\n".join(lines).encode(errors="surrogatepass")
    return damage(content, rng) if rng.random() < 0.3 else content


def run_json(rng: Random, samples: Samples, folder: Path) -> Case:
    """Spoil one of the JSON files of a run."""
    name = rng.choice(("run.json", "metrics.json", "history.json"))
    for path in samples.run.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    value = json.loads((samples.run / name).read_text())
    if name == "run.json" and rng.random() < 0.3:
        value["data"] = spec(rng)
    (folder / name).write_bytes(to_json(tree(value, rng), rng))
    return rng.choice(("open_run", "open_run", "explore", "evaluate")), (str(folder),)


def bombs(rng: Random) -> bytes:
    """Compress nothing into little, as a stream that is no archive."""
    return rng.choice((gzip.compress, bz2.compress, zlib.compress))(bytes(rng.choice((10, 10**6))))


def data_file(rng: Random, samples: Samples, folder: Path, kind: str) -> Case:
    """Write a file of images, alone or in a folder, and choose who reads it."""
    good = dict.fromkeys(("y.png", "z.png"), samples.png)
    content = {
        "npy": lambda: npy(rng), "npz": lambda: npz(rng), "idx": lambda: idx(rng), "png": lambda: picture(rng),
        "parquet": lambda: parquet(rng, samples),
        "zip": lambda: zipped(good | {f"{name_of_member(rng)}.png": picture(rng)}, rng),
    }[kind]() if rng.random() < 0.99 else bombs(rng)  # fmt: skip
    path = folder / f"a.{kind}"
    if kind == "png" or (kind in ("npy", "npz", "parquet") and rng.random() < 0.25):
        path.write_bytes(content)
        (folder / f"b.{kind}").write_bytes(samples.png if kind == "png" else content)
        path = folder
    else:
        path.write_bytes(content)
    parameters = ":" + ",".join(rng.sample(PARAMETERS, rng.randint(1, 2))) if rng.random() < 0.4 else ""
    if kind in ("zip", "png") and rng.random() < 0.5:
        parameters = ":size=8"  # else most are refused for their sizes alone
    return rng.choice(("load_data", "load_data", "load_data", "load_images", "preview")), (f"{path}{parameters}",)
