// The drawing pad: an image of the model's size, painted with a soft brush.

const GHOST_OPACITY = 0.3;

class Sketch {
  constructor(canvas, painter, changed) {
    Object.assign(this, { canvas, painter, changed, erasing: false, last: null, ghost: null });
    this.pixels = new Float32Array(painter.height * painter.width * painter.channels);
    this.cursor = [Math.floor(painter.width / 2), Math.floor(painter.height / 2)];
    canvas.classList.add("on");
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button === 1 || this.pointer != null) return;
      this.pointer = event.pointerId;
      event.preventDefault();
      canvas.focus({ preventScroll: true });
      canvas.setPointerCapture(event.pointerId);
      this.last = this.at(event);
      this.line(this.last, event.button === 2);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (event.pointerId === this.pointer) this.line(this.at(event), event.buttons === 2);
    });
    for (const end of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(end, (event) => {
        if (event.pointerId !== this.pointer) return;
        this.pointer = this.last = null;
        this.changed(true);
      });
    }
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.paint());
    canvas.addEventListener("blur", () => this.paint());
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const { width, height } = this.painter;
    return [((event.clientX - box.left) / box.width) * width - 0.5, ((event.clientY - box.top) / box.height) * height - 0.5];
  }

  /** Arrows move the cursor, space paints a dot, shift and arrows draw. */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const direction = KEYS[event.key];
    if (direction) {
      const { width, height } = this.painter;
      this.cursor = [(this.cursor[0] + direction[0] + width) % width, (this.cursor[1] - direction[1] + height) % height];
      if (event.shiftKey) this.line(this.cursor, false);
    } else if (event.key === " ") {
      this.last = [...this.cursor];
      this.line(this.cursor, false);
    } else return;
    event.preventDefault();
    this.last = null;
    this.paint();
    if (event.key === " " || event.shiftKey) this.changed(true);
  }

  line(end, erase) {
    const start = this.last ?? end;
    const n = Math.max(1, Math.ceil(2 * Math.hypot(end[0] - start[0], end[1] - start[1])));
    for (let i = 0; i <= n; i++) {
      this.dot(start[0] + ((end[0] - start[0]) * i) / n, start[1] + ((end[1] - start[1]) * i) / n, erase || this.erasing);
    }
    this.last = end;
    this.paint();
    this.changed(false);
  }

  dot(x, y, erase) {
    const { width, height, channels, session, peak } = this.painter;
    const radius = Math.max(0.8, width / 24);
    for (let j = Math.max(0, Math.floor(y - 3 * radius)); j <= Math.min(height - 1, y + 3 * radius); j++) {
      for (let i = Math.max(0, Math.floor(x - 3 * radius)); i <= Math.min(width - 1, x + 3 * radius); i++) {
        const share = Math.min(1, Math.max(0, 1.5 - Math.hypot(i - x, j - y) / radius));
        for (let c = 0; c < channels; c++) {
          const p = (j * width + i) * session.pixelStride + c * session.channelStride;
          const left = this.pixels[p] * (1 - share);
          this.pixels[p] = erase ? (Math.abs(left) < 0.05 * peak ? 0 : left) : Math.max(this.pixels[p], share * peak);
        }
      }
    }
  }

  show(pixels) {
    this.pixels = Float32Array.from(pixels);
    this.paint();
  }

  get blank() {
    return this.pixels.every((value) => Math.abs(value) < 1e-6);
  }

  /** Show a faint image in an empty pad, as a guide for drawing. */
  showGhost(ghost) {
    this.ghost = ghost;
    if (this.blank) this.paint();
  }

  paint() {
    const faint = this.ghost && this.blank;
    this.painter.image(this.canvas, faint ? this.ghost.map((value) => GHOST_OPACITY * value) : this.pixels);
    if (document.activeElement !== this.canvas || !this.canvas.matches(":focus-visible")) return;
    const context = this.canvas.getContext("2d");
    context.fillStyle = colourOf("accent");
    context.fillRect(...this.cursor, 1, 1);
  }
}
