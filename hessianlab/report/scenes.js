document.documentElement.classList.add("moving");
mountAll(document);
