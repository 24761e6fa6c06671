// An encoder for animated GIFs: browsers have none, and the page loads nothing from other servers.

const GREY_LEVELS = 64;
const COLOUR_LEVELS = 6; // of each channel

/** LZW compression of GIF: codes grow by a bit whenever the table needs it. */
function compress(indices, bits) {
  const bytes = [];
  const clear = 1 << bits;
  let [size, next, buffer, nBits] = [bits + 1, clear + 2, 0, 0];
  const table = new Map();
  const write = (code) => {
    buffer |= code << nBits;
    for (nBits += size; nBits >= 8; nBits -= 8, buffer >>>= 8) bytes.push(buffer & 255);
  };
  write(clear);
  let prefix = indices[0];
  for (let i = 1; i < indices.length; i++) {
    const key = prefix * 256 + indices[i];
    if (table.has(key)) {
      prefix = table.get(key);
      continue;
    }
    write(prefix);
    if (next === 4096) {
      write(clear);
      table.clear();
      [size, next] = [bits + 1, clear + 2];
    } else {
      table.set(key, next);
      if (next === 1 << size) size++;
      next++;
    }
    prefix = indices[i];
  }
  write(prefix);
  write(clear + 1);
  if (nBits > 0) bytes.push(buffer & 255);
  return bytes;
}

/** Encode frames of levels (pixel, 3) as an endless loop, every pixel `scale` times as large. */
function encodeGif(frames, { width, height, coloured, scale, seconds }) {
  const [w, h] = [width * scale, height * scale];
  const bits = coloured ? 8 : 6;
  const short = (value) => [value & 255, value >> 8];
  const text = (letters) => [...letters].map((letter) => letter.charCodeAt(0));
  const palette = [];
  for (let i = 0; i < 1 << bits; i++) {
    const level = (value, n) => Math.round((255 * value) / (n - 1));
    if (!coloured) palette.push(...Array(3).fill(level(i, GREY_LEVELS)));
    else if (i >= COLOUR_LEVELS ** 3) palette.push(0, 0, 0);
    else palette.push(...[Math.floor(i / COLOUR_LEVELS ** 2), Math.floor(i / COLOUR_LEVELS) % COLOUR_LEVELS, i % COLOUR_LEVELS].map((v) => level(v, COLOUR_LEVELS)));
  }
  const index = (levels, p) => {
    if (!coloured) return Math.round(levels[3 * p] * (GREY_LEVELS - 1));
    return [0, 1, 2].reduce((sum, c) => sum * COLOUR_LEVELS + Math.round(levels[3 * p + c] * (COLOUR_LEVELS - 1)), 0);
  };
  const parts = [text("GIF89a"), short(w), short(h), [0xf0 | (bits - 1), 0, 0], palette];
  parts.push([0x21, 0xff, 11], text("NETSCAPE2.0"), [3, 1, 0, 0, 0]);
  for (const levels of frames) {
    const indices = new Uint8Array(w * h);
    for (let y = 0; y < h; y++) {
      for (let x = 0; x < w; x++) indices[y * w + x] = index(levels, Math.floor(y / scale) * width + Math.floor(x / scale));
    }
    parts.push([0x21, 0xf9, 4, 0], short(Math.max(2, Math.round(100 * seconds))), [0, 0]);
    parts.push([0x2c, 0, 0, 0, 0], short(w), short(h), [0], [bits]);
    const bytes = compress(indices, bits);
    for (let start = 0; start < bytes.length; start += 255) {
      const block = bytes.slice(start, start + 255);
      parts.push([block.length], block);
    }
    parts.push([0]);
  }
  parts.push([0x3b]);
  return new Blob(parts.map((part) => Uint8Array.from(part)), { type: "image/gif" });
}
