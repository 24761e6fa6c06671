// What is seen: test images, shapes, and everything that follows from the state, painted whenever it changed.

const ACTIVE = 0.05; // above it a shape counts, as in all figures of this package
const FULL = 0.9; // what a perfectly explained image has, by the paper's λ and σ
const MOST = 1.2; // of a code that a slider gives
const MOST_PARTS = 6; // of a sum, side by side

const by = (id) => document.getElementById(id);
const digits = (value, n = 2) => (Math.abs(value) < 0.5 * 10 ** -n ? 0 : value).toFixed(n).replace("-", "−");

/** The face of an App, which has the state and the controls. */
class Face {
  makeExamples() {
    this.examples.forEach((image, place) => {
      const canvas = make("canvas", { className: "picture" });
      this.painter.image(canvas, image);
      const button = make("button", { type: "button", onclick: () => this.pick(place) }, canvas);
      button.setAttribute("aria-label", `Test image ${place + 1}`);
      by("examples").append(button);
    });
    by("examples").hidden = this.examples.length === 0;
  }

  makeShapes() {
    this.sliders = this.model.shapes.map((shape, k) => {
      const canvas = make("canvas", { className: "picture" });
      this.painter.image(canvas, this.model.toImage(this.model.shapePlanes[k]).map((value) => FULL * value));
      const button = make("button", { type: "button" }, canvas);
      button.setAttribute("aria-label", `Shape ${k + 1} alone`);
      const slider = make("input", { type: "range", min: 0, max: MOST, step: 0.01, value: 0 });
      slider.setAttribute("aria-label", `Code of shape ${k + 1}`);
      slider.addEventListener("input", () => this.setCode(k, Number(slider.value)));
      const output = make("span", { className: "code" });
      const card = make("div", { className: "shape" }, button, slider, output);
      this.dragToMix(button, k);
      by("codes").append(card);
      return { card, slider, output };
    });
  }

  /** A click is a click; a drag to the side changes the code and leaves the others. */
  dragToMix(button, k) {
    let began = null;
    let dragged = false;
    button.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      [began, dragged] = [{ x: event.clientX, code: this.codes[k] }, false];
      button.setPointerCapture(event.pointerId);
    });
    button.addEventListener("pointermove", (event) => {
      if (!began) return;
      const moved = event.clientX - began.x;
      dragged ||= Math.abs(moved) > 5;
      if (dragged) this.setCode(k, began.code + (MOST * moved) / button.clientWidth);
    });
    for (const end of ["pointerup", "pointercancel"]) button.addEventListener(end, () => (began = null));
    button.addEventListener("click", (event) => {
      if (dragged && event.detail > 0) return void (dragged = false);
      this.alone(k);
    });
  }

  makePoseValues() {
    this.poseInputs = this.pose.map((_, axis) => {
      const input = make("input", { type: "number", step: 0.05, min: -3.15, max: 3.15 });
      input.addEventListener("input", () => {
        if (input.value === "" || !Number.isFinite(Number(input.value))) return;
        this.setPose(this.pose.map((old, other) => (other === axis ? Number(input.value) : old)));
      });
      input.addEventListener("blur", () => this.touch());
      by("pose-values").append(make("label", {}, `s${axis + 1}`, input));
      return input;
    });
  }

  paint() {
    const { model, painter, view } = this;
    const planes = model.compose(this.codes);
    const turned = model.rotate(planes, this.pose);
    const image = model.toImage(turned);
    for (const canvas of this.stages) painter.image(canvas, image);
    if (this.canonical !== this.codes.join()) painter.image(by("canonical"), model.toImage(planes));
    this.canonical = this.codes.join();
    const rest = view ? Float32Array.from(view.pixels, (value, p) => value - image[p]) : new Float32Array(model.nPixels);
    painter.signed(by("rest"), rest, painter.peak);
    if (this.session.live) this.sketch.showGhost(view ? null : image);
    const natural = model.natural(planes, this.inputPlanes ?? turned);
    const others = this.session.views.map((other) => other.pose);
    for (const pad of this.pads) pad.paint({ pose: this.pose, natural, modes: view?.modes ?? [], others });
    this.paintNumbers(image);
    this.paintControls();
    this.paintSides(image);
    this.planes.paint(planes, turned, this.pose, !this.walk);
    this.writeLink();
  }

  paintControls() {
    this.sliders.forEach(({ card, slider, output }, k) => {
      if (document.activeElement !== slider || Math.abs(Number(slider.value) - this.codes[k]) > 0.01) slider.value = this.codes[k];
      write(output, digits(this.codes[k]));
      card.classList.toggle("used", this.codes[k] > 0.005);
    });
    this.poseInputs.forEach((input, axis) => {
      if (document.activeElement !== input) input.value = this.pose[axis].toFixed(2);
    });
    [...by("examples").children].forEach((button, place) => button.setAttribute("aria-pressed", place === this.image));
    by("best-pose").disabled = !this.view;
    const what = this.view ? "the input" : "the image you see";
    write(by("pose-help"), `Behind: the posterior of the pose for ${what}, log scale. Dots: test images. Drag, or use the arrow keys.`);
    const modes = this.view?.modes ?? [];
    if (this.shownModes === modes) return;
    this.shownModes = modes;
    by("modes").replaceChildren(
      ...modes.map((mode) => {
        const go = make("button", { type: "button", textContent: tellPose(mode.pose), onclick: () => this.glide(mode.pose) });
        return make("li", {}, go, ` ${(100 * mode.share).toFixed(mode.share > 0.995 ? 0 : 1)} % of the mass`);
      }),
    );
  }

  paintNumbers(image) {
    const rows = [["active shapes", String(this.codes.filter((code) => code > ACTIVE).length)]];
    if (this.view) {
      rows.push(["SNR of this fit", digits(signalToNoise(this.view.pixels, image), 1)]);
      rows.push(["ln P(I | α) of the input", digits(this.view.log_likelihood, 1)]);
    }
    if (by("numbers").childElementCount !== 2 * rows.length) {
      by("numbers").replaceChildren(...rows.flatMap(() => [make("dt"), make("dd")]));
    }
    rows.flat().forEach((text, place) => write(by("numbers").children[place], text));
  }

  /** The input as a sum of shapes: moved ones here, fixed ones in plain sparse coding. */
  paintSides(image) {
    const { model, session, view } = this;
    by("sides").hidden = !session.plain || !view?.sparse_codes;
    if (by("sides").hidden) return;
    const used = (codes) => codes.map((code, k) => [code, k]).filter(([code]) => code > 0.005).sort((a, b) => b[0] - a[0]);
    const ours = used(this.codes);
    const moved = (k) => model.toImage(model.rotate(model.shapePlanes[k], this.pose));
    this.paintSum(by("ours"), "Lie Group Sparse Coding", ours, moved, image);
    if (this.shownPlain === view) return;
    this.shownPlain = view;
    const shape = (k) => session.plain.values.subarray(k * model.nPixels, (k + 1) * model.nPixels);
    const theirs = used(view.sparse_codes);
    const guess = new Float32Array(model.nPixels);
    for (const [code, k] of theirs) shape(k).forEach((value, p) => (guess[p] += code * value));
    this.paintSum(by("plain"), "Plain sparse coding", theirs, shape, guess);
  }

  paintSum(row, name, parts, picture, guess) {
    const shown = parts.slice(0, MOST_PARTS);
    const wanted = 2 + shown.length; // input, guess, parts
    if (row.querySelectorAll("canvas").length !== wanted) {
      const framed = (caption) => make("figure", {}, make("canvas", { className: "picture" }), make("figcaption", { textContent: caption }));
      row.replaceChildren(
        make("b", { textContent: name }),
        framed("input"),
        "≈",
        framed(""),
        "=",
        ...shown.flatMap((_, place) => (place ? ["+", framed("")] : [framed("")])),
        make("span", { className: "note soft small" }),
      );
    }
    const [input, found, ...others] = row.querySelectorAll("canvas");
    const captions = row.querySelectorAll("figcaption");
    this.painter.image(input, this.view.pixels);
    this.painter.image(found, guess);
    write(captions[1], `SNR ${digits(signalToNoise(this.view.pixels, guess), 1)}`);
    shown.forEach(([code, k], place) => {
      this.painter.image(others[place], picture(k).map((value) => FULL * value));
      write(captions[place + 2], `× ${digits(code)}`);
    });
    const more = parts.length - shown.length;
    write(row.querySelector(".note"), more > 0 ? `and ${more} more` : "");
  }
}
