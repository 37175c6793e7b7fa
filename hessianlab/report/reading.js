"use strict";
(() => {
  // The chapter that is being read is marked in the list of chapters.
  const links = new Map(
    Array.from(document.querySelectorAll(".contents a[href^='#']"), (link) => [link.hash.slice(1), link]),
  );
  const sections = Array.from(links.keys(), (id) => document.getElementById(id)).filter(Boolean);
  const mark = (id) => {
    for (const [other, link] of links) {
      if (other === id) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    const list = links.get(id)?.closest("ol");
    if (list && list.scrollWidth > list.clientWidth) {
      const place = links.get(id).parentElement;
      list.scrollTo({ left: place.offsetLeft - list.clientWidth / 2 + place.offsetWidth / 2 });
    }
  };
  let waiting = false;
  const look = () => {
    waiting = false;
    const line = window.innerHeight / 3;
    const passed = sections.filter((section) => section.getBoundingClientRect().top <= line);
    mark((passed.length ? passed[passed.length - 1] : sections[0])?.id);
  };
  window.addEventListener("scroll", () => {
    if (!waiting) requestAnimationFrame(look);
    waiting = true;
  }, { passive: true });
  if (sections.length) look();

  // A word of the glossary, or a claim, says what it means where it stands: by mouse, touch or keyboard.
  const meaning = document.getElementById("meaning");
  if (!meaning || !meaning.showPopover) return;
  const [words, more] = [meaning.querySelector("div"), meaning.querySelector("a")];
  const known = document.getElementById("meanings")?.content;
  const said = (address) => {
    const here = known?.querySelector(`[data-of="${CSS.escape(address)}"]`) ?? document.getElementById(address)?.nextElementSibling;
    return Array.from(here?.childNodes ?? [], (node) => node.cloneNode(true));
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a.word, .quoted a[data-meaning]");
    if (!link || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    const answer = said(link.hash.slice(1));
    if (!answer.length) return;
    event.preventDefault();
    words.replaceChildren(...answer);
    more.href = link.getAttribute("href");
    meaning.showPopover();
    const place = link.getBoundingClientRect();
    const box = meaning.getBoundingClientRect();
    const left = Math.max(8, Math.min(place.left, window.innerWidth - box.width - 8));
    const below = place.bottom + 6 + box.height < window.innerHeight;
    meaning.style.left = `${left + window.scrollX}px`;
    meaning.style.top = `${(below ? place.bottom + 6 : place.top - box.height - 6) + window.scrollY}px`;
    more.focus({ preventScroll: true });
  });
  more.addEventListener("click", () => meaning.hidePopover());
})();
