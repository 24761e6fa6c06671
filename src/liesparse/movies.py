"""Walks along the torus as moving pictures: GIF, or MP4 where ffmpeg is found."""

from __future__ import annotations

import io
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from liesparse._checks import reject

Array = NDArray[Any]
FRAME_SECONDS = 0.08
LEAST_SIZE = 96  # pixels of a shown image, on its longer side


def walk_frames(walks: Array, *, gap: int = 4) -> NDArray[np.uint8]:
    """Lay out (axis, image, step, height, width[, 3]) as frames: images in rows, axes in columns.

    Grey is dark ink on white; colours are their own.
    """
    n_axes, n_images, n_steps, height, width = walks.shape[:5]
    colours = walks.shape[5:]
    peak = np.abs(walks).max(axis=tuple(range(2, walks.ndim)), keepdims=True)
    shown = np.clip(walks / np.maximum(peak, np.finfo(np.float32).tiny), 0, 1)
    ink = np.round(255 * (shown if colours else 1 - shown)).astype(np.uint8)
    zoom = max(1, -(-LEAST_SIZE // max(height, width)))
    ink = ink.repeat(zoom, axis=3).repeat(zoom, axis=4)
    tall, wide = height * zoom + gap, width * zoom + gap
    frames = np.full((n_steps, n_images * tall + gap, n_axes * wide + gap, *colours), 223, dtype=np.uint8)
    for axis in range(n_axes):
        for image in range(n_images):
            top, left = gap + image * tall, gap + axis * wide
            frames[:, top : top + tall - gap, left : left + wide - gap] = ink[axis, image]
    return frames


def movie_bytes(walks: Array, suffix: str) -> bytes:
    """Return a looped movie of walks; an open walk goes there and back, a closed one round and round."""
    closed = np.allclose(walks[:, :, 0], walks[:, :, -1], atol=1e-3 * float(np.abs(walks).max()))
    frames = walk_frames(walks)
    frames = frames[:-1] if closed else np.concatenate((frames, frames[-2:0:-1]))
    return gif_bytes(map(Image.fromarray, frames)) if suffix == ".gif" else _mp4(frames)


def gif_bytes(pictures: Iterable[Image.Image]) -> bytes:
    """Return pictures as an endless GIF."""
    buffer = io.BytesIO()
    first, *rest = pictures
    milliseconds = round(1000 * FRAME_SECONDS)
    first.save(buffer, "GIF", save_all=True, append_images=rest, duration=milliseconds, loop=0, optimize=False)
    return buffer.getvalue()


def _mp4(frames: NDArray[np.uint8]) -> bytes:
    program = shutil.which("ffmpeg")
    if program is None:
        reject("out", "ffmpeg for .mp4 files", "none installed", "Install ffmpeg, or use .gif.")
    frames = frames[:, : frames.shape[1] // 2 * 2, : frames.shape[2] // 2 * 2]  # its encoder wants even sizes
    height, width = frames.shape[1:3]
    pixels = "rgb24" if frames.ndim == 4 else "gray"
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "walk.mp4"
        size = ["-f", "rawvideo", "-pix_fmt", pixels, "-s", f"{width}x{height}", "-r", f"{1 / FRAME_SECONDS:g}"]
        command = [program, "-y", "-loglevel", "error", *size, "-i", "-", "-pix_fmt", "yuv420p", str(target)]
        done = subprocess.run(command, input=frames.tobytes(), capture_output=True, check=False)
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            reject("out", "a movie from ffmpeg", lines[-1], "Use .gif instead.")
        return target.read_bytes()
