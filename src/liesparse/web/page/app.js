// The page: one state (codes, pose, input), and what changes it.

const LARGE = 1e6; // bytes from which a picture is shrunk before it is sent
const GLIDE = 350; // milliseconds of a move to another pose
const PATIENCE = 120; // milliseconds between two questions while drawing

class App extends Face {
  constructor(session) {
    super();
    this.session = session;
    this.model = new Model(session);
    const { values, rows } = session.images;
    this.examples = Array.from({ length: rows }, (_, i) => values.subarray(i * this.model.nPixels, (i + 1) * this.model.nPixels));
    this.painter = new Painter(session, this.examples.length ? this.examples : this.model.shapes.map((shape) => shape.map((v) => FULL * v)));
    this.codes = Array(this.model.nShapes).fill(0);
    this.pose = Array(this.model.nAxes).fill(0);
    this.view = null; // what was inferred of the input
    this.image = null; // the input's number among the examples
    this.inputPlanes = null;
    this.walk = null;
    this.ends = {};
    this.lineShare = 0; // how far the walk from A to B has come
    this.dirty = false;
    this.question = null;
    this.asked = 0;
  }

  start() {
    const { session, model } = this;
    by("title").textContent = session.title;
    const axes = model.nAxes === 1 ? "1 axis" : `${model.nAxes} axes`;
    by("facts").textContent = `${model.nShapes} shapes, ${model.nPlanes} planes, a torus with ${axes}`;
    this.sketch = new Sketch(by("sketch"), this.painter, (done) => this.drawn(done));
    this.planes = new Planes(by("plane-list"), model, this.painter);
    this.pads = makePads(model, () => this.pose, (pose) => this.setPose(pose));
    by("pads").classList.toggle("square", model.nAxes === 2);
    by("pads").append(...this.pads.map((pad) => pad.element));
    this.makeExamples();
    this.makeShapes();
    this.makePoseValues();
    this.makeWalks();
    this.wire();
    const mouth = session.live ? "Draw here (the model knows only the shapes below), drop an image anywhere on the page, or pick a test image." : "";
    by("input-help").textContent = mouth || "Pick a test image. To draw your own, run “liesparse explore”.";
    by("sketch").setAttribute("aria-label", session.live ? "Drawing pad: arrow keys move the pen, space paints, shift and arrows draw" : "The input");
    if (!session.live) this.disableInput();
    this.readLink() || this.pick(0) || this.alone(0);
    window.addEventListener("hashchange", () => this.readLink());
  }

  // ---- what happens

  /** Show the state at the next frame of the screen. */
  touch() {
    if (this.dirty) return;
    this.dirty = true;
    requestAnimationFrame(() => {
      this.dirty = false;
      this.paint();
    });
  }

  setPose(pose) {
    this.stop();
    this.pose = pose.map(wrap);
    this.touch();
  }

  setCode(k, value) {
    this.stop();
    this.codes[k] = Math.min(Math.max(value, 0), MOST);
    this.touch();
  }

  alone(k) {
    this.stop();
    this.codes = this.codes.map((_, other) => (other === k ? FULL : 0));
    this.touch();
    return true;
  }

  /** Move to a pose by the shorter way. */
  glide(pose) {
    this.stop();
    const [from, began] = [[...this.pose], performance.now()];
    const glide = { glide: true };
    this.walk = glide;
    const step = (now) => {
      if (this.walk !== glide) return;
      const share = Math.min(1, (now - began) / GLIDE);
      const eased = share * share * (3 - 2 * share);
      this.pose = from.map((angle, axis) => wrap(angle + eased * wrap(pose[axis] - angle)));
      if (share === 1) this.walk = null;
      this.paint();
      if (share < 1) requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  /** Let no answer that is still under way change what is shown. */
  cancelRequest() {
    this.question?.abort();
    this.question = this.turn = null;
  }

  pick(place) {
    if (!this.examples[place]) return false;
    this.cancelRequest();
    this.image = place;
    this.sketch.show(this.examples[place]);
    this.take({ ...this.session.views[place], pixels: this.examples[place] });
    return true;
  }

  /** Take over what was inferred. */
  take(view) {
    this.stop();
    this.view = view;
    this.codes = [...view.codes];
    this.pose = view.pose.map(wrap);
    this.inputPlanes = this.model.toPlanes(view.pixels);
    this.say(view.note ? `The image was ${view.note}.` : "");
    this.touch();
  }

  forget() {
    this.cancelRequest();
    Object.assign(this, { view: null, image: null, inputPlanes: null });
    this.sketch.show(new Float32Array(this.model.nPixels));
    this.say("");
    this.touch();
  }

  /** Tell something, for as long as it takes to read it. */
  say(text) {
    by("message").hidden = !text;
    by("message").textContent = text;
    clearTimeout(this.saying);
    if (text) this.saying = setTimeout(() => this.say(""), 4000 + 80 * text.length);
  }

  // ---- questions to the server

  /** The drawing changed: ask now and then while the pen moves, and surely when it is lifted. */
  drawn(done) {
    if (!this.session.live) return;
    this.image = this.turn = null;
    if (this.sketch.blank) return void this.forget();
    const now = performance.now();
    if (this.question?.upload) this.cancelRequest(); // the pen wins
    if (!done && (this.question || now - this.asked < PATIENCE)) return;
    this.asked = now;
    this.ask("/api/drawing", "application/json", JSON.stringify({ pixels: Array.from(this.sketch.pixels) }), !done);
  }

  /** Say what went wrong; a drawing that nobody looked at has no results. */
  fail(address, text) {
    if (address === "/api/drawing") Object.assign(this, { view: null, inputPlanes: null });
    this.say(text);
    this.touch();
  }

  async ask(address, type, body, patient = false) {
    if (!patient) this.question?.abort();
    const question = new AbortController();
    question.upload = address === "/api/picture";
    this.question = question;
    try {
      const answer = await fetch(address, { method: "POST", headers: { "Content-Type": type }, body, signal: question.signal });
      const found = await answer.json();
      if (question !== this.question) return;
      if (!answer.ok) return void this.fail(address, found.detail);
      if (address === "/api/picture") {
        this.image = null;
        this.sketch.show(found.pixels);
      }
      this.take(found);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.fail(address, "The server does not answer. Is “liesparse explore” still running?");
    } finally {
      if (question === this.question) this.question = null;
    }
  }

  async send(file) {
    if (!this.session.live) return void this.say("This page has no server. To try your own images, run “liesparse explore”.");
    if (!file) return void this.say("That was no file. Save the image first, then drop the file.");
    this.cancelRequest();
    const turn = (this.turn = {}); // whatever comes after it wins
    const small = file.size > LARGE ? await shrink(file) : file;
    if (this.turn === turn) await this.ask("/api/picture", "application/octet-stream", small);
  }

  // ---- walks

  play(kind) {
    const again = this.walk?.kind === kind;
    this.stop();
    if (again) return;
    const walk = this.makeWalk(kind);
    this.walk = walk;
    this.lastKind = kind;
    this.showPlaying();
    let [share, before] = [kind === "line" ? this.lineShare : 0, performance.now()];
    const step = (now) => {
      if (this.walk !== walk) return;
      share = (share + ((now - before) / 5000) * Number(by("speed").value)) % 1;
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
    if (kind !== "line") return { kind, axis: Number(kind), from };
    return { kind, from: this.ends.a, to: this.ends.b };
  }

  stop() {
    this.walk = null;
    this.showPlaying();
  }

  showPlaying() {
    for (const button of by("walks").children) {
      const playing = this.walk?.kind === button.dataset.kind;
      button.setAttribute("aria-pressed", playing);
      button.setAttribute("aria-label", `Walk: ${button.dataset.name}`);
      button.textContent = `${playing ? "❚❚" : "▶"} ${button.dataset.name}`;
    }
  }

  setEnd(name, { codes, pose }) {
    this.ends[name] = { codes: [...codes], pose: [...pose] };
    this.painter.image(by(`end-${name}`), this.model.generate(codes, pose));
  }

  keep(write) {
    const walk = this.walk?.kind ? this.walk : this.makeWalk(this.lastKind ?? "0");
    write(walk, this.model, this.painter);
  }

  // ---- the link

  writeLink() {
    const codes = this.codes.map((code, k) => (code > 0.0005 ? `${k}:${+code.toFixed(3)}` : "")).filter(Boolean);
    const parts = [`codes=${codes.join(",")}`, `pose=${this.pose.map((angle) => +angle.toFixed(3)).join(",")}`];
    if (this.image !== null) parts.push(`image=${this.image}`);
    this.link = `#${parts.join("&")}`;
    clearTimeout(this.writing);
    this.writing = setTimeout(() => history.replaceState(null, "", this.link), 200);
  }

  readLink() {
    if (location.hash === this.link) return true;
    const given = new URLSearchParams(location.hash.slice(1));
    const picked = Boolean(given.get("image")) && this.pick(Number(given.get("image")));
    if (!given.get("codes") && !given.get("pose")) return picked; // an image alone: what was inferred of it
    if (!picked) this.forget();
    const codes = Array(this.model.nShapes).fill(0);
    for (const part of (given.get("codes") ?? "").split(",")) {
      const [k, value] = part.split(":").map(Number);
      if (k in codes && Number.isFinite(value)) codes[k] = Math.min(Math.max(value, 0), 10);
    }
    const pose = (given.get("pose") ?? "").split(",").map(Number);
    this.stop();
    this.codes = codes;
    this.pose = this.pose.map((_, axis) => (Number.isFinite(pose[axis]) ? wrap(pose[axis]) : 0));
    this.touch();
    return true;
  }

  // ---- the page

  makeWalks() {
    const kinds = this.pose.map((_, axis) => [String(axis), `axis ${axis + 1}`]);
    for (const [kind, name] of [...kinds, ["line", "A → B"]]) {
      by("walks").append(make("button", { type: "button", dataset: { kind, name }, onclick: () => this.play(kind) }));
    }
    this.showPlaying();
    const zero = { codes: this.codes.map((_, k) => (k === 0 ? FULL : 0)), pose: this.pose };
    const [first, second] = [this.session.views[0] ?? zero, this.session.views[1] ?? zero];
    this.setEnd("a", first);
    this.setEnd("b", second);
  }

  disableInput() {
    for (const element of document.querySelectorAll(".live")) element.hidden = true;
    by("sketch").classList.remove("on");
    by("sketch").replaceWith(by("sketch").cloneNode(true)); // without its listeners
    by("sketch").removeAttribute("tabindex");
    by("sketch").setAttribute("role", "img");
    this.sketch.canvas = by("sketch");
  }

  wire() {
    const erase = (wanted) => {
      this.sketch.erasing = wanted;
      by("erase").setAttribute("aria-pressed", wanted);
    };
    by("erase").onclick = () => erase(!this.sketch.erasing);
    by("clear").onclick = () => {
      erase(false);
      this.forget();
    };
    by("file").onchange = (event) => {
      this.send(event.target.files[0]);
      event.target.value = "";
    };
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      this.send(event.dataTransfer.files[0]);
    });
    by("best-pose").onclick = () => this.view && this.glide(this.view.pose);
    by("zero-pose").onclick = () => this.glide(this.pose.map(() => 0));
    for (const name of ["a", "b"]) by(`set-${name}`).onclick = () => this.setEnd(name, this);
    by("save-gif").onclick = () => this.keep(saveGif);
    by("save-png").onclick = () => this.keep(savePng);
    by("sort-planes").onclick = () => this.flip("sort-planes", "strongest");
    by("all-planes").onclick = () => this.flip("all-planes", "all");
    by("all-planes").hidden = this.model.nPlanes <= N_PLANES;
    this.stages = [by("image"), by("mini").firstElementChild];
    by("mini").onclick = () => by("stage").scrollIntoView();
    new IntersectionObserver(([seen]) => (by("mini").hidden = seen.intersectionRatio > 0.2), { threshold: 0.2 }).observe(by("image"));
    by("copy-link").onclick = () => this.copyLink();
    document.addEventListener("keydown", (event) => {
      const busy = event.target.matches?.("button, input, label, #sketch");
      if (event.key !== " " || busy) return;
      event.preventDefault();
      this.walk?.kind ? this.stop() : this.play(this.lastKind ?? "0");
    });
    NIGHT.addEventListener("change", () => {
      this.canonical = null;
      this.touch();
    });
    window.addEventListener("resized", () => this.touch());
  }

  flip(id, name) {
    this.planes[name] = !this.planes[name];
    by(id).setAttribute("aria-pressed", this.planes[name]);
    this.planes.arrange();
    this.touch();
  }

  async copyLink() {
    history.replaceState(null, "", this.link);
    try {
      await navigator.clipboard.writeText(location.href);
      by("copy-link").textContent = "Copied";
    } catch {
      by("copy-link").textContent = "The address bar has it";
    }
    setTimeout(() => (by("copy-link").textContent = "Copy link"), 1500);
  }
}

openWorld()
  .then((session) => {
    const app = new App(session);
    app.start();
    document.body.dataset.ready = "yes";
  })
  .catch((error) => {
    by("message").hidden = false;
    by("message").textContent = `This browser cannot open the model: ${error.message}`;
  });
