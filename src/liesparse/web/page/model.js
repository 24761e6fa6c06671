// The model: I = W R(s) Wᵀ Φ α, computed in the page. Poses are in radians, arrays row-major.

const TURN = 2 * Math.PI;
const wrap = (angle) => angle - TURN * Math.round(angle / TURN);

/** Decode a half-precision number. */
function fromHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

/** Parse the session in the page and decode its arrays. */
async function loadSession() {
  const session = JSON.parse(document.getElementById("session").textContent);
  const packed = Uint8Array.from(atob(session.block), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new DataView(await new Response(stream).arrayBuffer());
  let place = 0;
  for (const [name, [rows, columns]] of Object.entries(session.arrays)) {
    const values = new Float32Array(rows * columns);
    for (let i = 0; i < values.length; i++) values[i] = fromHalf(bytes.getUint16(place + 2 * i, true));
    place += 2 * values.length;
    session[name] = { rows, columns, values };
  }
  return session;
}

/** A torus action W R(s) Wᵀ. */
class Torus {
  constructor(basis, frequencies) {
    this.basis = basis.values; // (pixel, 2 * plane)
    this.nPixels = basis.rows;
    this.nColumns = basis.columns;
    this.frequencies = frequencies;
    this.nPlanes = frequencies.length;
    this.nAxes = frequencies[0].length;
  }

  /** Wᵀ I: two coordinates for each plane. */
  toPlanes(image) {
    const planes = new Float32Array(this.nColumns);
    for (let p = 0; p < this.nPixels; p++) {
      const value = image[p];
      if (value === 0) continue;
      const row = p * this.nColumns;
      for (let j = 0; j < this.nColumns; j++) planes[j] += value * this.basis[row + j];
    }
    return planes;
  }

  /** W v: from planes to an image. */
  toImage(planes) {
    const image = new Float32Array(this.nPixels);
    for (let p = 0; p < this.nPixels; p++) {
      const row = p * this.nColumns;
      let sum = 0;
      for (let j = 0; j < this.nColumns; j++) sum += this.basis[row + j] * planes[j];
      image[p] = sum;
    }
    return image;
  }

  phase(plane, pose) {
    return this.frequencies[plane].reduce((sum, omega, axis) => sum + omega * pose[axis], 0);
  }

  /** R(s): turn each plane by ω·s. */
  rotate(planes, pose) {
    const turned = new Float32Array(planes.length);
    for (let l = 0; l < this.nPlanes; l++) {
      const angle = this.phase(l, pose);
      const cos = Math.cos(angle);
      const sin = Math.sin(angle);
      turned[2 * l] = cos * planes[2 * l] - sin * planes[2 * l + 1];
      turned[2 * l + 1] = sin * planes[2 * l] + cos * planes[2 * l + 1];
    }
    return turned;
  }
}

class Model extends Torus {
  constructor(session) {
    super(session.basis, session.frequencies);
    this.names = session.names;
    this.ranges = session.ranges; // of each shape and axis: the middle of its poses in the data, and the ends about it
    this.prior = session.prior;
    this.variance = session.noiseStd ** 2;
    this.nShapes = session.shapes.rows;
    this.shapes = Array.from({ length: this.nShapes }, (_, k) => session.shapes.values.subarray(k * this.nPixels, (k + 1) * this.nPixels));
    this.shapePlanes = this.shapes.map((shape) => this.toPlanes(shape)); // Wᵀ Φ
  }

  /** Where the poses of the largest shape lie in the data, for each axis; null if that is not known. */
  rangeOf(codes) {
    const largest = codes.reduce((best, code, k) => (code > codes[best] ? k : best), 0);
    return this.ranges && codes[largest] > 0 ? this.ranges[largest] : null;
  }

  /** Wᵀ Φ α. */
  compose(codes) {
    const planes = new Float32Array(this.nColumns);
    codes.forEach((code, k) => {
      if (code === 0) return;
      const part = this.shapePlanes[k];
      for (let j = 0; j < planes.length; j++) planes[j] += code * part[j];
    });
    return planes;
  }

  /** The planes in which an input is compared with the shapes. */
  seenPlanes(image) {
    return this.toPlanes(image);
  }

  /** T(s) of a shape that is given in planes. */
  move(planes, pose) {
    return this.toImage(this.rotate(planes, pose));
  }

  /** T(s) Φ α. */
  generate(codes, pose) {
    return this.move(this.compose(codes), pose);
  }

  /** η̂: the pose's log density is Σ η̂₁ cos(ω·s) + η̂₂ sin(ω·s), for planes u of the shape and v of the image. */
  natural(u, v) {
    const found = new Float32Array(this.nColumns);
    for (let l = 0; l < this.nPlanes; l++) {
      const [a, b] = [2 * l, 2 * l + 1];
      found[a] = this.prior[l][0] + (u[a] * v[a] + u[b] * v[b]) / this.variance;
      found[b] = this.prior[l][1] + (u[a] * v[b] - u[b] * v[a]) / this.variance;
    }
    return found;
  }

  logDensity(natural, pose) {
    let sum = 0;
    for (let l = 0; l < this.nPlanes; l++) {
      const angle = this.phase(l, pose);
      sum += natural[2 * l] * Math.cos(angle) + natural[2 * l + 1] * Math.sin(angle);
    }
    return sum;
  }

  /** The log density along one axis through a pose, at n angles from -π. */
  slice(natural, pose, axis, n) {
    const moved = [...pose];
    return Float32Array.from({ length: n }, (_, i) => {
      moved[axis] = TURN * (i / n - 0.5);
      return this.logDensity(natural, moved);
    });
  }

  /** The log density on n × n poses of a window, rows along the second axis; the sums are separable. */
  field(natural, n, { centre, half }) {
    const firstAngle = (i) => centre[0] + half[0] * ((2 * i) / n - 1);
    const secondAngle = (j) => centre[1] + half[1] * ((2 * (j || n)) / n - 1); // row 0 is drawn at the top, where row n would be
    const firsts = [...new Set(this.frequencies.map((omega) => omega[0]))];
    const even = new Map(firsts.map((omega) => [omega, new Float32Array(n)]));
    const odd = new Map(firsts.map((omega) => [omega, new Float32Array(n)]));
    this.frequencies.forEach(([first, second], l) => {
      const [c, d] = [natural[2 * l], natural[2 * l + 1]];
      const [x, y] = [even.get(first), odd.get(first)];
      for (let j = 0; j < n; j++) {
        const turn = second * secondAngle(j);
        const [cos, sin] = [Math.cos(turn), Math.sin(turn)];
        x[j] += c * cos + d * sin;
        y[j] += d * cos - c * sin;
      }
    });
    const values = new Float32Array(n * n);
    for (const first of firsts) {
      const [x, y] = [even.get(first), odd.get(first)];
      for (let i = 0; i < n; i++) {
        const turn = first * firstAngle(i);
        const [cos, sin] = [Math.cos(turn), Math.sin(turn)];
        for (let j = 0; j < n; j++) values[j * n + i] += cos * x[j] + sin * y[j];
      }
    }
    return values;
  }
}

/** Two groups, I = W₂ R(s₂) W₂ᵀ W₁ R(s₁) W₁ᵀ Φ α: the pose has the outer coordinates first. */
class ComposedModel extends Model {
  constructor(session) {
    super(session);
    this.outer = new Torus(session.outerBasis, session.outerFrequencies);
    this.nOuter = this.outer.nAxes;
    this.nAxes += this.nOuter;
    this.between = new Float32Array(this.outer.nColumns * this.nColumns); // W₂ᵀ W₁
    for (let p = 0; p < this.nPixels; p++) {
      const [inner, outer] = [p * this.nColumns, p * this.outer.nColumns];
      for (let i = 0; i < this.outer.nColumns; i++) {
        const value = this.outer.basis[outer + i];
        for (let j = 0; j < this.nColumns; j++) this.between[i * this.nColumns + j] += value * this.basis[inner + j];
      }
    }
  }

  seenPlanes(image) {
    return this.outer.toPlanes(image);
  }

  phase(plane, pose) {
    return super.phase(plane, pose.slice(this.nOuter));
  }

  /** The shape in the outer planes, before the outer group moves it. */
  handOver(planes, pose) {
    const turned = this.rotate(planes, pose);
    const seen = new Float32Array(this.outer.nColumns);
    for (let i = 0; i < seen.length; i++) {
      let sum = 0;
      for (let j = 0; j < turned.length; j++) sum += this.between[i * turned.length + j] * turned[j];
      seen[i] = sum;
    }
    return seen;
  }

  move(planes, pose) {
    return this.outer.toImage(this.outer.rotate(this.handOver(planes, pose), pose));
  }

  natural(u, v) {
    return { u, v };
  }

  /** ln P(s | I, α) but for a constant: −‖v − R₂u₂‖²/2σ². */
  logDensity({ u, v }, pose, seen = this.handOver(u, pose)) {
    const moved = this.outer.rotate(seen, pose);
    let left = 0;
    for (let i = 0; i < moved.length; i++) left += (v[i] - moved[i]) ** 2;
    return -left / (2 * this.variance);
  }

  slice(natural, pose, axis, n) {
    const moved = [...pose];
    const seen = axis < this.nOuter ? this.handOver(natural.u, pose) : undefined; // the inner pose stays
    return Float32Array.from({ length: n }, (_, i) => {
      moved[axis] = TURN * (i / n - 0.5);
      return this.logDensity(natural, moved, seen);
    });
  }
}

/** ‖I‖² / ‖I − Î‖². */
function signalToNoise(image, estimate) {
  let signal = 0;
  let noise = 0;
  image.forEach((value, p) => {
    signal += value ** 2;
    noise += (value - estimate[p]) ** 2;
  });
  return signal / Math.max(noise, 1e-12);
}
