// Brings the figures of classroom/movable.py to life: shows their controls, and where one is moved, redraws the same
// picture from the numbers that the figure carries. Where this does not run, the picture stands still.
(() => {
  const decimals = (value, digits) => {
    const halves = value * 2 ** (digits + 1);
    const tie = Number.isInteger(halves) && halves % 2 !== 0; // toFixed would write 0.13 for 0.125, Python writes 0.12
    const text = (tie ? (2 * Math.round((value * 10 ** digits) / 2)) / 10 ** digits : value).toFixed(digits);
    return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
  };
  const write = (elements, texts) => elements.forEach((element, i) => (element.textContent = texts[i]));
  const place = (element, attributes) => {
    for (const [name, value] of Object.entries(attributes)) {
      element.setAttribute(name, typeof value === "number" ? value.toFixed(2) : value);
    }
  };
  // in quotation marks if it has no letter and no digit
  const spoken = (token) => (/[\p{L}\p{N}]/u.test(token) ? token : `“${token}”`);
  const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);

  const softmax = (scores) => {
    const highest = Math.max(...scores);
    const powers = scores.map((score) => Math.exp(score - highest));
    const sum = powers.reduce((a, b) => a + b);
    return powers.map((power) => power / sum);
  };

  // Each kind is given its figure's numbers and a way to find its parts, and returns what to do when a control moves:
  // redraw, and return the sentences that say what each picture now shows.
  const kinds = {
    temperature({ labels, scores, full }, all) {
      const [range] = all("input");
      return () => {
        const now = (10 ** Number(range.value)).toPrecision(3);
        const weights = softmax(scores.map((score) => score / Number(now)));
        const written = weights.map((weight) => decimals(weight, 3));
        all(".movable-bar").forEach((bar, i) => place(bar, { width: full * weights[i] }));
        write(all(".movable-number"), written);
        write(all(".movable-heading"), [`temperature ${now}`]);
        write(all(".movable-now"), [now]);
        place(range, { "aria-valuetext": now });
        return [`Weights at temperature ${now}: ${labels.map((label, i) => `${label} ${written[i]}`).join(", ")}.`];
      };
    },

    position({ table, near, waves, curve }, all) {
      const [range] = all("input");
      const [rowPicture, productPicture] = all("svg");
      const within = (picture, selector) => [...picture.querySelectorAll(selector)];
      return () => {
        const at = Number(range.value);
        const row = table[at];
        const products = table.map((other) => dot(row, other));
        const values = row.map((value) => decimals(value, 3));
        const x = waves.left + at * waves.step;
        place(all(".movable-mark")[0], { x1: x, x2: x });
        write(all(".movable-value"), values);
        within(rowPicture, ".movable-dot").forEach((mark, column) =>
          place(mark, { cx: x, cy: waves.middles[column >> 1] - row[column] * waves.reach }),
        );

        const height = (product) => curve.zero - product * curve.scale;
        const points = products.map((product, j) => [curve.centre + (j - at) * curve.unit, height(product)]);
        place(all(".movable-line")[0], { points: points.map((point) => point.map((c) => c.toFixed(2))).join(" ") });
        const beside = [-1, 1].flatMap((sign) => near.map((distance) => products[at + sign * distance]));
        const written = beside.map((product) => (product === undefined ? "off" : decimals(product, 3)));
        write(all(".movable-number"), written);
        within(productPicture, ".movable-dot").forEach((mark, i) => {
          const there = beside[i] !== undefined;
          place(mark, { cy: height(there ? beside[i] : 0), visibility: there ? "visible" : "hidden" });
        });

        write(all(".movable-heading"), [`position ${at}`, `dot product of row ${at} with row ${at} + distance`]);
        write(all(".movable-now"), [at]);
        place(range, { "aria-valuetext": String(at) });
        const after = near.map((distance, i) => `${distance}: ${written[near.length + i]}`);
        return [
          `Position ${at}. Its row of the table: ${values.join(", ")}.`,
          `Position ${at}. Dot products with the rows that many positions after: ${after.join(", ")}.`,
        ];
      };
    },

    heads({ weights, tokens, keys = tokens }, all) {
      const chosen = (group) => all(`${group} input:checked`).map((input) => Number(input.value));
      return () => {
        const places = chosen(".movable-choices"); // of a layer, where there are some, and of a head
        const [token] = chosen(".movable-tokens");
        const shown = places.reduce((part, index) => part[index], weights);
        const row = shown[token];
        const written = row.map((weight) => decimals(weight, 2));
        all(".movable-look").forEach((line, i) => {
          const asking = Math.floor(i / keys.length);
          const weight = shown[asking][i % keys.length];
          const looks = asking === token;
          place(line, { "stroke-width": looks ? 1 + 5 * weight : 1, opacity: looks ? weight ** 0.5 : 0.3 * weight });
        });
        place(all(".movable-chosen")[0], { y: 37 + 30 * token });
        all(".movable-asked").forEach((ground, i) => place(ground, { opacity: 0.45 * row[i] }));
        write(all(".movable-number"), written);
        const best = [...row.keys()].sort((a, b) => row[b] - row[a] || a - b).slice(0, 3);
        const listed = best.filter((i) => row[i] > 0).map((i) => `${spoken(keys[i])} ${written[i]}`);
        const [head, layer] = places.reverse().map((index) => index + 1);
        const where = layer ? `Layer ${layer}, head ${head}` : `Head ${head}`;
        return [`${where}, ${spoken(tokens[token])}: looks most at ${listed.join(", ")}.`];
      };
    },

    frames({ weights, queries, keys, labels, notes, colours, white }, all) {
      const [range] = all("input");
      for (const first of all(".movable-first")) first.remove(); // there to be compared where nothing moves
      const colour = (weight) => {
        const along = weight * (colours.length - 1);
        const lower = Math.min(Math.floor(along), colours.length - 2);
        const parts = colours[lower].map((low, i) =>
          Math.floor(low + (colours[lower + 1][i] - low) * (along - lower) + 0.5),
        );
        return `#${parts.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
      };
      return () => {
        const at = Number(range.value);
        const flat = weights[at].flat();
        all(".movable-cell").forEach((cell, i) => place(cell, { fill: colour(flat[i]) }));
        const numbers = all(".movable-number");
        numbers.forEach((number, i) => place(number, { fill: flat[i] >= white ? "white" : "black" }));
        write(
          numbers,
          flat.map((weight) => decimals(weight, 2)),
        );
        write(all(".movable-heading, .movable-now"), [labels[at], labels[at]]);
        write(all(".movable-note"), notes ? [notes[at]] : []);
        place(range, { "aria-valuetext": labels[at] });
        const best = weights[at].map((row, query) => {
          const most = Math.max(...row);
          return `${queries[query]} at ${keys[row.indexOf(most)]} ${decimals(most, 2)}`;
        });
        const moment = notes ? `${labels[at]}, ${notes[at]}` : labels[at];
        return [`${moment}. Where each query looks most: ${best.join(", ")}.`];
      };
    },
  };

  document.querySelectorAll("figure.movable").forEach((figure, index) => {
    const all = (selector) => [...figure.querySelectorAll(selector)];
    // figures of the same numbers name their choices alike, and the browser has taken them for one
    for (const choice of all("input[type=radio]")) {
      choice.name += `-${index}`;
      choice.checked = choice.defaultChecked;
    }
    const redraw = kinds[figure.dataset.kind](JSON.parse(figure.dataset.numbers), all);
    const update = () => {
      const sentences = redraw();
      write(all("svg > title"), sentences);
      write(all(".movable-said"), sentences.slice(-1));
    };
    figure.addEventListener("input", update);
    // a mouse chooses a word by passing over it; a finger taps, the keyboard has arrows
    for (const token of all(".movable-tokens input")) {
      token.addEventListener("pointerenter", (event) => {
        if (event.pointerType !== "mouse" || token.checked) return;
        token.checked = true;
        update();
      });
    }
    for (const control of all("[hidden]")) control.hidden = false;
  });
})();
