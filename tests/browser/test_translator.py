"""Chapter 22's translator in a browser, on its page and from a disk: its numbers, and all that it can be asked."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from playwright.sync_api import expect
from safetensors.torch import load_model

from classroom.measured import trained
from dotformer.command_line.models import new_translator
from dotformer.export import quantize
from dotformer.generation import KVCache, beam_search, greedy
from dotformer.support.recording import record_weights
from dotformer.tokens import BPETokenizer
from tests.browser.conftest import quiet_tab

SENTENCES = ["the old man can see a kitten .", "in the evening she opens the door .", "I say that he is tired ."]


@pytest.fixture(scope="module")
def translator():
    """The kept translator of the grammar, with the parameters that a page gets."""
    folder = trained("grammar")
    sides = [BPETokenizer.load(folder / f"{side}.json") for side in ("source", "target")]
    shape = json.loads((folder / "config.json").read_text())["model"]
    made = new_translator(*sides, shape.pop("kind"), shape)
    load_model(made.model.eval(), folder / "model.safetensors")
    with torch.no_grad():
        for parameter in made.model.parameters():
            if parameter.ndim == 2:
                numbers, scales = quantize(parameter)
                parameter.copy_(numbers * scales[:, None])
    return made


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    """The address of a page on the disk, as the command writes it."""
    folder = tmp_path_factory.mktemp("page")
    command = [sys.executable, "-m", "dotformer", "export", str(trained("grammar")), "--to", "page", "--output", folder]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    return Path(folder, "index.html").as_uri()


@pytest.fixture(params=["served", "from a disk", "on a phone"])
def tab(request, browser, address, on_disk):
    """The translator in a tab, ready; from a disk its page forbids all that is not its own."""
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "color_scheme": "dark"}
    with quiet_tab(browser, **(phone if request.param == "on a phone" else {})) as page:
        page.goto(on_disk if request.param == "from a disk" else f"{address}/book/notebooks/22_in_the_browser.html")
        expect(page.locator("figure.translator form")).to_be_visible()
        yield page


def write(tab, text):
    """Type a text, and wait until it is translated."""
    tab.locator("figure.translator input[type=text]").fill(text)
    tab.wait_for_function("text => document.querySelector('.translator form').dataset.shown === text", arg=text)


def shown(tab, selector):
    return tab.locator(f"figure.translator {selector}").all_text_contents()


def translation(tab):
    """The words that are shown, with their probabilities."""
    labels = tab.locator("figure.translator .translator-tokens label")
    both = zip(labels.locator("span").all_text_contents(), labels.locator("small").all_text_contents(), strict=True)
    return [(word, float(probability)) for word, probability in both]


ALL_STEPS = """([source, targets]) => {
  const memory = encode(model, source);
  let past = begin(model);
  const steps = targets.map((target) => {
    const next = step(model, memory, past, target);
    past = next.past;
    return [[...next.logits], next.looks];
  });
  return [steps.map(([logits]) => logits), steps.map(([, looks]) => looks)];
}"""


def test_logits_in_a_browser_equal_pytorchs(tab, translator):
    """Those of all steps to 2e-5, of which the largest are about 12, and so the weights of cross-attention."""
    tab.evaluate(
        "globalThis.file = JSON.parse(document.querySelector('figure.translator script')?.textContent ?? 'null')"
    )
    tab.evaluate("globalThis.model = load(Object.values(file ?? translators)[0])")
    for text in SENTENCES:
        source = tab.evaluate("text => tokenize(model.source, text)", f" {text}")
        ids = torch.tensor([translator.tokens(text)])
        assert [source] == ids.tolist()
        [written] = greedy(KVCache(translator.model, ids), 60)
        targets = [1, *written]
        found, looks = tab.evaluate(ALL_STEPS, [source, targets])
        with torch.no_grad(), record_weights(translator.model) as seen:
            expected = translator.model(ids, torch.tensor([targets]))[0]
        assert (torch.tensor(found) - expected).abs().max() < 2e-5
        for n in range(len(translator.model.decoder.layers)):
            weights = seen[f"decoder.layers.{n}.cross_attention"][0]  # (H, T, S)
            assert (torch.tensor([step[n] for step in looks]).transpose(0, 1) - weights).abs().max() < 2e-5


@pytest.mark.parametrize("text", SENTENCES)
def test_what_is_typed_is_translated_with_its_attention(tab, translator, text):
    write(tab, text)
    ids = torch.tensor([translator.tokens(text)])
    [tokens] = greedy(KVCache(translator.model, ids), 60)
    words = [translator.target.decode([token]).strip() for token in tokens]
    assert [word for word, _ in translation(tab)] == [*words, "end"]
    assert shown(tab, ".translator-tokens li span") == text.split()
    with torch.no_grad(), record_weights(translator.model) as seen:
        logits = translator.model(ids, torch.tensor([[1, *tokens]]))[0]
    chances = logits.softmax(dim=-1)[range(len(tokens) + 1), [*tokens, 2]]
    assert [chance for _, chance in translation(tab)] == pytest.approx(chances.tolist(), abs=0.0051)
    for word in (0, 2):
        tab.locator("figure.translator .translator-tokens label").nth(word).click()
        for layer, head in ((1, -1), (0, 3), (1, 2)):
            tab.locator("figure.translator .translator-look select").nth(0).select_option(index=layer)
            tab.locator("figure.translator .translator-look select").nth(1).select_option(index=head + 1)
            heads = seen[f"decoder.layers.{layer}.cross_attention"][0, :, word]
            weights = heads.mean(dim=0) if head < 0 else heads[head]
            found = list(map(float, shown(tab, ".translator-tokens li small")))
            assert found == pytest.approx(weights.tolist(), abs=0.0051)
            [said] = shown(tab, ".translator-said")
            assert said.startswith(f"{[*words, 'end'][word]}: looked most at {text.split()[weights.argmax()]} ")


def test_another_word_moves_the_weights_at_once(tab):
    write(tab, "the old man can see a kitten .")
    before = shown(tab, ".translator-tokens li small")
    write(tab, "the old woman can see a kitten .")
    assert translation(tab)[0][0] == "die" and shown(tab, ".translator-tokens li small") != before


def test_a_beam_finds_what_the_books_finds(tab, translator):
    tab.get_by_label("beam of 4").check()
    write(tab, SENTENCES[1])
    state = KVCache(translator.model, torch.tensor([translator.tokens(SENTENCES[1])]))
    best = beam_search(state, 60)[0][0]
    assert [word for word, _ in translation(tab)][:-1] == [
        translator.target.decode([token]).strip() for token in best.tokens
    ]


def test_all_of_it_by_keyboard(tab):
    write(tab, SENTENCES[0])
    tab.locator("figure.translator input[type=text]").press("Enter")
    expect(tab.locator("figure.translator .translator-speed")).to_contain_text("a second")
    first = tab.locator("figure.translator .translator-tokens input").first
    first.focus()
    seen = []
    for _ in range(8):
        tab.keyboard.press("ArrowRight")
        seen += shown(tab, ".translator-said")
    words = [word for word, _ in translation(tab)]
    assert len(set(seen)) == 8 and seen[0].startswith(f"{words[1]}:") and seen[-1].startswith("end:")
    tab.keyboard.press("Shift+Tab")
    assert tab.evaluate("document.activeElement.tagName") == "SELECT"


def test_words_appear_one_by_one_unless_the_reader_wants_no_motion(browser, on_disk):
    for motion, count in (("no-preference", 9), ("reduce", 1)):
        with quiet_tab(browser, reduced_motion=motion) as page:
            page.goto(on_disk)
            write(page, SENTENCES[0])
            page.evaluate("""() => {
                globalThis.lengths = new Set();
                const words = document.querySelector("fieldset.translator-tokens");
                new MutationObserver(() => lengths.add(words.querySelectorAll("label").length))
                  .observe(words, { childList: true });
            }""")
            page.locator("figure.translator button").click()
            expect(page.locator(".translator-speed")).to_contain_text("9 tokens")
            assert page.evaluate("lengths.size") in range(count - 1, count + 1)


def test_nothing_and_too_much(tab):
    write(tab, "   ")
    assert translation(tab) == [] and shown(tab, ".translator-tokens li") == []
    write(tab, "the " * 65)
    assert shown(tab, ".translator-speed") == ["65 tokens are more than the 64 this model can read."]
    write(tab, "😀 \u05d0")  # in bytes
    assert len(shown(tab, ".translator-tokens li")) >= 6 and len(translation(tab)) > 0


def test_what_is_typed_meanwhile_is_not_said_to_be_shown(browser, on_disk):
    with quiet_tab(browser) as page:
        page.goto(on_disk)
        write(page, SENTENCES[0])
        page.locator("figure.translator button").click()
        # typed, but its event has yet to come
        page.evaluate("document.querySelector('.translator input[type=text]').value = 'the'")
        expect(page.locator(".translator-speed")).to_contain_text("9 tokens")
        expect(page.locator(".translator form")).to_have_attribute("data-shown", SENTENCES[0])


def test_thirty_tokens_a_second_at_least(tab):
    write(tab, SENTENCES[0])
    [speed] = shown(tab, ".translator-speed")
    assert int(re.search(r"(\d+) a second", speed)[1]) >= 30


def test_where_scripts_do_not_run_a_sentence_stands_with_its_weights(browser, address):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}/book/notebooks/22_in_the_browser.html")
    expect(page.locator("figure.translator table")).to_be_visible()
    assert page.locator("figure.translator tbody th").all_text_contents()[:3] == ["der", "alte", "Mann"]
    context.close()
