"""Whatever bytes come, there is a good image or a ValueError, quickly and in little memory."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from liesparse.web.session import FORMATS, MAX_PIXELS, read_upload


def encode(picture, kind="PNG", **options):
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def bar(size=(28, 28), *, mode="L", ink=255, ground=0):
    """A bar near the top."""
    width, height = size
    picture = Image.new(mode, size, ground)
    picture.paste(ink, (width // 4, height // 8, 3 * width // 4, height // 4))
    return picture


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_of_claimed_size(width, height, content=b"", extra=b""):
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", head), extra, chunk(b"IDAT", zlib.compress(content)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def check_good(pixels):
    assert pixels.shape == (784,)
    assert bool(pixels.isfinite().all())
    assert float(pixels.norm()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_that_is_told_is_read(demo, kind):
    pixels, note = read_upload(demo, encode(bar(), kind))
    check_good(pixels)
    expected = torch.from_numpy(np.asarray(bar(), dtype=np.float32)).flatten()
    assert torch.allclose(pixels, expected / expected.norm(), atol=0.02)
    assert note == ""


@pytest.mark.parametrize("kind", ["TIFF", "PPM", "ICO", "PDF", "EPS"])
def test_other_formats_are_refused(demo, kind):
    with pytest.raises(ValueError, match="PNG, JPEG, GIF, BMP, WEBP"):
        read_upload(demo, encode(bar(mode="RGB", ink="white", ground="black"), kind))


@pytest.mark.parametrize("content", [b"", b"\x00", b"hello", b"GIF89a", b"<svg xmlns='http://www.w3.org/2000/svg'/>"])
def test_what_is_no_picture_is_refused(demo, content):
    with pytest.raises(ValueError, match="expected a picture"):
        read_upload(demo, content)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_truncated_picture_is_refused(demo, kind):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 90), dtype=np.uint8))
    content = encode(noise, kind)
    with pytest.raises(ValueError, match="expected a"):
        read_upload(demo, content[: len(content) // 2])


@pytest.mark.parametrize("size", [(4001, 4000), (100_000, 100_000), (2**31 - 1, 1)])
def test_a_picture_that_claims_too_many_pixels_is_refused_unopened(demo, size):
    with pytest.raises(ValueError, match=f"at most {MAX_PIXELS:,} pixels"):
        read_upload(demo, png_of_claimed_size(*size))


def test_text_that_unpacks_to_much_is_refused(demo):
    bomb = chunk(b"zTXt", b"key\x00\x00" + zlib.compress(b"x" * 50_000_000))
    content = png_of_claimed_size(28, 28, (b"\x00" + b"\x01" * 28) * 28, bomb)
    assert len(content) < 100_000
    with pytest.raises(ValueError, match="expected a"):
        read_upload(demo, content)


def test_a_gif_whose_frame_is_larger_than_it_said_counts_as_large(demo):
    content = bytearray(encode(bar(), "GIF"))
    place = content.index(b",", 13)  # the frame's head: left, top, width, height
    content[place + 5 : place + 9] = struct.pack("<HH", 60_000, 60_000)
    with pytest.raises(ValueError, match=r"expected (at most|a)"):
        read_upload(demo, bytes(content))


def test_the_first_frame_of_an_animation_counts(demo):
    frames = [bar().rotate(90), bar().rotate(180)]
    animated, _ = read_upload(demo, encode(bar(), "GIF", save_all=True, append_images=frames, duration=100))
    still, _ = read_upload(demo, encode(bar(), "GIF"))
    assert torch.equal(animated, still)


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (2, 3), (27, 28), (900, 700)])
def test_any_size_is_brought_to_the_models(demo, size):
    noise = np.random.default_rng(0).integers(0, 255, size[::-1], dtype=np.uint8)
    content = encode(Image.fromarray(noise))
    if min(size) == 1:  # its central square is one pixel
        with pytest.raises(ValueError, match="one colour all over"):
            read_upload(demo, content)
        return
    pixels, note = read_upload(demo, content)
    check_good(pixels)
    assert f"{size[0]} × {size[1]} pixels brought to 28 × 28" in note
    assert ("cropped to the central square" in note) == (size[0] != size[1])


def test_dark_on_light_is_inverted_and_said(demo):
    light_on_dark, _ = read_upload(demo, encode(bar()))
    for content in (
        encode(bar(ink=0, ground=255)),
        encode(bar(mode="RGBA", ink=(0, 0, 0, 255), ground=(0, 0, 0, 0))),  # transparent lies on white
        encode(bar(mode="RGB", ink="black", ground="white").quantize(2)),
    ):
        pixels, note = read_upload(demo, content)
        assert note == "inverted, as the model knows light shapes on dark ground"
        assert torch.allclose(pixels, light_on_dark, atol=1e-3)


def test_a_model_of_dark_shapes_inverts_nothing(tiny):
    session = tiny((28, 28), n_irreps=3)
    pattern = torch.from_numpy(np.asarray(bar(ink=0, ground=255), dtype=np.float64)).flatten()
    session = session._replace(examples=(pattern / pattern.norm()).expand(3, -1))
    pixels, note = read_upload(session, encode(bar(ink=0, ground=255)))
    assert note == ""
    assert torch.allclose(pixels.double(), session.examples[0], atol=1e-5)


def test_sixteen_bits_keep_their_depth(demo):
    deep = np.asarray(bar(), dtype=np.uint16) * 257
    deep[20, 20] = 300
    pixels, _ = read_upload(demo, encode(Image.fromarray(deep)))
    check_good(pixels)
    assert float(pixels.reshape(28, 28)[20, 20] / pixels.max()) == pytest.approx(300 / 65535, rel=1e-3)


def test_a_camera_that_was_held_sideways_is_seen_upright(demo):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    turned, _ = read_upload(demo, encode(bar().transpose(Image.Transpose.ROTATE_90), "PNG", exif=exif))
    upright, _ = read_upload(demo, encode(bar()))
    assert torch.allclose(turned, upright)


@pytest.mark.parametrize("grey", [0, 128, 255])
def test_a_picture_of_one_colour_is_refused(demo, grey):
    with pytest.raises(ValueError, match="one colour all over"):
        read_upload(demo, encode(Image.new("L", (60, 50), grey)))


def test_a_model_of_colour_images_takes_no_pictures(tiny):
    with pytest.raises(ValueError, match="Pick a test image instead"):
        read_upload(tiny((3, 4, 4)), encode(bar()))


def test_a_model_of_rows_takes_a_picture(tiny):
    pixels, _ = read_upload(tiny((16,)), encode(bar((40, 16))))
    assert pixels.shape == (16,)


def read_or_refuse(session, content):
    refusal = ""
    try:
        check_good(read_upload(session, content)[0])
    except ValueError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert "object at 0x" not in refusal


HEADS = [b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"BM", b"RIFF\x10\x00\x00\x00WEBPVP8X"]
STILL = [encode(bar(), kind) for kind in FORMATS]
MOVING = [encode(bar(), kind, save_all=True, append_images=[bar().rotate(90)]) for kind in ("GIF", "PNG", "WEBP")]
PICTURES = [*STILL, *MOVING, encode(bar(), "JPEG", progressive=True), encode(bar(), "WEBP", lossless=True)]


@settings(max_examples=150)
@given(head=st.sampled_from(HEADS), rest=st.binary(max_size=200))
def test_random_bytes_are_refused(demo, head, rest):
    read_or_refuse(demo, head + rest)


@settings(max_examples=400)
@given(data=st.data())
def test_damaged_pictures_are_read_or_refused(demo, data):
    content = bytearray(data.draw(st.sampled_from(PICTURES)))
    places = st.integers(0, len(content) - 1) | st.integers(0, min(60, len(content) - 1))  # the head matters most
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=8)):
        content[place] = value
    cut = data.draw(st.integers(0, len(content)))
    keep, drop = data.draw(st.sampled_from([(len(content), 0), (cut, 0), (cut, 3)]))
    read_or_refuse(demo, bytes(content[:keep] + (content[keep + drop :] if drop else b"")))
