"use strict";
(() => {
  const ledger = document.getElementById("ledger");
  const panel = document.getElementById("ledger-controls");
  const opened = (id) => {
    const target = id && document.getElementById(id);
    if (!target || !target.matches("details.claim")) return;
    if (target.hidden) reset();
    target.open = true;
    target.scrollIntoView({ block: "start" });
  };
  let reset = () => {};

  if (ledger && panel) {
    const claims = Array.from(ledger.querySelectorAll("details.claim"));
    const groups = Array.from(ledger.querySelectorAll("section.document"));
    const home = new Map(claims.map((claim) => [claim, claim.parentElement]));
    const texts = new Map(claims.map((claim) => [claim, claim.textContent.toLowerCase()]));
    const flat = ledger.querySelector(".sorted");
    const search = panel.querySelector("input[type=search]");
    const sort = panel.querySelector("select[name=sort]");
    const topic = panel.querySelector("select[name=topic]");
    const boxes = Array.from(panel.querySelectorAll("input[type=checkbox]"));
    const shown = panel.querySelector("output");
    const chosen = (name) => boxes.filter((box) => box.name === name && box.checked).map((box) => box.value);
    const words = () => search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const tests = () => {
      const wanted = { document: chosen("document"), verdict: chosen("verdict"), topic: topic.value ? [topic.value] : [] };
      const asked = words();
      return {
        search: (claim) => asked.every((word) => texts.get(claim).includes(word)),
        document: (claim) => !wanted.document.length || wanted.document.includes(claim.dataset.document),
        verdict: (claim) => !wanted.verdict.length || wanted.verdict.includes(claim.dataset.verdict),
        topic: (claim) => !wanted.topic.length || wanted.topic.includes(claim.dataset.topic),
      };
    };
    const places = Array.from(topic.options, (option) => option.value);
    const place = (claim) => places.indexOf(claim.dataset.topic);
    const orders = {
      verdict: (a, b) => a.dataset.verdict.localeCompare(b.dataset.verdict),
      surprise: (a, b) => b.dataset.surprise - a.dataset.surprise,
      topic: (a, b) => place(a) - place(b),
    };
    const arrange = () => {
      const order = orders[sort.value];
      const sorted = order ? claims.slice().sort((a, b) => order(a, b) || claims.indexOf(a) - claims.indexOf(b)) : claims;
      for (const claim of sorted) (order ? flat : home.get(claim)).append(claim);
    };
    const filter = () => {
      const all = tests();
      let count = 0;
      for (const claim of claims) {
        const visible = Object.values(all).every((test) => test(claim));
        claim.hidden = !visible;
        count += visible;
      }
      for (const group of groups) group.hidden = !group.querySelector("details.claim:not([hidden])");
      for (const part of ["document", "verdict", "topic"]) {
        const rest = Object.entries(all).filter(([name]) => name !== part).map(([, test]) => test);
        const left = claims.filter((claim) => rest.every((test) => test(claim)));
        const number = (value) => left.filter((claim) => claim.dataset[part] === value).length;
        for (const box of boxes.filter((box) => box.name === part)) {
          box.parentElement.querySelector(".count").textContent = number(box.value);
        }
        if (part === "topic") {
          for (const option of topic.options) {
            if (option.value) option.textContent = `${option.dataset.title} (${number(option.value)})`;
          }
        }
      }
      shown.textContent = `${count} of ${claims.length} claims`;
    };
    reset = () => {
      search.value = "";
      topic.value = "";
      for (const box of boxes) box.checked = false;
      filter();
    };
    panel.addEventListener("input", (event) => {
      if (event.target === sort) arrange();
      else filter();
    });
    panel.addEventListener("submit", (event) => event.preventDefault());
    panel.querySelector("button[name=reset]").addEventListener("click", reset);
    panel.querySelector("button[name=unfold]").addEventListener("click", (event) => {
      const all = claims.filter((claim) => !claim.hidden);
      const open = !all.every((claim) => claim.open);
      for (const claim of all) claim.open = open;
      event.target.textContent = open ? "Fold all" : "Unfold all";
    });
    panel.hidden = false;
    filter();
  }

  for (const slider of document.querySelectorAll(".slider")) {
    const frames = Array.from(slider.querySelectorAll(".frame"));
    const range = slider.querySelector("input[type=range]");
    const label = slider.querySelector("output");
    const show = () => {
      frames.forEach((frame, number) => { frame.hidden = number !== Number(range.value); });
      label.textContent = frames[Number(range.value)].dataset.label;
      range.setAttribute("aria-valuetext", label.textContent);
    };
    range.addEventListener("input", show);
    slider.classList.add("live");
    show();
  }

  const here = () => opened(decodeURIComponent(location.hash.slice(1)));
  window.addEventListener("hashchange", here);
  document.addEventListener("click", (event) => {
    const link = event.target.closest && event.target.closest('a[href^="#claim-"]');
    if (link && link.hash === location.hash) here();
  });
  here();
})();
