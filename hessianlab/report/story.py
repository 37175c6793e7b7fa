"""The story: what was found in ten minutes, one question, one scene and one paragraph at a time.

Every sentence leads to its place in the lab book, every scene has a static picture for readers without script and for
paper, and claims stand with the verdict of the ledger.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from hessianlab.claims.definition import DOCUMENTS
from hessianlab.growth.agreements import read_agreements
from hessianlab.pages import LABBOOK, render_template, typeset
from hessianlab.plots.single_panels import panel_svgs
from hessianlab.plots.style import to_svg
from hessianlab.report import network_sentences as networks
from hessianlab.report import sentences, stills
from hessianlab.report.argument import TRAINING
from hessianlab.report.attention import MOMENTS, QUERY_KEY, SOFTMAX
from hessianlab.report.chapter import Chapter
from hessianlab.report.claims import STYLES
from hessianlab.report.contents import Contents
from hessianlab.report.glossary import GLOSSARY
from hessianlab.report.network import BLOCKS, DATA, DEPTH, NORM
from hessianlab.report.quotation import ShownQuotation, shown_quotations
from hessianlab.report.sentences import Sentences
from hessianlab.report.stills import Still
from hessianlab.report.training_runs import recorded_runs
from hessianlab.results import collect
from hessianlens.explorer import module_source
from hessianlens.explorer.standalone import script_hash, style

_LINK = re.compile(r"\[([^\]]+)\]\(#([\w-]+)\)")
_MEANINGS = {f"word-{word.slug}": word.meaning for word in GLOSSARY}
_SOURCES = Path(__file__).parent


@dataclass(frozen=True)
class StorySection:
    """A question with its scene.

    Attributes:
        scene: Name of the scene in the explorer.
        short: A word or two for the list of chapters.
        question: What is asked.
        paragraphs: The answer: what computes the sentences of each paragraph.
        notes: Sentences for the margin.
        chapters: Of the lab book; the claims that their answers rest on stand below the scene.
        still: The picture without script.
        beneath: Sentences under that picture; it then stays beneath the scene.
    """

    scene: str
    short: str
    question: str
    paragraphs: tuple[Sentences, ...]
    notes: tuple[Sentences, ...]
    chapters: tuple[Chapter, ...]
    still: Still
    beneath: Sentences | None = None

    @property
    def slug(self) -> str:
        """The address on the page; none of the lab book begins so."""
        return f"see-{self.scene}"


SECTIONS: tuple[StorySection, ...] = (
    StorySection(
        "curvature",
        "Curvature",
        "What is curvature, and why should it be even?",
        (sentences.curvature,),
        (sentences.one_number,),
        (BLOCKS,),
        stills.block_sizes,
    ),
    StorySection(
        "row",
        "Scores",
        "What becomes of a row of scores?",
        (sentences.score_rows,),
        (),
        (),
        stills.score_row,
    ),
    StorySection(
        "tokens",
        "Tokens",
        "What does a query see of its tokens?",
        (sentences.moments,),
        (sentences.another_row,),
        (MOMENTS,),
        stills.sharpening,
    ),
    StorySection(
        "factors",
        "Powers",
        "Which block dies first when the tokens shrink?",
        (sentences.factors,),
        (),
        (DATA,),
        stills.slopes,
    ),
    StorySection(
        "activation",
        "a(0)",
        "So is it softmax?",
        (sentences.activation, sentences.activations_measured),
        (sentences.another_layer,),
        (SOFTMAX,),
        stills.by_activation,
    ),
    StorySection(
        "matrices",
        "Two matrices",
        "Does the split into queries and keys cause negative curvature?",
        (sentences.matrices,),
        (),
        (QUERY_KEY,),
        stills.negative_shares,
    ),
    StorySection(
        "depth",
        "Depth",
        "Does depth make it worse, and what does a norm leave?",
        (networks.depth,),
        (),
        (DEPTH, NORM),
        stills.powers_by_depth,
    ),
    StorySection(
        "rates",
        "Training",
        "Does training need two learning rates?",
        (networks.training,),
        (networks.race,),
        (TRAINING,),
        recorded_runs,
        networks.runs_beneath,
    ),
)


@dataclass(frozen=True)
class ShownSection:
    """A section as the page shows it."""

    section: StorySection
    paragraphs: tuple[tuple[Markup, ...], ...]
    notes: tuple[Markup, ...]
    quoted: tuple[ShownQuotation, ...]
    still: tuple[Markup, ...]
    beneath: tuple[Markup, ...]
    chapters: tuple[Chapter, ...]


class LabBookLinks:
    """Sets sentences with their links into the lab book.

    Args:
        addresses: Those of the lab book; a link to one that this run lacks leads to its beginning.
    """

    def __init__(self, addresses: Collection[str]) -> None:
        self._addresses = addresses
        self.used: set[str] = set()
        """Words of the glossary that were linked so far."""

    def __call__(self, sentence: str) -> Markup:
        """A sentence.

        >>> print(LabBookLinks({"fig1"})("See [x_j^T](#fig1)."))
        See <a href="labbook.html#fig1"><i>x</i><sub>j</sub><sup>T</sup></a>.
        """
        return Markup("").join(self._pieces(sentence))

    def _pieces(self, sentence: str) -> Iterator[Markup]:
        end = 0
        for link in _LINK.finditer(sentence):
            yield typeset(sentence[end : link.start()])
            words, address = link.groups()
            word = Markup(' class="word"') if address in _MEANINGS else ""
            self.used.update({address} & _MEANINGS.keys())
            yield Markup('<a{} href="{}">{}</a>').format(word, self.place(address), typeset(words))
            end = link.end()
        yield typeset(sentence[end:])

    def place(self, address: str) -> str:
        """A place in the lab book."""
        return f"{LABBOOK}#{address}" if address in self._addresses else LABBOOK


def plain(sentence: str) -> str:
    """A sentence without its links, as it is read out.

    >>> plain("See [Figure 1](#fig1).")
    'See Figure 1.'
    """
    return _LINK.sub(r"\1", sentence)


def render_story(contents: Contents, labbook: str, command: str = "hessianlens report") -> str:
    """The page: self-contained, and every number on it comes from the arguments or a recorded study.

    Args:
        contents: Of the run.
        labbook: The other page, whose addresses links lead to.
        command: What repeats both pages.
    """
    link = LabBookLinks(set(re.findall(r'\sid="([\w-]+)"', labbook)))
    scenes = f"{module_source()}{(_SOURCES / 'scenes.js').read_text(encoding='utf-8')}"
    redirect, script = ((_SOURCES / name).read_text(encoding="utf-8") for name in ("redirect.js", "reading.js"))
    sections = [_shown(section, contents, link) for section in SECTIONS]
    finding, reconciled, consequences, trained = (
        _set(say, contents, link)
        for say in (sentences.finding, sentences.reconciled, networks.consequences, networks.trained_model)
    )
    return render_template(
        _SOURCES / "story.html.jinja",
        title=sentences.title(contents),
        finding=finding,
        hero=_still(stills.hero, contents, "hero-narrow", sentences.finding),
        wide_hero=_still(stills.wide_hero, contents, "hero-wide", sentences.finding, wide=True),
        reconciled=reconciled,
        literature=_literature(contents),
        sections=sections,
        consequences=consequences,
        trained=trained,
        atlas=_still(stills.atlas, contents, "atlas", networks.trained_model),
        claims=len(contents.ledger or ()),
        figures=len(contents.results),
        published=", ".join(f"{one.ratio_in_words()} (Figure {one.number})" for one in read_agreements()),
        STYLES=STYLES,
        command=command,
        link=link,
        meanings=_meanings(sections, link),
        provenance=collect(),
        scene_style=Markup(style()),
        scene_verdicts=_scene_verdicts(scenes, contents),
        scripts={
            "redirect": Markup(redirect),
            "reading": Markup(script),
            "scenes": Markup(_checked(scenes)),
        },
        hashes=" ".join(f"'{script_hash(one)}'" for one in (redirect, script, scenes)),
    )


def _meanings(sections: Sequence[ShownSection], link: LabBookLinks) -> dict[str, str]:
    """What linked words and claims mean, by address: shown where they stand."""
    claims = {f"claim-{one.id}": one.statement for section in sections for one in section.quoted}
    return {address: _MEANINGS[address] for address in _MEANINGS if address in link.used} | claims


def _checked(script: str) -> str:
    """A script that does not end its element early."""
    if re.search(r"</script|<!--", script, re.IGNORECASE):
        raise ValueError("explorer: the module has a text that ends a script element; write it in two pieces.")
    return script


def _set(say: Sentences, contents: Contents, link: LabBookLinks) -> tuple[Markup, ...]:
    return tuple(link(sentence) for sentence in say(contents))


def _shown(section: StorySection, contents: Contents, link: LabBookLinks) -> ShownSection:
    quoted: list[ShownQuotation] = []
    for chapter in section.chapters:
        answer = contents.answer(chapter.slug)
        quoted += shown_quotations(chapter.quoted, answer.kind, contents.ledger) if answer else ()
    return ShownSection(
        section,
        tuple(filter(None, (_set(paragraph, contents, link) for paragraph in section.paragraphs))),
        tuple(sentence for note in section.notes for sentence in _set(note, contents, link)),
        tuple(quoted),
        _still(section.still, contents, section.slug, section.beneath or section.paragraphs[-1]),
        _set(section.beneath, contents, link) if section.beneath else (),
        section.chapters,
    )


def _still(still: Still, contents: Contents, name: str, said: Sentences, wide: bool = False) -> tuple[Markup, ...]:
    """The panels of a picture; what is read out in its place is the finding, in the words of the page."""
    figure = still(contents)
    if figure is None:
        return ()
    words = escape(" ".join(plain(sentence) for sentence in said(contents)[-2:]))
    svgs = [to_svg(figure, name, str(words))] if wide else panel_svgs(figure, name, str(words))
    return tuple(map(Markup, svgs))


def _scene_verdicts(scenes: str, contents: Contents) -> dict[str, str]:
    """Verdicts of the claims that scenes decide: a scene says which, the page what became of them."""
    decided = set(re.findall(r"\b([PABCD]\d{1,2}): ?\"", scenes))
    return {
        entry.claim.id: str(entry.verdict)
        for entry in contents.ledger or ()
        if entry.claim.id in decided and entry.verdict is not None
    }


_LITERATURE = (sentences.SEEN, sentences.CONCLUDED)
"""What was seen, and what was concluded from it."""


def _literature(contents: Contents) -> list[dict[str, str]]:
    """What was said of softmax, in other words, with the verdicts of the ledger."""
    entries = {entry.claim.id: entry for entry in contents.ledger or ()}
    return [
        {
            "id": id,
            "of": DOCUMENTS[entries[id].claim.document],
            "statement": entries[id].claim.statement,
            "verdict": str(entries[id].verdict),
            "style": STYLES[str(entries[id].verdict)],
        }
        for id in _LITERATURE
        if id in entries and entries[id].verdict is not None
    ]
