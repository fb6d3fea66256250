// Tangled from chapters/22_in_the_browser.py: edit the chapter, then `make tangle`.

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

function add(a, b) {
  return a.map((value, i) => value + b[i]);
}

// As nn.Linear: the matrix has a row for each entry that comes out.
function linear({ weight, bias }, x) {
  const out = new Float32Array(weight.length);
  for (let i = 0; i < out.length; i++) out[i] = dot(weight[i], x) + (bias?.[i] ?? 0);
  return out;
}

function softmax(scores) {
  const highest = Math.max(...scores);
  const powers = scores.map((score) => Math.exp(score - highest));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((power) => power / sum);
}

function layerNorm({ weight, bias }, x, eps) {
  const mean = x.reduce((a, b) => a + b) / x.length;
  const squares = x.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  const deviation = Math.sqrt(squares / x.length + eps);
  return x.map((value, i) => ((value - mean) / deviation) * weight[i] + bias[i]);
}

function keep(attention, x) {
  return { key: linear(attention.w_k, x), value: linear(attention.w_v, x) };
}

// The weights of each head are appended to `seen`.
function attend(attention, heads, x, kept, seen = []) {
  const query = linear(attention.w_q, x);
  const width = query.length / heads; // d_k
  const blend = new Float32Array(query.length);
  for (let head = 0; head < heads; head++) {
    const [start, end] = [head * width, (head + 1) * width];
    const part = (vector) => vector.subarray(start, end);
    const score = ({ key }) => dot(part(query), part(key)) / Math.sqrt(width);
    const weights = softmax(kept.map(score));
    seen.push(weights);
    kept.forEach(({ value }, s) => {
      for (let i = start; i < end; i++) blend[i] += weights[s] * value[i];
    });
  }
  return linear(attention.w_o, blend);
}

function addAndNorm({ norm_first, layer_norm_eps }, { norm }, xs, sublayer) {
  const normed = (ys) => ys.map((y) => layerNorm(norm, y, layer_norm_eps));
  const added = (changes) => changes.map((change, t) => add(xs[t], change));
  return norm_first ? added(sublayer(normed(xs))) : normed(added(sublayer(xs)));
}

function feedForward({ up, down }, x) {
  return linear(down, linear(up, x).map((value) => Math.max(0, value)));
}

function layersOf(stack) {
  return Object.values(stack.layers);
}

// The norm at the end of a stack, if it has one: with pre-norm it does.
function finish({ norm }, { layer_norm_eps }, xs) {
  return norm ? xs.map((x) => layerNorm(norm, x, layer_norm_eps)) : xs;
}

// The vectors of tokens, the first of which stands at `position`.
function embed({ tokens }, ids, position) {
  return ids.map((id, t) => {
    const row = tokens.weight[id];
    return row.map((value, i) => {
      const angle = (position + t) / 10000 ** ((i - (i % 2)) / row.length);
      const wave = i % 2 ? Math.cos(angle) : Math.sin(angle);
      return value * Math.sqrt(row.length) + wave;
    });
  });
}

function encode(model, source) {
  const { config } = model;
  let xs = embed(model.source_embeddings, source, 0);
  for (const layer of layersOf(model.encoder)) {
    xs = addAndNorm(config, layer.attention_add_norm, xs, (ys) => {
      const kept = ys.map((y) => keep(layer.attention, y));
      return ys.map((y) => attend(layer.attention, config.num_heads, y, kept));
    });
    xs = addAndNorm(config, layer.feed_forward_add_norm, xs, (ys) =>
      ys.map((y) => feedForward(layer.feed_forward, y)),
    );
  }
  xs = finish(model.encoder, config, xs);
  const kept = (layer) => xs.map((x) => keep(layer.cross_attention, x));
  return layersOf(model.decoder).map(kept);
}

// `memory` is what `encode` returns, `past` what is kept of earlier tokens, both
// for each layer. Returns logits, the longer past, and the weights of
// cross-attention for each layer and head.
function step(model, memory, past, token) {
  const { config } = model;
  const [longer, looks] = [[], []];
  let xs = embed(model.target_embeddings, [token], past[0].length);
  layersOf(model.decoder).forEach((layer, n) => {
    xs = addAndNorm(config, layer.self_attention_add_norm, xs, ([y]) => {
      longer[n] = [...past[n], keep(layer.self_attention, y)];
      return [attend(layer.self_attention, config.num_heads, y, longer[n])];
    });
    looks[n] = [];
    xs = addAndNorm(config, layer.cross_attention_add_norm, xs, ([y]) => [
      attend(layer.cross_attention, config.num_heads, y, memory[n], looks[n]),
    ]);
    xs = addAndNorm(config, layer.feed_forward_add_norm, xs, ([y]) => [
      feedForward(layer.feed_forward, y),
    ]);
  });
  const [x] = finish(model.decoder, config, xs);
  return { logits: linear(model.output, x), past: longer, looks };
}

const [PAD, BOS, EOS] = [0, 1, 2];

function begin(model) {
  return layersOf(model.decoder).map(() => []);
}

// Logarithms of the probabilities; padding and begin are never written.
function logProbabilities(logits) {
  const highest = logits.reduce((a, b) => Math.max(a, b));
  const sum = logits.reduce((sum, logit) => sum + Math.exp(logit - highest), 0);
  const logs = logits.map((logit) => logit - highest - Math.log(sum));
  logs[PAD] = logs[BOS] = -Infinity;
  return logs;
}

function* greedy(model, source, longest) {
  const memory = encode(model, source);
  let [past, token] = [begin(model), BOS];
  for (let length = 0; length < longest && token !== EOS; length++) {
    const next = step(model, memory, past, token);
    const logs = logProbabilities(next.logits);
    token = logs.indexOf(logs.reduce((a, b) => Math.max(a, b)));
    past = next.past;
    yield { token, looks: next.looks, probability: Math.exp(logs[token]) };
  }
}

function penalty(length, alpha) {
  return ((5 + length) / 6) ** alpha;
}

// Returns the best hypothesis of several that are continued side by side: what it
// has `written`, each token as `greedy` gives it, and its score. Waits at each step.
function* beamSearch(model, source, longest, beam = 4, alpha = 0.6) {
  const memory = encode(model, source);
  const finished = [];
  const scored = (length) => (one) => ({
    ...one,
    score: one.total / penalty(length, alpha),
  });
  let live = [{ total: 0, written: [], past: begin(model), token: BOS }];
  for (let length = 1; length <= longest && live.length; length++) {
    yield length;
    const candidates = live.flatMap(({ total, written, past, token: last }) => {
      const next = step(model, memory, past, last);
      const logs = logProbabilities(next.logits);
      const least = logs.slice().sort().at(-beam - 1); // all by rank takes longer
      const ranked = [...logs.keys()].filter((token) => logs[token] >= least);
      ranked.sort((a, b) => logs[b] - logs[a]);
      return ranked.slice(0, beam + 1).map((token) => {
        const probability = Math.exp(logs[token]);
        const entry = { token, looks: next.looks, probability };
        const longer = [...written, entry];
        return { total: total + logs[token], written: longer, past: next.past, token };
      });
    });
    candidates.sort((a, b) => b.total - a.total);
    const ended = candidates.slice(0, beam).filter(({ token }) => token === EOS);
    finished.push(...ended.map(scored(length)));
    live = candidates.filter(({ token }) => token !== EOS).slice(0, beam);
    const bound = live.length ? live[0].total / penalty(longest, alpha) : -Infinity;
    const best = Math.max(...finished.map(({ score }) => score));
    if (finished.length >= beam && bound <= best) live = [];
  }
  const found = finished.length ? finished : live.map(scored(longest));
  return found.reduce((a, b) => (b.score > a.score ? b : a));
}

// UTF-8, from text to bytes and back; what is not UTF-8 becomes U+FFFD.
function toBytes(text) {
  const whole = text.replace(/\p{Surrogate}/gu, "\uFFFD");
  const bytes = unescape(encodeURIComponent(whole));
  return [...bytes].map((character) => character.charCodeAt(0));
}

function toText(bytes) {
  const hex = (byte) => "%" + byte.toString(16).padStart(2, "0");
  let text = "";
  for (let i = 0, length; i < bytes.length; i += length) {
    length = [0x80, 0xe0, 0xf0].filter((least) => bytes[i] >= least).length + 1;
    try {
      text += decodeURIComponent(bytes.slice(i, i + length).map(hex).join(""));
    } catch {
      [text, length] = [text + "\uFFFD", 1];
    }
  }
  return text;
}

// Words with the space before them, numbers, punctuation, spaces: chapter 10.
// (Space is what Unicode calls so, as in Python; \s would not be.)
const SPACE = String.raw`\p{White_Space}`;
const WORD = new RegExp(
  ` ?\\p{L}+| ?\\p{N}+| ?[^${SPACE}\\p{L}\\p{N}]+|${SPACE}+(?!\\P{White_Space})|${SPACE}+`,
  "gu",
);

// Of all neighbours that have a merge, the one learnt first is merged, again and
// again, until none has.
function tokenize({ ranks, specials }, text) {
  const tokens = [];
  for (const word of text.match(WORD) ?? []) {
    let symbols = toBytes(word);
    for (;;) {
      const rank = (a, b) => ranks.get(`${a},${b}`) ?? Infinity;
      const found = symbols.slice(1).map((right, i) => rank(symbols[i], right));
      const first = Math.min(...found);
      if (first === Infinity) break;
      symbols = symbols.reduce((merged, symbol) => {
        const last = merged.length - 1;
        if (rank(merged[last], symbol) === first) merged[last] = 256 + first;
        else merged.push(symbol);
        return merged;
      }, []);
    }
    tokens.push(...symbols.map((symbol) => symbol + specials));
  }
  return tokens;
}

function detokenize({ symbols, specials }, tokens) {
  return toText(tokens.flatMap((token) => symbols[token - specials] ?? []));
}

function tokenizer({ merges, specials }) {
  const symbols = [...Array(256).keys()].map((byte) => [byte]);
  for (const [left, right] of merges) {
    symbols.push([...symbols[left], ...symbols[right]]);
  }
  const ranks = new Map(merges.map((pair, n) => [pair.join(), n]));
  return { symbols, specials, ranks };
}

// Base64: four letters hold 24 bits, three numbers of 8.
function decode64(text) {
  const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const digits = new Map([...alphabet].map((letter, n) => [letter, n]));
  const numbers = new Int8Array((text.length * 3) / 4);
  for (let i = 0, j = 0; i < text.length; i += 4) {
    let bits = 0;
    for (let k = 0; k < 4; k++) bits = (bits << 6) | digits.get(text[i + k]);
    for (let shift = 16; shift >= 0; shift -= 8) numbers[j++] = bits >> shift;
  }
  return numbers;
}

// A quantized matrix as its rows.
function matrix({ scales, columns, data }) {
  const numbers = decode64(data);
  return scales.map((scale, n) => {
    const row = numbers.subarray(n * columns, (n + 1) * columns);
    return Float32Array.from(row, (entry) => entry * scale);
  });
}

// The model in a file. A tensor's name says where it belongs:
// "decoder.layers.0.self_attention.w_q.weight".
function load({ config, tensors, source, target }) {
  const model = { config, source: tokenizer(source), target: tokenizer(target) };
  for (const [name, value] of Object.entries(tensors)) {
    const path = name.split(".");
    const last = path.pop();
    const holder = path.reduce((at, key) => (at[key] ??= {}), model);
    holder[last] = Array.isArray(value) ? Float32Array.from(value) : matrix(value);
  }
  model.target_embeddings ??= model.source_embeddings; // one table for both
  model.output ??= model.target_embeddings.tokens; // weight tying
  return model;
}
