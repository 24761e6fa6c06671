// The planes: pairs of columns of W, each with a clock that turns as the pose moves.

const N_PLANES = 24; // shown at first

class Planes {
  constructor(list, model, painter) {
    Object.assign(this, { list, model, painter, strongest: false, all: false, energy: null, shown: [] });
    this.cards = new Map();
    NIGHT.addEventListener("change", () => {
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
      const canvas = make("canvas", { className: "picture" });
      this.painter.signed(canvas, values, peak);
      return canvas;
    });
    const clock = make("canvas", { className: "clock" });
    const [phase, energy] = [make("span"), make("span")];
    const omega = `ω = (${this.model.frequencies[l].map((value) => String(value).replace("-", "−")).join(", ")})`;
    const element = make("div", { className: "plane" }, make("div", {}, ...pictures, clock), make("p", {}, make("span", { textContent: omega }), phase, energy));
    this.cards.set(l, { element, clock, phase, energy });
    return this.cards.get(l);
  }

  arrange() {
    const order = this.model.frequencies.map((_, l) => l);
    if (this.strongest && this.energy) order.sort((a, b) => this.energy[b] - this.energy[a]);
    this.shown = this.all ? order : order.slice(0, N_PLANES);
    this.list.replaceChildren(...this.shown.map((l) => this.card(l).element));
  }

  /** Show the shape's planes after the turn: the hand's length is its size, its angle the phase. */
  paint(planes, turned, pose, settled) {
    this.energy = this.model.frequencies.map((_, l) => planes[2 * l] ** 2 + planes[2 * l + 1] ** 2);
    const total = this.energy.reduce((sum, value) => sum + value, 0) || 1;
    const longest = Math.sqrt(this.energy.reduce((best, value) => Math.max(best, value), 0)) || 1;
    const sum = this.energy.join();
    if (this.shown.length === 0 || (this.strongest && settled && this.sorted !== sum)) this.arrange();
    if (settled) this.sorted = sum;
    const [rim, hand] = [ink("tick"), ink("accent")];
    for (const l of this.shown) {
      const { clock, phase, energy } = this.card(l);
      const { context, width } = sharp(clock);
      const [middle, radius] = [width / 2, Math.max(0, width / 2 - 2)];
      context.strokeStyle = rim;
      context.lineWidth = 1;
      context.beginPath();
      context.arc(middle, middle, radius, 0, TURN);
      context.stroke();
      context.strokeStyle = hand;
      context.lineWidth = 2.5;
      context.lineCap = "round";
      context.beginPath();
      context.moveTo(middle, middle);
      context.lineTo(middle + (radius * turned[2 * l]) / longest, middle - (radius * turned[2 * l + 1]) / longest);
      context.stroke();
      write(phase, `${Math.round((wrap(this.model.phase(l, pose)) * 360) / TURN)}°`.replace("-", "−"));
      write(energy, `${((100 * this.energy[l]) / total).toFixed(1)} %`);
    }
  }
}
