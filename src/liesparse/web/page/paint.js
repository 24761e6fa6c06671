// From numbers to pixels.

const NIGHT = matchMedia("(prefers-color-scheme: dark)");
const HEAT = {
  light: [[247, 248, 250], [158, 196, 228], [33, 102, 172], [6, 40, 90]],
  dark: [[18, 22, 27], [22, 62, 104], [66, 146, 214], [240, 248, 255]],
};
const NATS = 40; // below the highest, where the heat map ends
const SIGNED = {
  light: [[33, 102, 172], [110, 165, 212], [245, 245, 245], [224, 130, 110], [178, 24, 43]],
  dark: [[140, 196, 240], [52, 104, 150], [26, 31, 36], [160, 72, 60], [255, 152, 130]],
};

/** A colour between the colours of a ramp. */
function blend(ramp, share) {
  const place = Math.min(Math.max(share, 0), 1) * (ramp.length - 1);
  const low = Math.min(Math.floor(place), ramp.length - 2);
  return ramp[low].map((value, channel) => value + (place - low) * (ramp[low + 1][channel] - value));
}

// Asking the browser for colours and sizes makes it lay out the page anew: ask once, not in every frame.
const inks = new Map();
NIGHT.addEventListener("change", () => inks.clear());

/** A colour of the style sheet. */
function ink(name) {
  if (!inks.has(name)) inks.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return inks.get(name);
}

/** 256 colours from unlikely to likely. */
function heatColours() {
  if (!inks.has("heat")) inks.set("heat", Array.from({ length: 256 }, (_, i) => blend(NIGHT.matches ? HEAT.dark : HEAT.light, i / 255)));
  return inks.get("heat");
}

/** The colour of a log density that lies some nats below the highest. */
const heatColour = (below) => heatColours()[Math.round(255 * Math.max(0, 1 - below / NATS) ** 1.5)];

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

/** Change a text only where it differs. */
function write(element, text) {
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
      return blend(NIGHT.matches ? SIGNED.dark : SIGNED.light, 0.5 + (0.5 * sum) / (peak * this.channels));
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

/** Make an element: tag, properties, children. */
function make(tag, properties = {}, ...children) {
  const { dataset, ...plain } = properties;
  const element = Object.assign(document.createElement(tag), plain);
  Object.assign(element.dataset, dataset ?? {});
  element.append(...children);
  return element;
}

/** Let a canvas have as many pixels as the screen shows; returns its context in the units of the page. */
function sharp(canvas) {
  const { width, height } = sizeOf(canvas);
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** Make a photo as small as a server takes it; what is no picture stays as it is, for the server to say so. */
async function shrink(file) {
  try {
    const whole = await createImageBitmap(file);
    const share = Math.min(1, 1024 / Math.max(whole.width, whole.height));
    const [width, height] = [whole.width, whole.height].map((side) => Math.max(1, Math.round(share * side)));
    const canvas = make("canvas", { width, height });
    canvas.getContext("2d").drawImage(whole, 0, 0, width, height);
    return await new Promise((done) => canvas.toBlob(done, "image/png"));
  } catch {
    return file;
  }
}

/** Hand a file to the reader. */
function save(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
