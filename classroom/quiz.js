// Makes every quiz on the page answerable. Runs once for each question displayed; a form that is ready is left alone.
for (const form of document.querySelectorAll("form.classroom-quiz:not([data-ready])")) {
  form.dataset.ready = "true";
  const { kind, tolerance } = form.dataset;
  const status = form.querySelector(".cq-feedback");
  const details = form.querySelector(".cq-answers");
  const answers = [...details.querySelectorAll("li")];
  const inputs = [...form.querySelectorAll("input")];
  let failures = 0;

  const element = (tag, name, ...children) => {
    const node = document.createElement(tag);
    node.className = name;
    node.append(...children);
    return node;
  };
  const copyOf = (answer, part) => [...answer.querySelector(part).childNodes].map((node) => node.cloneNode(true));
  const why = (answer) => copyOf(answer, ".cq-why");

  const clear = () => {
    status.replaceChildren();
    for (const mark of form.querySelectorAll(".cq-mark")) mark.replaceChildren();
    for (const option of form.querySelectorAll("[data-marked]")) delete option.dataset.marked;
  };

  const say = (verdict, ...lines) => {
    const title = { right: "✓ Right.", wrong: "✗ Not yet.", unread: "? Not answered yet." }[verdict];
    const box = element("div", "cq-said", element("strong", "cq-verdict", title), " ", ...lines);
    box.dataset.verdict = verdict;
    status.replaceChildren(box);
    if (verdict === "wrong" && ++failures >= 2) details.hidden = false;
  };

  const mark = (input, verdict) => {
    const option = input.closest(".cq-option");
    option.dataset.marked = verdict;
    option.querySelector(".cq-mark").textContent = { right: "✓ right", wrong: "✗ wrong" }[verdict];
  };

  const checkOne = () => {
    const picked = inputs.findIndex((input) => input.checked);
    if (picked < 0) return say("unread", element("span", "", "Pick an answer first."));
    const { verdict } = answers[picked].dataset;
    mark(inputs[picked], verdict);
    say(verdict, element("span", "", ...why(answers[picked])));
  };

  const checkSeveral = () => {
    if (!inputs.some((input) => input.checked)) return say("unread", element("span", "", "Tick at least one answer."));
    const lines = element("ul", "");
    const tell = (index, label) => {
      const name = element("span", "cq-shown", `${label} `, ...copyOf(answers[index], ".cq-shown"));
      lines.append(element("li", "", name, " ", element("span", "cq-why", ...why(answers[index]))));
    };
    const isRight = (index) => answers[index].dataset.verdict === "right";
    const missed = [];
    inputs.forEach((input, index) => {
      if (input.checked) {
        mark(input, answers[index].dataset.verdict);
        tell(index, isRight(index) ? "✓" : "✗");
      } else if (isRight(index)) missed.push(index);
    });
    if (missed.length && failures > 0) for (const index of missed) tell(index, "○ missed:");
    else if (missed.length) {
      lines.append(element("li", "", `○ ${missed.length} more ${missed.length > 1 ? "hold" : "holds"}: look again at those left open.`));
    }
    const wrong = inputs.some((input, index) => input.checked !== isRight(index));
    say(wrong ? "wrong" : "right", lines);
  };

  // "0.25", "0,25", "−1/4" or "1e-3" as a number; NaN for anything else
  const read = (text) => {
    const plain = text.replace(/\s/g, "").replace(/−/g, "-").replace(/,/g, ".");
    const parts = plain.split("/");
    const readable = parts.length <= 2 && parts.every((part) => /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(part));
    const value = readable ? parts.map(Number).reduce((above, below) => above / below) : NaN;
    return Number.isFinite(value) ? value : NaN;
  };

  const checkNumber = () => {
    const text = inputs[0].value.trim();
    const value = read(text);
    if (!text) return say("unread", element("span", "", "Write a number first."));
    if (Number.isNaN(value)) {
      const advice = `“${text}” is not a number that can be read here. Write it like 0.25, 0,25 or 1/4.`;
      return say("unread", element("span", "", advice));
    }
    const distance = (answer) => Math.abs(Number(answer.dataset.value) - value);
    const near = (answer) => answer.dataset.value !== undefined && distance(answer) <= Number(tolerance) * (1 + 1e-9);
    const answer = answers.find(near) ?? answers.at(-1);
    const lines = [element("span", "", ...why(answer))];
    if (/[,/]/.test(text)) lines.push(" ", element("span", "cq-reading", `(${text} was read as ${Number(value.toPrecision(6))}.)`));
    say(answer.dataset.verdict, ...lines);
  };

  form.querySelector("button").hidden = false;
  details.hidden = true;
  form.addEventListener("input", clear);
  // arrows and Enter are for the answers here: JupyterLab would move to another cell
  form.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey) event.stopPropagation();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clear();
    ({ one: checkOne, several: checkSeveral, number: checkNumber })[kind]();
  });
}
