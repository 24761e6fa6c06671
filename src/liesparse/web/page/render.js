// Methods of App that paint its state.

const rendering = {
  paint() {
    const { model, painter, view } = this;
    const planes = model.compose(this.codes);
    const turned = model.rotate(planes, this.pose);
    const image = model.move(planes, this.pose);
    for (const canvas of this.imageCanvases) painter.image(canvas, image);
    if (this.canonical !== this.codes.join()) painter.image(byId("canonical"), model.move(planes, this.pose.map(() => 0)));
    this.canonical = this.codes.join();
    const residual = view ? Float32Array.from(view.pixels, (value, p) => value - image[p]) : new Float32Array(model.nPixels);
    painter.signed(byId("residual"), residual, painter.peak);
    if (this.session.live) this.sketch.showGhost(view ? null : image);
    const natural = model.natural(planes, this.inputPlanes ?? model.seenPlanes(image));
    const examplePoses = this.session.views.map((example) => example.pose);
    const range = model.rangeOf(this.codes);
    for (const pad of this.pads) pad.paint({ pose: this.pose, natural, modes: view?.modes ?? [], examplePoses, range, zoomed: this.zoomed });
    this.paintNumbers(image);
    this.paintControls();
    this.paintComparison(image);
    this.planes.paint(planes, turned, this.pose, !this.walk);
    this.writeLink();
  },

  paintControls() {
    this.sliders.forEach(({ card, slider, output }, k) => {
      if (document.activeElement !== slider || Math.abs(Number(slider.value) - this.codes[k]) > 0.01) slider.value = this.codes[k];
      setText(output, formatNumber(this.codes[k]));
      card.classList.toggle("used", this.codes[k] > 0.005);
    });
    this.poseInputs.forEach((input, axis) => {
      if (document.activeElement !== input) input.value = this.pose[axis].toFixed(this.zoomed ? 3 : 2);
    });
    [...byId("examples").children].forEach((button, place) => button.setAttribute("aria-pressed", place === this.image));
    byId("best-pose").disabled = !this.view;
    const source = this.view ? "the input" : "the image you see";
    setText(byId("pose-help"), `Behind: the posterior of the pose for ${source}, log scale. Dots: test images.${this.model.ranges ? " Bright: where this shape is in the data." : ""} Drag, or use the arrow keys.`);
    const modes = this.view?.modes ?? [];
    if (this.shownModes === modes) return;
    this.shownModes = modes;
    byId("modes").replaceChildren(
      ...modes.map((mode) => {
        const button = createElement("button", { type: "button", textContent: formatPose(mode.pose), onclick: () => this.animateTo(mode.pose) });
        return createElement("li", {}, button, ` ${(100 * mode.share).toFixed(mode.share > 0.995 ? 0 : 1)} % of the mass`);
      }),
    );
  },

  paintNumbers(image) {
    const rows = [["active shapes", String(this.codes.filter((code) => code > ACTIVE_CODE).length)]];
    if (this.view) {
      rows.push(["SNR of this fit", formatNumber(signalToNoise(this.view.pixels, image), 1)]);
      rows.push(["ln P(I | α) of the input", formatNumber(this.view.log_likelihood, 1)]);
    }
    if (byId("numbers").childElementCount !== 2 * rows.length) {
      byId("numbers").replaceChildren(...rows.flatMap(() => [createElement("dt"), createElement("dd")]));
    }
    rows.flat().forEach((text, place) => setText(byId("numbers").children[place], text));
  },

  /** Show the input as a sum of shapes: transformed ones here, fixed ones in plain sparse coding. */
  paintComparison(image) {
    const { model, session, view } = this;
    byId("sides").hidden = !session.plain || !view?.sparse_codes;
    if (byId("sides").hidden) return;
    const used = (codes) => codes.map((code, k) => [code, k]).filter(([code]) => code > 0.005).sort((a, b) => b[0] - a[0]);
    const parts = used(this.codes);
    const moved = (k) => model.move(model.shapePlanes[k], this.pose);
    this.paintSum(byId("ours"), "Lie Group Sparse Coding", parts, moved, image);
    if (this.shownPlain === view) return;
    this.shownPlain = view;
    const shape = (k) => session.plain.values.subarray(k * model.nPixels, (k + 1) * model.nPixels);
    const sparseParts = used(view.sparse_codes);
    const estimate = new Float32Array(model.nPixels);
    for (const [code, k] of sparseParts) shape(k).forEach((value, p) => (estimate[p] += code * value));
    this.paintSum(byId("plain"), "Plain sparse coding", sparseParts, shape, estimate);
  },

  paintSum(row, name, parts, picture, estimate) {
    const shown = parts.slice(0, MAX_PARTS);
    const nCanvases = 2 + shown.length; // input, estimate, parts
    if (row.querySelectorAll("canvas").length !== nCanvases) {
      const figure = (caption) => createElement("figure", {}, createElement("canvas", { className: "picture" }), createElement("figcaption", { textContent: caption }));
      row.replaceChildren(
        createElement("b", { textContent: name }),
        figure("input"),
        "≈",
        figure(""),
        "=",
        ...shown.flatMap((_, place) => (place ? ["+", figure("")] : [figure("")])),
        createElement("span", { className: "note soft small" }),
      );
    }
    const [input, found, ...others] = row.querySelectorAll("canvas");
    const captions = row.querySelectorAll("figcaption");
    this.painter.image(input, this.view.pixels);
    this.painter.image(found, estimate);
    setText(captions[1], `SNR ${formatNumber(signalToNoise(this.view.pixels, estimate), 1)}`);
    shown.forEach(([code, k], place) => {
      this.painter.image(others[place], picture(k).map((value) => TYPICAL_CODE * value));
      setText(captions[place + 2], `× ${formatNumber(code)}`);
    });
    const more = parts.length - shown.length;
    setText(row.querySelector(".note"), more > 0 ? `and ${more} more` : "");
  },

  showPlaying() {
    for (const button of byId("walks").children) {
      const playing = this.walk?.kind === button.dataset.kind;
      button.setAttribute("aria-pressed", playing);
      button.setAttribute("aria-label", `Walk: ${button.dataset.name}`);
      button.textContent = `${playing ? "❚❚" : "▶"} ${button.dataset.name}`;
    }
  },
};
