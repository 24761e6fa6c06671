// The application: one state (codes, pose, input), and the methods that change it.

const SHRINK_BYTES = 1e6; // a larger picture is shrunk before it is sent
const ANIMATION_MS = 350; // duration of a move to another pose
const REQUEST_INTERVAL_MS = 120; // between two requests while drawing

/** All methods that create elements are in controls.js, those that paint in render.js. */
class App {
  constructor(session) {
    this.session = session;
    this.model = session.outerFrequencies ? new ComposedModel(session) : new Model(session);
    const { values, rows } = session.images;
    this.examples = Array.from({ length: rows }, (_, i) => values.subarray(i * this.model.nPixels, (i + 1) * this.model.nPixels));
    this.painter = new Painter(session, this.examples.length ? this.examples : this.model.shapes.map((shape) => shape.map((v) => TYPICAL_CODE * v)));
    this.codes = Array(this.model.nShapes).fill(0);
    this.pose = Array(this.model.nAxes).fill(0);
    this.view = null; // what was inferred from the input
    this.image = null; // index of the input among the examples
    this.inputPlanes = null;
    this.walk = null;
    this.ends = {};
    this.zoomed = this.model.ranges?.some((range) => range.some(([, low, high]) => high - low < TURN / 4)) ?? false;
    this.whole = false; // whether walks go once round, also where no data is
    this.lineShare = 0; // position of the walk from A to B, 0 to 1
    this.paintScheduled = false;
    this.request = null; // the AbortController of the running request
    this.pendingUpload = null; // the file that is being shrunk
    this.lastRequest = 0;
  }

  start() {
    const { session, model } = this;
    byId("title").textContent = session.title;
    const axes = model.nAxes === 1 ? "1 axis" : `${model.nAxes} axes`;
    const group = model.names ? model.names.join(", ") : `a torus with ${axes}`;
    byId("facts").textContent = `${model.nShapes} shapes, ${model.nPlanes} planes, ${group}`;
    this.sketch = new Sketch(byId("sketch"), this.painter, (done) => this.onDrawing(done));
    this.planes = new Planes(byId("plane-list"), model, this.painter);
    this.pads = makePads(model, () => this.pose, (pose) => this.setPose(pose));
    byId("pads").classList.toggle("square", this.pads[0] instanceof Pad);
    byId("pads").append(...this.pads.map((pad) => pad.element));
    this.makeExamples();
    this.makeShapes();
    this.makePoseValues();
    this.makeWalks();
    this.addListeners();
    byId("input-help").textContent = session.live
      ? "Draw here (the model knows only the shapes below), drop an image anywhere on the page, or pick a test image."
      : "Pick a test image. To draw your own, run “liesparse explore”.";
    byId("sketch").setAttribute("aria-label", session.live ? "Drawing pad: arrow keys move the pen, space paints, shift and arrows draw" : "The input");
    if (!session.live) this.disableInput();
    this.readLink() || this.selectExample(0) || this.showShape(0);
    window.addEventListener("hashchange", () => this.readLink());
  }

  // ---- state

  /** Paint the state in the next frame. */
  schedulePaint() {
    if (this.paintScheduled) return;
    this.paintScheduled = true;
    requestAnimationFrame(() => {
      this.paintScheduled = false;
      this.paint();
    });
  }

  setPose(pose) {
    this.stopWalk();
    this.pose = pose.map(wrap);
    this.schedulePaint();
  }

  setCode(k, value) {
    this.cancelRequest(); // a late response must not undo this
    this.stopWalk();
    this.codes[k] = Math.min(Math.max(value, 0), MAX_CODE);
    this.schedulePaint();
  }

  showShape(k) {
    this.cancelRequest();
    this.stopWalk();
    this.codes = this.codes.map((_, other) => (other === k ? TYPICAL_CODE : 0));
    this.schedulePaint();
    return true;
  }

  /** Animate the pose to another one, the shorter way round each axis. */
  animateTo(pose) {
    this.stopWalk();
    const [from, began] = [[...this.pose], performance.now()];
    const animation = {}; // a walk without a kind
    this.walk = animation;
    const step = (now) => {
      if (this.walk !== animation) return;
      const share = Math.min(1, (now - began) / ANIMATION_MS);
      const eased = share * share * (3 - 2 * share);
      this.pose = from.map((angle, axis) => wrap(angle + eased * wrap(pose[axis] - angle)));
      if (share === 1) this.walk = null;
      this.paint();
      if (share < 1) requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  /** Abort the running request, so that its response changes nothing. */
  cancelRequest() {
    this.request?.abort();
    this.request = this.pendingUpload = null;
  }

  selectExample(place) {
    if (!this.examples[place]) return false;
    this.cancelRequest();
    this.image = place;
    this.sketch.show(this.examples[place]);
    this.applyView({ ...this.session.views[place], pixels: this.examples[place] });
    return true;
  }

  /** Show what was inferred from an image. */
  applyView(view) {
    this.stopWalk();
    this.view = view;
    this.codes = [...view.codes];
    this.pose = view.pose.map(wrap);
    this.inputPlanes = this.model.seenPlanes(view.pixels);
    this.showMessage(view.note ? `The image was ${view.note}.` : "");
    this.schedulePaint();
  }

  clearInput() {
    this.cancelRequest();
    Object.assign(this, { view: null, image: null, inputPlanes: null });
    this.sketch.show(new Float32Array(this.model.nPixels));
    this.showMessage("");
    this.schedulePaint();
  }

  /** Show a message for about the time it takes to read it. */
  showMessage(text) {
    byId("message").hidden = !text;
    byId("message").textContent = text;
    clearTimeout(this.messageTimer);
    if (text) this.messageTimer = setTimeout(() => this.showMessage(""), 4000 + 80 * text.length);
  }

  // ---- requests to the server

  /** Infer the drawing: at intervals while the pen moves, and always when it is lifted. */
  onDrawing(done) {
    if (!this.session.live) return;
    this.image = this.pendingUpload = null;
    if (this.sketch.blank) return void this.clearInput();
    const now = performance.now();
    if (this.request?.upload) this.cancelRequest(); // the drawing replaces the uploaded picture
    if (!done && (this.request || now - this.lastRequest < REQUEST_INTERVAL_MS)) return;
    this.lastRequest = now;
    this.infer("/api/drawing", "application/json", JSON.stringify({ pixels: Array.from(this.sketch.pixels) }));
  }

  /** Show an error; a drawing that was not inferred has no results. */
  showError(address, text) {
    if (address === "/api/drawing") Object.assign(this, { view: null, inputPlanes: null });
    this.showMessage(text);
    this.schedulePaint();
  }

  async infer(address, type, body) {
    this.request?.abort();
    const request = new AbortController();
    request.upload = address === "/api/picture";
    this.request = request;
    try {
      const response = await fetch(address, { method: "POST", headers: { "Content-Type": type }, body, signal: request.signal });
      const isJson = response.headers.get("Content-Type") === "application/json";
      const found = isJson ? await response.json() : { detail: "The server is too busy. Try again in a moment." };
      if (request !== this.request) return;
      if (!response.ok) return void this.showError(address, found.detail);
      if (address === "/api/picture") {
        this.image = null;
        this.sketch.show(found.pixels);
      }
      this.applyView(found);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.showError(address, "The server does not answer. Is “liesparse explore” still running?");
    } finally {
      if (request === this.request) this.request = null;
    }
  }

  async uploadFile(file) {
    if (!this.session.live) return void this.showMessage("This page has no server. To try your own images, run “liesparse explore”.");
    if (!file) return void this.showMessage("That was no file. Save the image first, then drop the file.");
    this.cancelRequest();
    this.pendingUpload = file; // any other input replaces it
    const small = file.size > SHRINK_BYTES ? await shrinkPicture(file) : file;
    if (this.pendingUpload === file) await this.infer("/api/picture", "application/octet-stream", small);
  }

  // ---- walks

  playWalk(kind) {
    const again = this.walk?.kind === kind;
    this.stopWalk();
    if (again) return;
    const walk = this.makeWalk(kind);
    this.walk = walk;
    this.lastKind = kind;
    this.showPlaying();
    let [share, before] = [kind === "line" ? this.lineShare : 0, performance.now()];
    const step = (now) => {
      if (this.walk !== walk) return;
      share = (share + ((now - before) / 5000) * Number(byId("speed").value)) % 1;
      before = now;
      if (kind === "line") [walk.from, walk.to, this.lineShare] = [this.ends.a, this.ends.b, share];
      Object.assign(this, viewAt(walk, share));
      this.paint();
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  makeWalk(kind) {
    const from = { codes: [...this.codes], pose: [...this.pose] };
    if (kind !== "line") return { kind, axis: Number(kind), from, range: this.walkRange(Number(kind)) };
    return { kind, from: this.ends.a, to: this.ends.b };
  }

  /** Where a walk along an axis goes: where the data is, or, as null, once round. */
  walkRange(axis) {
    const range = this.whole ? null : this.model.rangeOf(this.codes)?.[axis];
    return range && range[2] - range[1] < 0.9 * TURN ? range : null;
  }

  stopWalk() {
    this.walk = null;
    this.showPlaying();
  }

  setEnd(name, { codes, pose }) {
    this.ends[name] = { codes: [...codes], pose: [...pose] };
    this.painter.image(byId(`end-${name}`), this.model.generate(codes, pose));
  }

  saveWalk(save) {
    const walk = this.walk?.kind ? this.walk : this.makeWalk(this.lastKind ?? "0");
    save(walk, this.model, this.painter);
  }

  // ---- the link

  writeLink() {
    const codes = this.codes.map((code, k) => (code > 0.0005 ? `${k}:${+code.toFixed(3)}` : "")).filter(Boolean);
    const parts = [`codes=${codes.join(",")}`, `pose=${this.pose.map((angle) => +angle.toFixed(4)).join(",")}`];
    if (this.image !== null) parts.push(`image=${this.image}`);
    this.link = `#${parts.join("&")}`;
    clearTimeout(this.linkTimer);
    this.linkTimer = setTimeout(() => history.replaceState(null, "", this.link), 200);
  }

  readLink() {
    if (location.hash === this.link) return true;
    const params = new URLSearchParams(location.hash.slice(1));
    const selected = Boolean(params.get("image")) && this.selectExample(Number(params.get("image")));
    if (!params.get("codes") && !params.get("pose")) return selected; // an image alone: show what was inferred from it
    if (!selected) this.clearInput();
    const codes = Array(this.model.nShapes).fill(0);
    for (const part of (params.get("codes") ?? "").split(",")) {
      const [k, value] = part.split(":").map(Number);
      if (k in codes && Number.isFinite(value)) codes[k] = Math.min(Math.max(value, 0), 10);
    }
    const pose = (params.get("pose") ?? "").split(",").map(Number);
    this.stopWalk();
    this.codes = codes;
    this.pose = this.pose.map((_, axis) => (Number.isFinite(pose[axis]) ? wrap(pose[axis]) : 0));
    this.schedulePaint();
    return true;
  }
}

Object.assign(App.prototype, controls, rendering);

loadSession()
  .then((session) => {
    const app = new App(session);
    app.start();
    document.body.dataset.ready = "yes";
  })
  .catch((error) => {
    byId("message").hidden = false;
    byId("message").textContent = `This browser cannot open the model: ${error.message}`;
  });
