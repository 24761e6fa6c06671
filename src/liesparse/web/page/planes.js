// The planes: pairs of columns of W, each with a dial that shows the phase.

const N_PLANES = 24; // shown before “Show all”

class Planes {
  constructor(list, model, painter) {
    Object.assign(this, { list, model, painter, strongest: false, all: false, energy: null, shown: [] });
    this.cards = new Map();
    DARK_SCHEME.addEventListener("change", () => {
      this.cards.clear();
      this.arrange();
    });
  }

  card(l) {
    if (this.cards.has(l)) return this.cards.get(l);
    const column = (j) => Float32Array.from({ length: this.model.nPixels }, (_, p) => this.model.basis[p * this.model.nColumns + j]);
    const columns = [column(2 * l), column(2 * l + 1)];
    const peak = Math.max(...columns.map((values) => values.reduce((best, value) => Math.max(best, Math.abs(value)), 0)));
    const pictures = columns.map((values) => {
      const canvas = createElement("canvas", { className: "picture" });
      this.painter.signed(canvas, values, peak);
      return canvas;
    });
    const dial = createElement("canvas", { className: "phase-dial" });
    const [phase, energy] = [createElement("span"), createElement("span")];
    const omega = `ω = (${this.model.frequencies[l].map((value) => String(value).replace("-", "−")).join(", ")})`;
    const element = createElement("div", { className: "plane" }, createElement("div", {}, ...pictures, dial), createElement("p", {}, createElement("span", { textContent: omega }), phase, energy));
    this.cards.set(l, { element, dial, phase, energy });
    return this.cards.get(l);
  }

  arrange() {
    const order = this.model.frequencies.map((_, l) => l);
    if (this.strongest && this.energy) order.sort((a, b) => this.energy[b] - this.energy[a]);
    this.shown = this.all ? order : order.slice(0, N_PLANES);
    this.list.replaceChildren(...this.shown.map((l) => this.card(l).element));
  }

  /** Show the shape's coordinates in each rotated plane: length and angle of a line. */
  paint(planes, turned, pose, settled) {
    this.energy = this.model.frequencies.map((_, l) => planes[2 * l] ** 2 + planes[2 * l + 1] ** 2);
    const total = this.energy.reduce((sum, value) => sum + value, 0) || 1;
    const longest = Math.sqrt(this.energy.reduce((best, value) => Math.max(best, value), 0)) || 1;
    const sum = this.energy.join();
    if (this.shown.length === 0 || (this.strongest && settled && this.sorted !== sum)) this.arrange();
    if (settled) this.sorted = sum;
    const [circleColour, lineColour] = [colourOf("tick"), colourOf("accent")];
    for (const l of this.shown) {
      const { dial, phase, energy } = this.card(l);
      const { context, width } = prepareCanvas(dial);
      const [middle, radius] = [width / 2, Math.max(0, width / 2 - 2)];
      context.strokeStyle = circleColour;
      context.lineWidth = 1;
      context.beginPath();
      context.arc(middle, middle, radius, 0, TURN);
      context.stroke();
      context.strokeStyle = lineColour;
      context.lineWidth = 2.5;
      context.lineCap = "round";
      context.beginPath();
      context.moveTo(middle, middle);
      context.lineTo(middle + (radius * turned[2 * l]) / longest, middle - (radius * turned[2 * l + 1]) / longest);
      context.stroke();
      setText(phase, `${Math.round((wrap(this.model.phase(l, pose)) * 360) / TURN)}°`.replace("-", "−"));
      setText(energy, `${((100 * this.energy[l]) / total).toFixed(1)} %`);
    }
  }
}
