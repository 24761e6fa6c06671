// Methods of App that create the elements of the page and listen to their events.

const ACTIVE_CODE = 0.05; // a shape with a larger code is active, as everywhere in this package
const TYPICAL_CODE = 0.9; // code of a perfectly reconstructed image, by the paper's λ and σ
const MAX_CODE = 1.2; // of a slider
const MAX_PARTS = 6; // shown of a sum

const byId = (id) => document.getElementById(id);
const formatNumber = (value, n = 2) => (Math.abs(value) < 0.5 * 10 ** -n ? 0 : value).toFixed(n).replace("-", "−");

const controls = {
  makeExamples() {
    this.examples.forEach((image, place) => {
      const canvas = createElement("canvas", { className: "picture" });
      this.painter.image(canvas, image);
      const button = createElement("button", { type: "button", onclick: () => this.selectExample(place) }, canvas);
      button.setAttribute("aria-label", `Test image ${place + 1}`);
      byId("examples").append(button);
    });
    byId("examples").hidden = this.examples.length === 0;
  },

  makeShapes() {
    this.sliders = this.model.shapes.map((shape, k) => {
      const canvas = createElement("canvas", { className: "picture" });
      this.painter.image(canvas, this.model.toImage(this.model.shapePlanes[k]).map((value) => TYPICAL_CODE * value));
      const button = createElement("button", { type: "button" }, canvas);
      button.setAttribute("aria-label", `Shape ${k + 1} alone`);
      const slider = createElement("input", { type: "range", min: 0, max: MAX_CODE, step: 0.01, value: 0 });
      slider.setAttribute("aria-label", `Code of shape ${k + 1}`);
      slider.addEventListener("input", () => this.setCode(k, Number(slider.value)));
      const output = createElement("span", { className: "code" });
      const card = createElement("div", { className: "shape" }, button, slider, output);
      this.dragToMix(button, k);
      byId("codes").append(card);
      return { card, slider, output };
    });
  },

  /** A click shows the shape alone; a drag to the side changes its code and leaves the others. */
  dragToMix(button, k) {
    let start = null;
    let dragged = false;
    button.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      [start, dragged] = [{ x: event.clientX, code: this.codes[k] }, false];
      button.setPointerCapture(event.pointerId);
    });
    button.addEventListener("pointermove", (event) => {
      if (!start) return;
      const moved = event.clientX - start.x;
      dragged ||= Math.abs(moved) > 5;
      if (dragged) this.setCode(k, start.code + (MAX_CODE * moved) / button.clientWidth);
    });
    for (const end of ["pointerup", "pointercancel"]) button.addEventListener(end, () => (start = null));
    button.addEventListener("click", (event) => {
      if (dragged && event.detail > 0) return void (dragged = false);
      this.showShape(k);
    });
  },

  makePoseValues() {
    this.poseInputs = this.pose.map((_, axis) => {
      const input = createElement("input", { type: "number", step: 0.05, min: -3.15, max: 3.15 });
      input.addEventListener("input", () => {
        if (input.value === "" || !Number.isFinite(Number(input.value))) return;
        this.setPose(this.pose.map((old, other) => (other === axis ? Number(input.value) : old)));
      });
      input.addEventListener("blur", () => this.schedulePaint());
      byId("pose-values").append(createElement("label", {}, this.model.names?.[axis] ?? `s${axis + 1}`, input));
      return input;
    });
  },

  makeWalks() {
    const kinds = this.pose.map((_, axis) => [String(axis), this.model.names?.[axis] ?? `axis ${axis + 1}`]);
    for (const [kind, name] of [...kinds, ["line", "A → B"]]) {
      byId("walks").append(createElement("button", { type: "button", dataset: { kind, name }, onclick: () => this.playWalk(kind) }));
    }
    this.showPlaying();
    const zero = { codes: this.codes.map((_, k) => (k === 0 ? TYPICAL_CODE : 0)), pose: this.pose };
    const [first, second] = [this.session.views[0] ?? zero, this.session.views[1] ?? zero];
    this.setEnd("a", first);
    this.setEnd("b", second);
  },

  disableInput() {
    for (const element of document.querySelectorAll(".live")) element.hidden = true;
    byId("sketch").classList.remove("on");
    byId("sketch").replaceWith(byId("sketch").cloneNode(true)); // a copy has no listeners
    byId("sketch").removeAttribute("tabindex");
    byId("sketch").setAttribute("role", "img");
    this.sketch.canvas = byId("sketch");
  },

  addListeners() {
    const setErasing = (erasing) => {
      this.sketch.erasing = erasing;
      byId("erase").setAttribute("aria-pressed", erasing);
    };
    byId("erase").onclick = () => setErasing(!this.sketch.erasing);
    byId("clear").onclick = () => {
      setErasing(false);
      this.clearInput();
    };
    byId("file").onchange = (event) => {
      this.uploadFile(event.target.files[0]);
      event.target.value = "";
    };
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      this.uploadFile(event.dataTransfer.files[0]);
    });
    byId("best-pose").onclick = () => this.view && this.animateTo(this.view.pose);
    byId("zero-pose").onclick = () => this.animateTo(this.pose.map(() => 0));
    for (const [id, name] of [["zoom", "zoomed"], ["whole", "whole"]]) {
      byId(id).hidden = !this.model.ranges || (id === "zoom" && !(this.pads[0] instanceof Pad));
      byId(id).setAttribute("aria-pressed", this[name]);
      byId(id).onclick = () => {
        this[name] = !this[name];
        byId(id).setAttribute("aria-pressed", this[name]);
        if (this.walk?.axis !== undefined) this.walk.range = this.walkRange(this.walk.axis);
        this.schedulePaint();
      };
    }
    for (const name of ["a", "b"]) byId(`set-${name}`).onclick = () => this.setEnd(name, this);
    byId("save-gif").onclick = () => this.saveWalk(saveGif);
    byId("save-png").onclick = () => this.saveWalk(savePng);
    byId("sort-planes").onclick = () => this.togglePlanes("sort-planes", "strongest");
    byId("all-planes").onclick = () => this.togglePlanes("all-planes", "all");
    byId("all-planes").hidden = this.model.nPlanes <= N_PLANES;
    this.imageCanvases = [byId("image"), byId("mini").firstElementChild];
    byId("mini").onclick = () => byId("stage").scrollIntoView();
    new IntersectionObserver(([entry]) => (byId("mini").hidden = entry.intersectionRatio > 0.2), { threshold: 0.2 }).observe(byId("image"));
    byId("copy-link").onclick = () => this.copyLink();
    document.addEventListener("keydown", (event) => {
      const handlesSpace = event.target.matches?.("button, input, label, #sketch");
      if (event.key !== " " || handlesSpace) return;
      event.preventDefault();
      this.walk?.kind ? this.stopWalk() : this.playWalk(this.lastKind ?? "0");
    });
    DARK_SCHEME.addEventListener("change", () => {
      this.canonical = null;
      this.schedulePaint();
    });
    window.addEventListener("resized", () => this.schedulePaint());
  },

  togglePlanes(id, name) {
    this.planes[name] = !this.planes[name];
    byId(id).setAttribute("aria-pressed", this.planes[name]);
    this.planes.arrange();
    this.schedulePaint();
  },

  async copyLink() {
    history.replaceState(null, "", this.link);
    try {
      await navigator.clipboard.writeText(location.href);
      byId("copy-link").textContent = "Copied";
    } catch {
      byId("copy-link").textContent = "The address bar has it";
    }
    setTimeout(() => (byId("copy-link").textContent = "Copy link"), 1500);
  },
};
