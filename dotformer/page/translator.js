// A page's translator: turns each <figure class="translator"> into a form, and shows what engine.js computes for it.
// Models are in `translators`, by name, and in a figure's own <script type="application/json">.
(() => {
  const PAUSE = 150; // milliseconds between words that the reader has asked to see appear

  const make = (name, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(name), properties);
    element.append(...children);
    return element;
  };
  const wait = (time) => new Promise((done) => setTimeout(done, time));
  const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
  const plain = (text) => text.replace(/^[\p{White_Space}\x1c-\x1f]+|[\p{White_Space}\x1c-\x1f]+$/gu, ""); // as Python
  const number = (value) => value.toFixed(2).replace("-", "−");
  // a token as people can read it: its space as a dot below the line, the special ones by name
  const shown = (tokenizer, token) => {
    if (token < tokenizer.specials) return ["pad", "begin", "end"][token] ?? "special";
    const text = detokenize(tokenizer, [token]).replace(/^ /, "");
    const hex = (byte) => byte.toString(16).toUpperCase();
    if (text.includes("\uFFFD")) return tokenizer.symbols[token - tokenizer.specials].map(hex).join(" "); // part of a letter
    return text || "␣";
  };

  function choices(legend, name, options) {
    const labels = options.map(([value, text], n) =>
      make("label", {}, make("input", { type: "radio", name, value, defaultChecked: n === 0 }), text),
    );
    return make("fieldset", { className: "translator-choices" }, make("legend", { textContent: legend }), ...labels);
  }

  function bring(figure, index) {
    const own = figure.querySelector("script[type='application/json']");
    const files = { ...(own ? JSON.parse(own.textContent) : {}), ...globalThis.translators };
    const names = Object.keys(files);
    if (!names.length) return;
    const loaded = {};
    const model = () => (loaded[names[picked.selectedIndex]] ??= load(files[names[picked.selectedIndex]]));

    const picked = make("select", {}, ...names.map((name) => make("option", { textContent: name })));
    const which = make("label", { hidden: names.length < 2 }, "model ", picked);
    const text = make("input", { type: "text", maxLength: 300, autocomplete: "off", spellcheck: false });
    const written = make("label", { className: "translator-text" }, "your sentence ", text);
    const go = make("button", { type: "submit", textContent: "Translate" });
    const search = choices("search", `search-${index}`, [
      ["greedy", "greedy"],
      ["beam", "beam of 4"],
    ]);
    const layer = make("select");
    const head = make("select");
    const look = make("p", { className: "translator-look" });
    look.append(make("label", {}, "layer ", layer), make("label", {}, "head ", head));
    const above = make("p", { className: "translator-above", id: `above-${index}`, textContent: "your sentence, with weights" });
    const sources = make("ol", { className: "translator-tokens" });
    sources.setAttribute("aria-labelledby", above.id);
    const targets = make("fieldset", { className: "translator-tokens" });
    const said = make("p", { className: "translator-said" });
    const speed = make("p", { className: "translator-speed" });
    const told = make("output", { className: "translator-told", ariaLive: "polite" }); // for screen readers
    const form = make("form", {}, which, written, go, search, look, above, sources, targets, said, speed, told);
    const caption = figure.querySelector("figcaption");
    text.value = figure.dataset.sentence ?? "";
    figure.replaceChildren(...(own ? [own] : []), form, ...(caption ? [caption] : []));

    let steps = []; // what is written: tokens, where they have looked, their probabilities
    let tokens = []; // of the sentence
    let chosen = 0; // of what is written
    let run = 0; // the newest; older ones stop
    let took = 0; // milliseconds, for the last one
    let timer = 0;
    let telling = 0;
    let following = false; // whether the chosen token is the one that has just been written

    // Said once the reader has paused, and not at each key.
    function tell(text) {
      clearTimeout(telling);
      telling = setTimeout(() => (told.textContent = text), 1000);
    }

    function offer() {
      const { config } = model();
      const options = (count, first) => [
        ...(first ? [make("option", { value: -1, textContent: first })] : []),
        ...Array.from({ length: count }, (_, n) => make("option", { value: n, textContent: n + 1 })),
      ];
      layer.replaceChildren(...options(config.num_decoder_layers));
      layer.selectedIndex = config.num_decoder_layers - 1;
      head.replaceChildren(...options(config.num_heads, "mean of all"));
    }

    // The weights with which the chosen word was predicted.
    function weights() {
      if (!steps[chosen]) return [];
      const heads = steps[chosen].looks[layer.value];
      if (head.value >= 0) return heads[head.value];
      return tokens.map((_, s) => heads.reduce((sum, row) => sum + row[s], 0) / heads.length);
    }

    function draw(quietly = false) {
      const { source, target } = model();
      const row = weights();
      [sources.lang, targets.lang] = files[names[picked.selectedIndex]].languages ?? ["", ""];
      sources.replaceChildren(
        ...tokens.map((token, s) => {
          const mark = make("span", { textContent: shown(source, token) });
          const item = make("li", {}, mark, make("small", { textContent: row.length ? number(row[s]) : "" }));
          item.style.setProperty("--weight", row[s] ?? 0);
          return item;
        }),
      );
      const kept = targets.querySelectorAll("label");
      steps.forEach(({ token, probability }, t) => {
        if (!kept[t]) {
          const radio = make("input", { type: "radio", name: `token-${index}`, value: t });
          targets.append(make("label", {}, radio, make("span"), make("small")));
        }
        const [radio, mark, chance] = targets.querySelectorAll("label")[t].children;
        radio.checked = t === chosen;
        mark.textContent = shown(target, token);
        chance.textContent = number(probability);
      });
      for (const label of [...kept].slice(steps.length)) label.remove();
      if (!targets.querySelector("legend")) {
        targets.prepend(make("legend", { lang: "en", textContent: "translation, with the probability of each token" }));
      }
      if (!row.length || quietly) return;
      const best = [...row.keys()].sort((a, b) => row[b] - row[a]).slice(0, 3);
      const listed = best.map((s) => `${shown(source, tokens[s])} ${number(row[s])}`).join(", ");
      said.textContent = `${shown(target, steps[chosen].token)}: looked most at ${listed}.`;
    }

    async function translate(slowly) {
      const mine = ++run;
      const sentence = text.value; // the reader may type on meanwhile
      steps = [];
      tokens = [];
      said.textContent = speed.textContent = "";
      delete form.dataset.shown;
      try {
        await write(mine, sentence, slowly);
      } catch (error) {
        if (mine !== run) return;
        steps = [];
        draw();
        speed.textContent = `this cannot be translated: ${error.message}`;
      } finally {
        if (mine === run) form.dataset.shown = sentence;
      }
    }

    async function write(mine, sentence, slowly) {
      const now = model();
      const limit = now.config.max_length;
      const wanted = plain(sentence.toWellFormed?.() ?? sentence);
      tokens = wanted ? tokenize(now.source, " " + wanted) : [];
      if (tokens.length > limit) speed.textContent = `${tokens.length} tokens are more than the ${limit} this model can read.`;
      if (!tokens.length || tokens.length > limit) return draw();
      const longest = Math.min(tokens.length + 50, limit);
      following = slowly && !still();
      const start = performance.now();
      took = 0;
      const beam = form.elements[`search-${index}`].value === "beam";
      const search = (beam ? beamSearch : greedy)(now, tokens, longest);
      for (let length = 1; ; length++) {
        const before = performance.now();
        const { value, done } = search.next();
        took += performance.now() - before;
        if (done) {
          if (beam) steps = value.written;
          break;
        }
        if (!beam) steps.push(value);
        if (slowly && !beam && !still()) {
          if (following) chosen = steps.length - 1;
          draw(true);
          await wait(PAUSE);
        } else if (performance.now() - start > 50 * length) await wait(0);
        if (mine !== run) return;
      }
      following = false;
      chosen = Math.min(chosen, steps.length - 1);
      draw();
      const pace = Math.round((1000 * steps.length) / Math.max(took, 0.1));
      const ids = steps.map(({ token }) => token);
      const cut = ids.at(-1) === EOS ? "" : ` (cut off after ${longest})`;
      const whole = detokenize(now.target, ids).trim();
      speed.textContent = `${whole}${cut} · ${steps.length} tokens in ${Math.round(took)} ms: ${pace} a second`;
      tell(`${whole}${cut} ${said.textContent}`);
    }

    // A large model is not asked at every key.
    function soon() {
      clearTimeout(timer);
      timer = setTimeout(() => translate(false), took > 40 ? Math.min(3 * took, 1500) : 0);
    }

    form.addEventListener("submit", (event) => {
      event.preventDefault();
      translate(true);
    });
    text.addEventListener("input", soon);
    search.addEventListener("change", () => translate(false));
    targets.addEventListener("change", (event) => {
      chosen = Number(event.target.value);
      following = false;
      draw();
      tell(said.textContent);
    });
    look.addEventListener("change", () => {
      draw();
      tell(said.textContent);
    });
    picked.addEventListener("change", () => {
      offer();
      translate(false);
    });
    offer();
    translate(false);
  }

  document.querySelectorAll("figure.translator").forEach(bring);
})();
