"""The files of stories260K, a published model."""

from pathlib import Path

from dotformer.data.download import cached

STORIES = "https://huggingface.co/karpathy/tinyllamas/resolve/main/stories260K/{}"
STORIES_SHA256 = {
    "stories260K.bin": "b0a507e7ad0f626624f17112325e66691f9076d622e1d3274d103d00299f2696",
    "tok512.bin": "037cb335abb25d1fa9e8ecae30ed2a3a8ace9302862ebcdc05d51a6bbb10c312",
}


def stories_files() -> tuple[Path, Path]:
    """stories260K and its tokenizer, downloaded at first use. For errors see `data.download.cached`."""
    model, tokenizer = (
        cached("stories260K", name, STORIES.format(name), sha256) for name, sha256 in STORIES_SHA256.items()
    )
    return model, tokenizer
