// Walks: along one axis of the torus, or on a line between two views. Saved as GIF, or as a strip in a PNG.

const N_FRAMES = 48;
const N_STRIP = 12;
const GIF_SIDE = 224; // pixels, roughly

/** From 0 to 1 and back, slow at both ends. */
const thereAndBack = (share) => 0.5 - 0.5 * Math.cos(TURN * share);

/** Codes and pose at a share of a walk, 0 to 1; walks are periodic. */
function viewAt(walk, share) {
  if (walk.axis !== undefined) {
    const pose = [...walk.from.pose];
    const [middle, low, high] = walk.range ?? [];
    pose[walk.axis] = wrap(walk.range ? middle + low + thereAndBack(share) * (high - low) : pose[walk.axis] + TURN * share);
    return { codes: walk.from.codes, pose };
  }
  const eased = thereAndBack(share);
  const mix = (a, b) => a + eased * (b - a);
  return {
    codes: walk.from.codes.map((code, k) => mix(code, walk.to.codes[k])),
    pose: walk.from.pose.map((angle, axis) => wrap(angle + eased * wrap(walk.to.pose[axis] - angle))),
  };
}

function saveGif(walk, model, painter) {
  const frames = Array.from({ length: N_FRAMES }, (_, i) => {
    const { codes, pose } = viewAt(walk, i / N_FRAMES);
    return painter.levels(model.generate(codes, pose));
  });
  const { width, height } = painter;
  const scale = Math.max(1, Math.round(GIF_SIDE / Math.max(width, height)));
  downloadFile(encodeGif(frames, { width, height, coloured: painter.channels === 3, scale, seconds: 0.06 }), "walk.gif");
}

function savePng(walk, model, painter) {
  const scale = Math.max(1, Math.round(GIF_SIDE / 2 / Math.max(painter.width, painter.height)));
  const [w, h, gap] = [painter.width * scale, painter.height * scale, 4];
  const strip = createElement("canvas", { width: N_STRIP * (w + gap) - gap, height: h });
  const context = strip.getContext("2d");
  context.imageSmoothingEnabled = false;
  const frame = createElement("canvas");
  const span = walk.axis === undefined || walk.range ? 0.5 / (N_STRIP - 1) : 1 / N_STRIP; // there only, or round
  for (let i = 0; i < N_STRIP; i++) {
    const { codes, pose } = viewAt(walk, i * span);
    painter.image(frame, model.generate(codes, pose));
    context.drawImage(frame, i * (w + gap), 0, w, h);
  }
  strip.toBlob((blob) => downloadFile(blob, "walk.png"));
}
