// Colours, canvases and elements.

const DARK_SCHEME = matchMedia("(prefers-color-scheme: dark)");
const HEAT = {
  light: [[247, 248, 250], [158, 196, 228], [33, 102, 172], [6, 40, 90]],
  dark: [[18, 22, 27], [22, 62, 104], [66, 146, 214], [240, 248, 255]],
};
const HEAT_RANGE = 40; // nats from the highest log density to the end of the heat map
const SIGNED = {
  light: [[33, 102, 172], [110, 165, 212], [245, 245, 245], [224, 130, 110], [178, 24, 43]],
  dark: [[140, 196, 240], [52, 104, 150], [26, 31, 36], [160, 72, 60], [255, 152, 130]],
};

/** Interpolate in a list of colours. */
function blend(ramp, share) {
  const place = Math.min(Math.max(share, 0), 1) * (ramp.length - 1);
  const low = Math.min(Math.floor(place), ramp.length - 2);
  return ramp[low].map((value, channel) => value + (place - low) * (ramp[low + 1][channel] - value));
}

// Reading colours and sizes makes the browser lay out the page again, so both are cached.
const colours = new Map();
DARK_SCHEME.addEventListener("change", () => colours.clear());

/** A colour of the style sheet. */
function colourOf(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return colours.get(name);
}

/** 256 colours from improbable to probable. */
function heatColours() {
  if (!colours.has("heat")) colours.set("heat", Array.from({ length: 256 }, (_, i) => blend(DARK_SCHEME.matches ? HEAT.dark : HEAT.light, i / 255)));
  return colours.get("heat");
}

/** The colour of a log density that lies some nats below the highest. */
const heatColour = (below) => heatColours()[Math.round(255 * Math.max(0, 1 - below / HEAT_RANGE) ** 1.5)];

const sizes = new WeakMap();
const watcher = new ResizeObserver((entries) => {
  for (const { target } of entries) sizes.set(target, target.getBoundingClientRect());
  window.dispatchEvent(new Event("resized"));
});

/** The size of an element on the screen. */
function sizeOf(element) {
  if (!sizes.has(element)) {
    sizes.set(element, element.getBoundingClientRect());
    watcher.observe(element);
  }
  return sizes.get(element);
}

/** Set a text unless it is the same already. */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Paints images of one size: black is 0 (or, for images with negative values, the most negative) and white the peak. */
class Painter {
  constructor(session, images) {
    Object.assign(this, { session, height: session.height, width: session.width, channels: session.channels });
    const extremes = (image, best) => image.reduce((found, value) => best(found, value), 0);
    const middle = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
    this.peak = middle(images.map((image) => extremes(image, Math.max))) || 1;
    const lowest = middle(images.map((image) => extremes(image, Math.min)));
    this.floor = lowest < -0.3 * this.peak ? -this.peak : 0;
  }

  /** The grey or colour of each pixel, 0 to 1, as (pixel, 3). */
  levels(image) {
    const { pixelStride, channelStride } = this.session;
    const levels = new Float32Array(3 * this.height * this.width);
    for (let p = 0; p < this.height * this.width; p++) {
      for (let c = 0; c < 3; c++) {
        const value = image[p * pixelStride + (this.channels === 3 ? c : 0) * channelStride];
        levels[3 * p + c] = Math.min(Math.max((value - this.floor) / (this.peak - this.floor), 0), 1);
      }
    }
    return levels;
  }

  image(canvas, image) {
    const levels = this.levels(image);
    this.fill(canvas, (p) => [255 * levels[3 * p], 255 * levels[3 * p + 1], 255 * levels[3 * p + 2]]);
  }

  /** Paint positive and negative values in two colours. */
  signed(canvas, image, peak) {
    const { pixelStride, channelStride } = this.session;
    this.fill(canvas, (p) => {
      let sum = 0;
      for (let c = 0; c < this.channels; c++) sum += image[p * pixelStride + c * channelStride];
      return blend(DARK_SCHEME.matches ? SIGNED.dark : SIGNED.light, 0.5 + (0.5 * sum) / (peak * this.channels));
    });
  }

  fill(canvas, colour) {
    if (canvas.width !== this.width) canvas.width = this.width;
    if (canvas.height !== this.height) canvas.height = this.height;
    const context = canvas.getContext("2d");
    const data = context.createImageData(this.width, this.height);
    for (let p = 0; p < this.height * this.width; p++) {
      const [r, g, b] = colour(p);
      data.data.set([r, g, b, 255], 4 * p);
    }
    context.putImageData(data, 0, 0);
  }
}

/** Create an element from tag, properties and children. */
function createElement(tag, properties = {}, ...children) {
  const { dataset, ...plain } = properties;
  const element = Object.assign(document.createElement(tag), plain);
  Object.assign(element.dataset, dataset ?? {});
  element.append(...children);
  return element;
}

/** Size a canvas to the pixels of the screen, clear it, and return its context in CSS units. */
function prepareCanvas(canvas) {
  const { width, height } = sizeOf(canvas);
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** Shrink a picture below the limit of the server; any other file is sent as it is, and the server explains. */
async function shrinkPicture(file) {
  try {
    const bitmap = await createImageBitmap(file);
    const share = Math.min(1, 1024 / Math.max(bitmap.width, bitmap.height));
    const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(share * side)));
    const canvas = createElement("canvas", { width, height });
    canvas.getContext("2d").drawImage(bitmap, 0, 0, width, height);
    return await new Promise((done) => canvas.toBlob(done, "image/png"));
  } catch {
    return file;
  }
}

/** Let the browser save a file. */
function downloadFile(blob, name) {
  const link = createElement("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
