// The pose controls: a square pad for two axes, else one dial per axis, drawn over the posterior.

const HEAT_SIZE = 96; // points of the heat map along each axis
const DIAL_POINTS = 120; // points around a dial
const STEP = 0.05; // radians of an arrow key
const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowDown: [0, -1], ArrowUp: [0, 1] };

/** Call `move` with places inside an element, 0 to 1 from its top left, while a pointer drags. */
function onDrag(element, move) {
  let pointer = null;
  const report = (event) => {
    const box = element.getBoundingClientRect();
    move((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
  };
  element.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || pointer !== null) return;
    pointer = event.pointerId;
    element.setPointerCapture(pointer);
    report(event);
  });
  element.addEventListener("pointermove", (event) => event.pointerId === pointer && report(event));
  for (const end of ["pointerup", "pointercancel"]) {
    element.addEventListener(end, (event) => event.pointerId === pointer && (pointer = null));
  }
}

/** Call `move` with steps of the arrow keys; shift makes them larger. */
function onArrows(element, move) {
  element.addEventListener("keydown", (event) => {
    const direction = KEYS[event.key];
    if (!direction || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const step = event.shiftKey ? 5 * STEP : STEP;
    move(direction[0] * step, direction[1] * step);
  });
}

/** Set the label and range that screen readers announce. */
function setSliderLabel(element, label) {
  const about = { label, valuemin: (-Math.PI).toFixed(2), valuemax: Math.PI.toFixed(2) };
  for (const [name, value] of Object.entries(about)) element.setAttribute(`aria-${name}`, value);
}

const formatPose = (pose) => pose.map((value, axis) => `s${axis + 1} = ${value.toFixed(2)}`).join(", ");
const WHOLE = { centre: [0, 0], half: [Math.PI, Math.PI] };

/** The part of the torus where the poses of the data are, with a margin. */
function windowOf(range) {
  const centre = range.map(([middle, low, high]) => wrap(middle + (low + high) / 2));
  return { centre, half: range.map(([, low, high]) => Math.min(Math.PI, Math.max(0.6 * (high - low), 1e-3))) };
}

/** Two axes: a square that wraps around at its edges, or a window of it. */
class Pad {
  constructor(model, current, change) {
    this.model = model;
    this.window = WHOLE;
    this.heat = createElement("canvas", { width: HEAT_SIZE, height: HEAT_SIZE });
    this.marks = createElement("canvas");
    this.element = createElement("div", { className: "pad", id: "pad", tabIndex: 0, role: "slider" }, this.heat, this.marks);
    setSliderLabel(this.element, "Pose on the torus; arrow keys move it");
    const inWindow = (axis, share) => wrap(this.window.centre[axis] + this.window.half[axis] * (2 * share - 1));
    onDrag(this.element, (x, y) => change([inWindow(0, x), inWindow(1, 1 - y)]));
    const moved = (axis, step) => wrap(current()[axis] + (step * this.window.half[axis]) / Math.PI);
    onArrows(this.element, (dx, dy) => change([moved(0, dx), moved(1, dy)]));
  }

  paint({ pose, natural, modes, examplePoses, range, zoomed }) {
    this.window = zoomed && range ? windowOf(range) : WHOLE;
    this.element.setAttribute("aria-valuetext", formatPose(pose));
    this.element.setAttribute("aria-valuenow", pose[0].toFixed(2));
    this.paintHeat(natural);
    const { context, width, height } = prepareCanvas(this.marks);
    const { centre, half } = this.window;
    const at = ([a, b]) => [width * (0.5 + wrap(a - centre[0]) / (2 * half[0])), height * (0.5 - wrap(b - centre[1]) / (2 * half[1]))];
    if (range) this.shade(context, width, height, range);
    this.cross(context, width, height);
    context.fillStyle = colourOf("soft");
    context.globalAlpha = 0.55;
    for (const example of examplePoses) this.disc(context, at(example), 1.7);
    context.globalAlpha = 1;
    context.lineWidth = 1.5;
    context.strokeStyle = colourOf("warn");
    for (const mode of modes) this.ring(context, at(mode.pose), 8);
    const [x, y] = at(pose);
    for (const [dx, dy] of [[0, 0], [width, 0], [-width, 0], [0, height], [0, -height]]) this.handle(context, [x + dx, y + dy]);
  }

  /** Dim what lies beyond the poses of the data. */
  shade(context, width, height, range) {
    const { centre, half } = this.window;
    const [[left, across], [bottom, up]] = range.map(([middle, low, high], axis) => [wrap(middle + low - centre[axis]), high - low]);
    context.beginPath();
    context.rect(0, 0, width, height);
    const boxes = [];
    for (const dx of [-TURN, 0, TURN]) {
      for (const dy of [-TURN, 0, TURN]) {
        boxes.push([width * (0.5 + (left + dx) / (2 * half[0])), height * (0.5 - (bottom + dy + up) / (2 * half[1])), (width * across) / (2 * half[0]), (height * up) / (2 * half[1])]);
      }
    }
    for (const box of boxes) context.rect(...box);
    context.globalAlpha = 0.45;
    context.fillStyle = colourOf("tick");
    context.fill("evenodd");
    context.globalAlpha = 1;
    context.strokeStyle = colourOf("accent");
    context.setLineDash([5, 4]);
    for (const box of boxes) context.strokeRect(...box);
    context.setLineDash([]);
  }

  paintHeat(natural) {
    const values = this.model.field(natural, HEAT_SIZE, this.window);
    const highest = values.reduce((best, value) => Math.max(best, value), -Infinity);
    const context = this.heat.getContext("2d");
    const data = context.createImageData(HEAT_SIZE, HEAT_SIZE);
    for (let j = 0; j < HEAT_SIZE; j++) {
      for (let i = 0; i < HEAT_SIZE; i++) {
        const [r, g, b] = heatColour(highest - values[j * HEAT_SIZE + i]);
        const row = (HEAT_SIZE - j) % HEAT_SIZE; // the second axis points up
        const place = 4 * (row * HEAT_SIZE + i);
        data.data[place] = r;
        data.data[place + 1] = g;
        data.data[place + 2] = b;
        data.data[place + 3] = 255;
      }
    }
    context.putImageData(data, 0, 0);
  }

  cross(context, width, height) {
    context.strokeStyle = colourOf("tick");
    context.lineWidth = 1;
    context.globalAlpha = 0.6;
    context.beginPath();
    for (const share of [0.25, 0.5, 0.75]) {
      context.moveTo(width * share, 0);
      context.lineTo(width * share, height);
      context.moveTo(0, height * share);
      context.lineTo(width, height * share);
    }
    context.stroke();
    context.globalAlpha = 1;
    context.font = "11px system-ui, sans-serif";
    context.strokeStyle = colourOf("card"); // an outline, readable over any colour
    context.lineWidth = 3;
    context.fillStyle = colourOf("soft");
    const { centre, half } = this.window;
    const end = (axis, sign) => (this.window === WHOLE ? `${sign < 0 ? "−" : ""}π` : formatNumber(centre[axis] + sign * half[axis]));
    const corner = this.window === WHOLE ? "−π" : `${end(0, -1)}, ${end(1, -1)}`;
    for (const [text, x, y, align] of [[corner, 4, height - 5, "left"], [`s₁ → ${end(0, 1)}`, width - 4, height - 5, "right"], [`s₂ ↑ ${end(1, 1)}`, 4, 14, "left"]]) {
      context.textAlign = align;
      context.strokeText(text, x, y);
      context.fillText(text, x, y);
    }
  }

  disc(context, [x, y], radius) {
    context.beginPath();
    context.arc(x, y, radius, 0, TURN);
    context.fill();
  }

  ring(context, [x, y], radius) {
    context.beginPath();
    context.arc(x, y, radius, 0, TURN);
    context.stroke();
  }

  handle(context, place) {
    context.fillStyle = colourOf("card");
    this.disc(context, place, 7);
    context.fillStyle = colourOf("accent");
    this.disc(context, place, 5);
  }
}

/** One axis: a dial whose ring shows the posterior along it, with the other axes fixed. */
class Dial {
  constructor(model, axis, current, change) {
    Object.assign(this, { model, axis });
    this.canvas = createElement("canvas");
    this.element = createElement("div", { className: "pad dial", tabIndex: 0, role: "slider" }, this.canvas);
    this.element.dataset.axis = axis;
    setSliderLabel(this.element, `Pose, ${model.names?.[axis] ?? `axis ${axis + 1}`}`);
    const set = (value) => change(current().map((old, place) => (place === axis ? wrap(value) : old)));
    onDrag(this.element, (x, y) => set(Math.atan2(0.5 - y, x - 0.5)));
    onArrows(this.element, (dx, dy) => set(current()[axis] + dx + dy));
  }

  paint({ pose, natural, modes, examplePoses, range }) {
    this.element.setAttribute("aria-valuenow", pose[this.axis].toFixed(2));
    const { context, width, height } = prepareCanvas(this.canvas);
    const [x, y, radius] = [width / 2, height / 2, 0.42 * Math.min(width, height)];
    const at = (angle, share) => [x + share * radius * Math.cos(angle), y - share * radius * Math.sin(angle)];
    const values = this.model.slice(natural, pose, this.axis, DIAL_POINTS);
    const highest = values.reduce((best, value) => Math.max(best, value), -Infinity);
    context.lineWidth = 0.2 * radius;
    values.forEach((value, i) => {
      const angle = TURN * (i / DIAL_POINTS - 0.5);
      context.strokeStyle = `rgb(${heatColour(highest - value).join(",")})`;
      context.beginPath();
      context.arc(x, y, radius, -angle - TURN / DIAL_POINTS, -angle + TURN / DIAL_POINTS / 2);
      context.stroke();
    });
    if (range) {
      const [middle, low, high] = range[this.axis]; // where the data is
      context.lineWidth = 3;
      context.strokeStyle = colourOf("accent");
      context.beginPath();
      context.arc(x, y, 1.14 * radius, -(middle + high), -(middle + low));
      context.stroke();
    }
    const mark = (angle, colour, size) => {
      context.fillStyle = colour;
      context.beginPath();
      context.arc(...at(angle, size > 3 ? 1 : 0.78), size, 0, TURN);
      context.fill();
    };
    for (const example of examplePoses) mark(example[this.axis], colourOf("tick"), 1.5);
    for (const mode of modes) mark(mode.pose[this.axis], colourOf("warn"), 3);
    context.strokeStyle = colourOf("soft");
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(...at(pose[this.axis], 0.88));
    context.stroke();
    mark(pose[this.axis], colourOf("accent"), 7);
    context.fillStyle = colourOf("soft");
    context.font = "13px system-ui, sans-serif";
    context.textAlign = "center";
    context.fillText(this.model.names?.[this.axis] ?? `s${"₁₂₃₄₅₆₇₈₉"[this.axis] ?? this.axis + 1}`, x, y + 0.3 * radius);
  }
}

function makePads(model, current, change) {
  if (model.nAxes === 2 && !model.outer) return [new Pad(model, current, change)];
  return Array.from({ length: model.nAxes }, (_, axis) => new Dial(model, axis, current, change));
}
