"""Replies to images: the same text with every drafter, kept and reopened; what cannot be seen is one clear error."""

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import gguf
import numpy as np
import pytest
from tests.app.engine.forced import Endless
from tests.drafters import block_file, gemma4_file
from tests.drafters.mtp_file import WIDTH as MTP_WIDTH
from tests.drafters.mtp_file import write_mtp
from tests.models.kinds import SEES, WIDTH, add_all, finish, write_kind
from tests.models.tiny_mmproj import write_mmproj, write_picture

from slipstream.app.chats.images import read_attached
from slipstream.app.engine import load as loading
from slipstream.app.engine.load import load
from slipstream.app.engine.session import Session
from slipstream.app.library.load_request import BUNDLED_TARGET
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import HOME_VARIABLE, Paths
from slipstream.app.protocol.events import Done
from slipstream.app.protocol.requests import AUTO, Generate, Load, Message, Prepare, Sampling
from slipstream.drafters import registry
from slipstream.drafters.text_index import TextPiece, open_index
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.gguf.reader import read_header

DRAFTERS: Final = [
    AUTO,
    *(
        name for name in registry.METHODS if name not in ("none", "mtp", "dflash", "dspark")
    ),  # which it has no heads for
    "lookup|draft",
    "lookup|retrieval",
]
SAMPLINGS: Final = [
    Sampling(0.0, seed=1),
    Sampling(0.8, seed=2, repetition_penalty=1.2, presence_penalty=0.3),
    Sampling(1.2, seed=3, dry=0.8),
]
ASKED: Final = "Tell me a story about a small fox."
PAIRS: Final = MappingProxyType({"mlp": "llama", "gemma3": "gemma3", "qwen2vl_merger": SEES})
MTP_PAIRS: Final = [("qwen35", "qwen2vl_merger"), ("qwen35moe", "mlp"), ("hy_v3", "mlp"), ("step35", "gemma3")]
Bend = Callable[[dict[str, Any], dict[str, Any]], object]
BENDS: Final[MappingProxyType[str, Bend]] = MappingProxyType(
    {
        "no blocks": lambda keys, _: keys.update({"clip.vision.block_count": 0}),
        "too many blocks": lambda keys, _: keys.update({"clip.vision.block_count": 9}),
        "no heads": lambda keys, _: keys.update({"clip.vision.attention.head_count": 0}),
        "odd heads": lambda keys, _: keys.update({"clip.vision.attention.head_count": 5}),
        "no patches": lambda keys, _: keys.update({"clip.vision.patch_size": 0}),
        "huge patches": lambda keys, _: keys.update({"clip.vision.patch_size": 1 << 30}),
        "huge image": lambda keys, _: keys.update({"clip.vision.image_size": 1 << 20}),
        "no image": lambda keys, _: keys.update({"clip.vision.image_size": 0}),
        "other width": lambda keys, _: keys.update({"clip.vision.embedding_length": 48}),
        "no mean": lambda keys, _: keys.pop("clip.vision.image_mean"),
        "no kind": lambda keys, _: keys.pop("clip.projector_type"),
        "unknown kind": lambda keys, _: keys.update({"clip.projector_type": "crystal"}),
        "sound": lambda keys, _: keys.update({"clip.has_vision_encoder": False}),
        "no norm": lambda _, weights: weights.pop("v.blk.0.ln1.weight"),
        "no projection": lambda _, weights: weights.pop("mm.2.weight"),
        "thin projection": lambda _, weights: weights.update({"mm.2.weight": np.zeros((16, WIDTH), np.float32)}),
        "wrong attention": lambda _, weights: weights.update({"v.blk.0.attn_q.weight": np.zeros((24, 24), np.float32)}),
        "few places": lambda _, weights: weights.update({"v.position_embd.weight": np.zeros((3, 32), np.float32)}),
        "wrong patches": lambda _, weights: weights.update(
            {"v.patch_embd.weight": np.zeros((32, 3, 4, 4), np.float32)}
        ),
    }
)

HARMLESS: Final = ("no blocks", "no norm", "wrong patches")  # llama.cpp reads them as another projector


def about(*pictures: Path, text: str = ASKED) -> Message:
    images = [read_attached(path) for path in pictures]
    files = {image.facts.sha256: str(image.path) for image in images}
    return Message("user", " ".join([*(image.mark for image in images), text]), images=files)


def reply(session: Session, messages: list[Message], drafter: str, sampling: Sampling, **more: str) -> Done:
    request = Generate(1, messages, sampling, drafter, max_tokens=64, state=more.get("state"))
    return session.reply(request, lambda _: None, lambda: False)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("pictures")
    return [write_picture(folder / name, seed) for seed, name in enumerate(("one.png", "two.webp", "three.bmp"))]


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Load:
    home = tmp_path_factory.mktemp("home")
    paths = Paths.default({HOME_VARIABLE: str(home)})
    width = read_header(paths.bundled / BUNDLED_TARGET).n_embd
    return replace(choose(paths), mmproj=str(write_mmproj(home / "mmproj.gguf", "mlp", width or 0)))


@pytest.fixture(scope="module")
def session(seeing: Load, pictures: list[Path]) -> Iterator[Session]:
    opened, _ = load(seeing, lambda _: None)
    with closing(opened):  # what it writes about an image is what retrieval finds
        opened.model.vocabulary = Endless(opened)
        texts = [reply(opened, [about(pictures[0])], "none", sampling).tokens for sampling in SAMPLINGS]
    with closing(open_index(Path(seeing.index or ""), read_header(Path(seeing.model)))) as index:
        index.add([TextPiece(str(number), tokens) for number, tokens in enumerate(texts)])
    opened, loaded = load(seeing, lambda _: None)
    assert loaded.images
    opened.model.vocabulary = Endless(opened)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def plain(session: Session, pictures: list[Path]) -> Callable[[int, int], Done]:
    """Writes each plain reply once: about one picture or two, with a sampling."""
    return cache(lambda count, shape: reply(session, [about(*pictures[:count])], "none", SAMPLINGS[shape]))


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_drafter_writes_about_images_what_plain_decoding_writes(
    session: Session, plain: Callable[[int, int], Done], pictures: list[Path], drafter: str
) -> None:
    drafted = accepted = 0
    for count in (1, 2):
        for shape, sampling in enumerate(SAMPLINGS):
            wanted, done = plain(count, shape), reply(session, [about(*pictures[:count])], drafter, sampling)
            assert not done.failed
            assert (done.text, done.tokens, done.reason) == (wanted.text, wanted.tokens, "length")
            assert done.prompt_tokens == wanted.prompt_tokens
            drafted, accepted = drafted + done.speed.drafted, accepted + done.speed.accepted
    assert drafted or drafter in (AUTO, "space"), "nothing was drafted, so this run shows nothing"
    assert accepted or drafter != "retrieval", "it never found what it had read"


@pytest.mark.parametrize(("architecture", "kind"), MTP_PAIRS)
def test_mtp_layers_draft_after_images_from_the_features_of_the_text(
    architecture: str, kind: str, pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a layer is right only for the first token of a draft, and only with the feature of the place before it."""
    monkeypatch.setattr(loading, "SAMPLE_TEXT", "a text in letters that the tiny vocabulary has")
    model = write_mtp(tmp_path / "model.gguf", architecture, "from the feature")
    mmproj = write_mmproj(tmp_path / "mmproj.gguf", kind, MTP_WIDTH)
    session, loaded = load(Load(str(model), mmproj=str(mmproj), kv_type="f32", threads=1), lambda _: None)
    with closing(session):
        assert loaded.images
        said = [about(*pictures, text="tell me")]
        for sampling in (Sampling(0.0), Sampling(0.8, seed=2)):
            plain = reply(session, said, "none", sampling)
            for name in ("mtp", "lookup|mtp", AUTO):
                done = reply(session, said, name, sampling)
                assert (done.tokens, done.reason, done.failed) == (plain.tokens, plain.reason, {}), name
                if name == "mtp":
                    drafts = done.by_drafter["mtp"]
                    assert drafts["accepted"] > 15, "the features of its text were not those of the text"
        more = [*said, Message("assistant", plain.text, plain.tokens), about(pictures[1], text="and that")]
        texts = {tuple(reply(session, more, name, Sampling(0.8, seed=3)).tokens) for name in ("mtp", "none")}
        assert len(texts) == 1 and len(*texts) > 30


@pytest.mark.parametrize("method", ["mtp", "dflash", "dspark"])
def test_heads_in_files_of_their_own_draft_after_images(
    method: str, pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Gemma 4 assistant reads the target's cache itself: eight places before the last token, behind the image."""
    monkeypatch.setattr(loading, "SAMPLE_TEXT", "a text in letters that the tiny vocabulary has")
    if method == "mtp":
        model = gemma4_file.write_target(tmp_path / "model.gguf")
        head = gemma4_file.write_assistant(tmp_path / "mtp-head.gguf", cache=True)
    else:
        model = block_file.write_target(tmp_path / "model.gguf", "qwen3")
        head = block_file.write_head(tmp_path / "head.gguf", method)
    mmproj = write_mmproj(tmp_path / "mmproj.gguf", "mlp", block_file.WIDTH)
    request = Load(str(model), mmproj=str(mmproj), kv_type="f32", threads=1, heads=[str(head)])
    session, loaded = load(request, lambda _: None)
    with closing(session):
        assert loaded.images and not loaded.failed
        said = [about(*pictures, text="tell me")]
        accepted = 0
        for seed in range(4):
            sampling = Sampling(0.8, seed=seed)
            plain = reply(session, said, "none", sampling)
            for name in (method, f"lookup|{method}", AUTO):
                done = reply(session, said, name, sampling)
                assert (done.tokens, done.reason, done.failed) == (plain.tokens, plain.reason, {}), name
                if name == method:
                    accepted += done.speed.accepted
        assert accepted > 30, "it is hardly ever right behind an image"


def test_a_glm_that_was_converted_for_text_alone_refuses_images(
    pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "SAMPLE_TEXT", "a text in letters that the tiny vocabulary has")
    model = write_mtp(tmp_path / "model.gguf", "glm4moe")
    mmproj = write_mmproj(tmp_path / "mmproj.gguf", "mlp", MTP_WIDTH)
    session, loaded = load(Load(str(model), mmproj=str(mmproj), kv_type="f32", threads=1), lambda _: None)
    with closing(session):
        assert not loaded.images
        with pytest.raises(SlipstreamError, match=r"made for text alone.*newer conversion"):
            reply(session, [about(pictures[0], text="what")], "none", SAMPLINGS[0])
        assert reply(session, [Message("user", "what")], "none", SAMPLINGS[0]).tokens


def test_the_next_turn_reads_no_image_again(session: Session, pictures: list[Path]) -> None:
    first = reply(session, [about(pictures[0])], AUTO, SAMPLINGS[1])
    said = [about(pictures[0]), Message("assistant", first.text, first.tokens), Message("user", "And then?")]
    following = reply(session, said, AUTO, SAMPLINGS[1])
    assert following.prefilled_tokens < 40 < following.prompt_tokens
    session.forget()
    assert reply(session, said, "none", SAMPLINGS[1]).text == following.text


def test_a_chat_with_images_goes_on_in_another_process(seeing: Load, pictures: list[Path], tmp_path: Path) -> None:
    state, done = str(tmp_path / "chat.state"), list[Done]()
    for _ in range(2):
        session, _ = load(seeing, lambda _: None)
        with closing(session):
            done.append(reply(session, [about(*pictures)], "draft", SAMPLINGS[1], state=state))
    assert done[0].prefilled_tokens == done[0].prompt_tokens and done[1].prefilled_tokens < 8
    assert (done[0].text, done[0].tokens) == (done[1].text, done[1].tokens)
    width = read_header(Path(seeing.model)).n_embd
    other = write_mmproj(tmp_path / "other.gguf", "mlp", width or 0, seed=9)
    session, _ = load(replace(seeing, mmproj=str(other)), lambda _: None)
    with closing(session):  # another projector gives other rows
        assert reply(session, [about(*pictures)], "draft", SAMPLINGS[1], state=state).prefilled_tokens > 40


def test_what_is_typed_below_an_image_is_read_ahead(session: Session, pictures: list[Path]) -> None:
    session.forget()
    message = about(pictures[0], text="What is the name of the fox that lives in the old wood?")
    for size in range(len(message.content) - 50, len(message.content), 7):
        typed = Message("user", message.content[:size], images=message.images)
        session.prepare(Prepare([typed], AUTO), lambda: False, lambda: False)
    done = reply(session, [message], AUTO, SAMPLINGS[1])
    assert done.prefilled_tokens < 24
    session.forget()
    assert reply(session, [message], "none", SAMPLINGS[1]).text == done.text


@pytest.mark.parametrize("kind", PAIRS)
def test_each_kind_of_projector_keeps_the_text(kind: str, pictures: list[Path], tmp_path: Path) -> None:
    model = write_kind(tmp_path / "model.gguf", PAIRS[kind])
    draft = write_kind(tmp_path / "draft.gguf", PAIRS[kind], blur=0.3)
    mmproj = write_mmproj(tmp_path / "mmproj-f32.gguf", kind, WIDTH)
    request = Load(str(model), str(draft), mmproj=str(mmproj), kv_type="f32", threads=1)
    session, loaded = load(request, lambda _: None)
    assert loaded.images
    with closing(session):
        session.model.vocabulary = Endless(session)
        for sampling in SAMPLINGS:
            texts, drafted = set(), 0
            for name in ("none", "draft", "lookup", "recycle", "lookahead", "lookup|draft"):
                done = reply(session, [about(*pictures)], name, sampling)
                texts.add((done.text, tuple(done.tokens)))
                drafted += done.speed.drafted
            assert len(texts) == 1 and drafted


def test_a_model_without_an_mmproj_says_the_cure_and_which_may_be_its_own(seeing: Load, pictures: list[Path]) -> None:
    session, loaded = load(replace(seeing, mmproj=None), lambda _: None)
    assert not loaded.images
    with closing(session):
        with pytest.raises(UsageError, match=r"cannot see images: no mmproj file .*--mmproj FILE"):
            reply(session, [about(pictures[0])], AUTO, SAMPLINGS[0])
        said = [about(pictures[0]), Message("assistant", "A fox."), Message("user", "And then?")]
        assert reply(session, said, AUTO, SAMPLINGS[0]).tokens  # an older image stays what its mark says
    session, loaded = load(replace(seeing, mmproj=None, mmproj_unsure=["/a/mmproj.gguf", "/b c/mmproj.gguf"]), print)
    assert not loaded.images
    with closing(session), pytest.raises(UsageError, match=r"belong to it") as caught:
        reply(session, [about(pictures[0])], AUTO, SAMPLINGS[0])
    assert caught.value.hint == "If one does, start with --mmproj /a/mmproj.gguf or --mmproj '/b c/mmproj.gguf'."


def test_a_build_without_mtmd_says_a_cure(seeing: Load, pictures: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, _folder: Path) -> None:
        raise FileNotFoundError(f"Shared library with base name '{name}' not found")

    monkeypatch.setattr("llama_cpp._ctypes_extensions.load_shared_library", missing)
    monkeypatch.delattr("llama_cpp.mtmd_cpp", raising=False)
    for module in ("llama_cpp.mtmd_cpp", "slipstream.models.vision.projector"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    session, loaded = load(seeing, lambda _: None)
    assert not loaded.images
    with closing(session):
        with pytest.raises(SlipstreamError, match=r"cannot see images: this build of llama.cpp lacks mtmd") as caught:
            reply(session, [about(pictures[0])], AUTO, SAMPLINGS[0])
        assert "install" in caught.value.hint
        assert reply(session, [Message("user", ASKED)], AUTO, SAMPLINGS[0]).tokens


def test_an_image_that_changed_or_is_gone_is_one_error(session: Session, tmp_path: Path) -> None:
    picture = write_picture(tmp_path / "it.png")
    message = about(picture)
    write_picture(picture, seed=5)
    with pytest.raises(UsageError, match=r"it.png has changed"):
        reply(session, [message], AUTO, SAMPLINGS[0])
    picture.unlink()
    with pytest.raises(UsageError, match=r"it.png.*no such file"):
        reply(session, [message], AUTO, SAMPLINGS[0])


def test_only_the_user_s_own_images_count(session: Session, pictures: list[Path]) -> None:
    seen = about(pictures[0])
    forged = Message("user", seen.content)  # a pasted mark, without the file
    assert min(session.prompt([seen])) < 0 <= min(session.prompt([forged]))


def rewrite(path: Path, bend: Bend) -> None:
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items() if name.startswith("clip.")}
    weights = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    bend(keys, weights)
    writer = gguf.GGUFWriter(path.with_suffix(".new"), "clip")
    add_all(writer, "", keys)
    for name, values in weights.items():
        writer.add_tensor(name, values)
    finish(writer)
    path.with_suffix(".new").replace(path)


def refusal(folder: Path, mmproj: Path) -> SlipstreamError | None:
    """What an image gets; the model must reply to text before and after."""
    model = write_kind(folder / "model.gguf", "llama")
    picture = about(write_picture(folder / "cat.png"), text="the a of")
    session, loaded = load(Load(str(model), mmproj=str(mmproj), probed=str(folder / "probed.json")), lambda _: None)
    with closing(session):

        def reply(message: Message) -> None:
            request = Generate(1, [message], Sampling(0.0), max_tokens=4)
            assert session.reply(request, lambda _: None, lambda: False).reason

        try:
            reply(picture)
        except SlipstreamError as error:
            assert not loaded.images or "image" in error.title
            reply(Message("user", "the a of"))
            return error
    return None


@pytest.mark.parametrize("name", BENDS)
def test_a_bent_mmproj_file_is_one_clear_error(tmp_path: Path, name: str) -> None:
    mmproj = write_mmproj(tmp_path / "mmproj.gguf", "mlp", WIDTH)
    rewrite(mmproj, BENDS[name])
    error = refusal(tmp_path, mmproj)
    if error is None:
        assert name in HARMLESS, "it is used as if it were whole"
        return
    assert "mmproj.gguf" in error.title and error.hint and "\n" not in str(error)


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.95])
def test_an_mmproj_file_that_was_cut_short_is_one_clear_error(tmp_path: Path, part: float) -> None:
    mmproj = write_mmproj(tmp_path / "mmproj.gguf", "mlp", WIDTH)
    raw = mmproj.read_bytes()
    mmproj.write_bytes(raw[: int(part * len(raw))])
    error = refusal(tmp_path, mmproj)
    assert error and "mmproj.gguf" in error.title and error.hint


def test_other_files_are_no_mmproj_files_and_a_whole_one_serves(tmp_path: Path) -> None:
    for name, make in (
        ("text.gguf", lambda path: path.write_text("Dear reader")),
        ("model2.gguf", lambda path: write_kind(path, "llama")),
        ("wide.gguf", lambda path: write_mmproj(path, "mlp", 2 * WIDTH)),
    ):
        make(tmp_path / name)
        error = refusal(tmp_path, tmp_path / name)
        assert error and name in error.title and error.hint, name
    assert refusal(tmp_path, write_mmproj(tmp_path / "mmproj.gguf", "mlp", WIDTH)) is None
